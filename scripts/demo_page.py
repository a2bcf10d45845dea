"""docs/demo.md and its figures, the report of `make demo`; and the pictures of docs/report.md.

    python scripts/demo_page.py                     # from docs/demo/runs.json.gz: after a change of the report's text
    python scripts/demo_page.py runs/demo           # from a finished `make demo`, whose numbers replace those in docs/demo
    python scripts/demo_page.py runs/demo --pictures        # also docs/report/*.png; needs Chromium, chromedriver, selenium

The digest holds what the report reads of the runs, without responses: counts of every question, scalars, settings.
"""

import argparse
import gzip
import io
import json
import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import yaml

from tagrpo.analysis.comparison import Methods
from tagrpo.analysis.figures import LEARNING, ZERO_GRADIENTS
from tagrpo.analysis.runs import RunFiles, by_method, find_runs
from tagrpo.analysis.sections import markdown
from tagrpo.metrics.functional import CAUSES
from tagrpo.report.assemble import draw, explore

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "demo.md"
DIGEST = ROOT / "docs" / "demo" / "runs.json.gz"
ORDER = ("base", "grpo", "grpo_matched", "ta_grpo")
SCALARS = [
    "step", "rollout/reward", "seconds/iteration", *LEARNING, *ZERO_GRADIENTS,
    *(f"zero_gradient/{cause}" for cause in CAUSES),
]  # fmt: skip
SPLIT = ("num_questions", "samples", "pass_at_k", "majority", "wrong_answers", "length", "truncated")
INTRODUCTION = """# The demo's report

This is the report that `make demo` writes to `runs/demo/report.md`, on two CPU cores in about three minutes after
installation. On the same machine the numbers repeat bit for bit. Beside it lies `runs/demo/report.html`, with every
response ([Report](report.md)).

<!-- Written by `python scripts/demo_page.py`; change the report or its runs, not this page. -->

"""


def digest(root: Path) -> dict[str, str]:
    """Return path → content of the files that the report reads of the runs below `root`, cut to what it reads."""
    found = {}
    for run in find_runs(root):
        files = {
            "config.yaml": yaml.safe_dump(_without_places(run.config)),
            "ledger.json": json.dumps(run.ledger),
        }
        files["provenance.json"] = json.dumps(run.provenance)
        if run.command:
            hydra = {
                "overrides": {"task": [f"seed={run.seed}", *run.overrides], "hydra": []},
                "runtime": {"config_sources": []},
                "job": {"name": "train"},
            }
            files[".hydra/hydra.yaml"] = yaml.safe_dump({"hydra": hydra})
        kept = run.training_questions
        files["data.json"] = json.dumps({"train": {"kept": kept}} if kept is not None else {})
        if (run.path / "metrics.csv").exists():
            metrics = pd.read_csv(run.path / "metrics.csv", dtype=str)
            files["metrics.csv"] = metrics[[name for name in SCALARS if name in metrics]].to_csv(index=False)
            files["embedding_diversity.csv"] = run.diversity.to_csv(index=False)
        for file in (run.path / "test.json", *sorted((run.path / "evaluations").glob("[!e]*-*.json"))):
            files[str(file.relative_to(run.path))] = json.dumps(_counts(json.loads(file.read_text())))
        found |= {f"{run.method}/seed{run.seed}/{name}": text for name, text in files.items()}
    return found


def _without_places(settings: Any) -> Any:
    """Return settings without the folders of the machine that made the runs."""
    text = json.dumps(settings)
    return json.loads(re.sub(r'"/[^"]*?/((?:src|runs)/[^"]*)"', r'"\1"', text))


def _counts(evaluation: dict[str, Any]) -> dict[str, Any]:
    splits = {}
    for name, split in evaluation["splits"].items():
        kept = {key: split[key] for key in SPLIT if key in split}
        questions = [{key: row[key] for key in ("id", "n", "correct")} for row in split["questions"]]
        splits[name] = {**kept, "questions": questions}
    heads = {key: evaluation[key] for key in ("stage", "iteration", "groups") if key in evaluation}
    return {**heads, "splits": splits}


def unpack(content: dict[str, str], folder: Path) -> dict[str, list[RunFiles]]:
    """Write a digest below `folder`; return its runs by method."""
    for name, text in content.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return by_method(find_runs(folder), ORDER)


def page(methods: Methods, captions: dict[str, str]) -> str:
    """Return docs/demo.md."""
    return INTRODUCTION + markdown(methods, captions).partition("\n\n")[2]


def written() -> str:
    """Return docs/demo.md as the digest has it, without writing anything to docs."""
    with TemporaryDirectory() as folder:
        methods = Methods(unpack(read_digest(), Path(folder)))
        return page(methods, draw(methods, Path(folder)))


def read_digest() -> dict[str, str]:
    """Return path → content of the digest."""
    return dict(json.loads(gzip.decompress(DIGEST.read_bytes())))


def write_digest(content: dict[str, str]) -> None:
    """Write a digest, the same bytes for the same content."""
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as file:
        file.write(json.dumps(content, indent=0, sort_keys=True).encode())
    DIGEST.write_bytes(buffer.getvalue())


PICTURES = {
    "overview": ("#/", 1440, 900),
    "phone": ("#/", 390, 844),
    "run": ("#/run/3", 1440, 1500),
    "question": ("#/run/3/iteration/1/question/11/response/360", 1440, 1000),
}
"""Name of a picture → place in the page, width and height in CSS pixels."""


def pictures(root: Path) -> None:
    """Write docs/report/*.png, pictures of the page of the runs below `root` in Chromium."""
    sys.path.insert(0, str(ROOT / "tests" / "report"))
    from chromium import browser, ready

    with TemporaryDirectory() as folder, browser() as driver:
        report = explore(root, output=Path(folder) / "report.html", order=ORDER)
        for name, (place, width, height) in PICTURES.items():
            size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            driver.get("about:blank")
            driver.get(report.as_uri() + place)
            ready(driver)
            driver.execute_async_script("setTimeout(arguments[0], 500)")  # plots are fitted to the width
            driver.save_screenshot(str(ROOT / "docs" / "report" / f"{name}.png"))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "root", type=Path, nargs="?", help="folder of a finished `make demo`; default: the digest"
    )
    parser.add_argument("--pictures", action="store_true", help="also take the pictures of docs/report.md")
    arguments = parser.parse_args()
    if arguments.root is not None:
        write_digest(digest(arguments.root))
    with TemporaryDirectory() as folder:
        methods = Methods(unpack(read_digest(), Path(folder)))
        PAGE.write_text(page(methods, draw(methods, PAGE.parent)))
    if arguments.pictures:
        pictures(
            arguments.root or sys.exit("Expected the folder of a finished `make demo` for the pictures.")
        )


if __name__ == "__main__":
    main()
