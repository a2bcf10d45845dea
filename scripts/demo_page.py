"""The demo's numbers in docs/quickstart.md, the figures of README.md and that page, and the pictures of docs/report.md.

    python scripts/demo_page.py                     # from docs/demo/runs.json.gz: after a change of the report's text
    python scripts/demo_page.py runs/demo           # from a finished `make demo`, whose numbers replace those in docs/demo
    python scripts/demo_page.py runs/demo --pictures        # also docs/report/*.png; needs Chromium, chromedriver, selenium

The digest, docs/demo/runs.json.gz, holds what the report reads of the runs, without responses: counts of every question,
scalars, settings. The page marks what comes from the report: `<!-- begin headline -->` for its first lines, and
`<!-- begin tasks -->` for its first table. The site has the whole report.
"""

import argparse
import gzip
import io
import json
import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import yaml
from omegaconf import OmegaConf

from tagrpo.analysis.comparison import Methods
from tagrpo.analysis.figures import LEARNING, ZERO_GRADIENTS
from tagrpo.analysis.runs import RunFiles, by_method, find_runs
from tagrpo.analysis.sections import answer, markdown, sections, table
from tagrpo.files import write_section
from tagrpo.metrics.functional import CAUSES
from tagrpo.report.assemble import draw, explore
from tagrpo.runs.directory import Changes, added_in, changes, read_config
from tagrpo.settings.config import compose_run

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "quickstart.md"
ILLUSTRATED = (ROOT / "README.md", PAGE)
DIGEST = ROOT / "docs" / "demo" / "runs.json.gz"
ORDER = ("base", "grpo", "grpo_matched", "ta_grpo")
SCALARS = [
    "step", "rollout/reward", "seconds/iteration", *LEARNING, *ZERO_GRADIENTS,
    *(f"zero_gradient/{cause}" for cause in CAUSES),
]  # fmt: skip
SPLIT = ("num_questions", "samples", "pass_at_k", "majority", "wrong_answers", "length", "truncated")
INTRODUCTION = """# The demo's report

This is the report that `make demo` writes to `runs/demo/report.md`. Beside it lies `runs/demo/report.html`, with every
response ([The report](../report.md)).

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


def parts() -> dict[str, str]:
    """Return name → text of the parts of the report that the page shows, from the digest."""
    with TemporaryDirectory() as folder:
        methods = Methods(unpack(read_digest(), Path(folder)))
        first = sections(methods)[0]
        return {
            "headline": "\n".join(f"- {sentence}" for sentence in answer(methods).sentences),
            "tasks": "\n".join(table(first.header, first.rows)),
        }


def write_parts(page: Path) -> None:
    """Write the parts of the report between their marks in a page.

    Raises:
        ValueError: if the page lacks a mark.
    """
    for name, text in parts().items():
        write_section(page, name, text)


def figures_of(pages: Iterable[Path]) -> set[str]:
    """Return the names of the pictures in docs/ that these pages show."""
    return {name for page in pages for name in re.findall(r"\]\((?:docs/)?(\w+\.png)\)", page.read_text())}


def write_report(folder: Path) -> None:
    """Write the whole report, report.md with its figures, into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as runs:
        methods = Methods(unpack(read_digest(), Path(runs)))
        text = markdown(methods, draw(methods, folder))
    (folder / "report.md").write_text(INTRODUCTION + text.partition("\n\n")[2])


def differences() -> dict[str, Changes]:
    """Return run → what has changed, since that run, in the settings that its overrides compose to.

    If any has, the digest is stale: `make demo` and this script write it anew.
    """
    found = {}
    with TemporaryDirectory() as folder:
        for runs in unpack(read_digest(), Path(folder)).values():
            for run in runs:
                given = [f"seed={run.seed}", *run.overrides]
                composed = compose_run(ROOT / "runs" / "demo" / run.method / f"seed{run.seed}", given)
                then = read_config(run.path / "config.yaml")
                changed = changes(then, _without_places(OmegaConf.to_container(composed, resolve=True)))
                added = added_in(changed, then)
                found[run.method] = {key: both for key, both in changed.items() if key not in added}
    return found


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
    write_parts(PAGE)
    with TemporaryDirectory() as folder:
        write_report(Path(folder))
        for name in sorted(figures_of(ILLUSTRATED) & {path.name for path in Path(folder).glob("*.png")}):
            shutil.copy(Path(folder, name), ROOT / "docs" / name)
    if arguments.pictures:
        pictures(
            arguments.root or sys.exit("Expected the folder of a finished `make demo` for the pictures.")
        )


if __name__ == "__main__":
    main()
