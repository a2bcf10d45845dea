"""What a newcomer does: the commands of README and quickstart, from a clean clone and from the wheel. Takes minutes."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


def commands(page):
    """Every command of a page, without comments and with continued lines joined."""
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def shortened(words):
    """The same command, so that it ends in a minute on a CPU: few iterations, or its settings alone for GPUs."""
    name, *arguments = words
    if words == ["make", "demo-lm"]:
        few = [
            "data=multiplication",
            "rollout.sampling.max_new_tokens=16",
            "iterations=1",
            "data.evaluation_samples=2",
        ]
        return [*words, f"DEMO_LM_OPTIONS='overrides={json.dumps(few)}'"]
    if name == "tagrpo-train" and "scale=paper" in arguments:
        return [*words, "--cfg", "job"]
    if name == "tagrpo-train":
        return [*words, "iterations=2", "data.evaluation_samples=2"]
    if name == "tagrpo-eval":
        return [*words, "data.evaluation_samples=2", "callbacks.pass_at_k.ks=[1,2]"]
    if words == ["tagrpo-compare", "compare=demo", "seeds=[0,1,2]"]:  # after `make demo`: its runs are kept
        return [*words[:2], "seeds=[0]"]
    if name == "tagrpo-compare" and "compare=demo" not in arguments:
        return [*words, "overrides=['iterations=1','data.evaluation_samples=2']"]
    return words


def run(words, folder, binaries):
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "VIRTUAL_ENV", "HYDRA"))
    }
    environment |= {
        "PATH": f"{binaries}:{environment['PATH']}",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    result = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{shlex.join(words)}\n{result.stdout[-2000:]}\n{result.stderr[-3000:]}"
    return result.stdout


def test_from_a_clean_clone(tmp_path):
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
    found = commands("README.md")
    quick = commands("docs/quickstart.md")
    assert found[:2] == [["make", "demo"], ["make", "test"]]
    assert quick[0] == ["make", "demo"]
    run(["make", "demo"], clone, "/usr/bin")
    assert (clone / "runs/demo/report.html").stat().st_size > 100_000
    for words in (*quick[1:], *found[2:]):
        run(shortened(words), clone, clone / ".venv/bin")


def test_from_the_wheel(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, ROOT],
        check=True, capture_output=True,
    )  # fmt: skip
    venv.create(tmp_path / "venv", with_pip=True)
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    # What the package depends on comes from this environment; a path file does not bring its editable install along.
    (site / "dependencies.pth").write_text(str(Path(pytest.__file__).parents[1]))
    binaries = tmp_path / "venv/bin"
    (wheel,) = tmp_path.glob("*.whl")
    run(
        [binaries / "python", "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel],
        tmp_path,
        binaries,
    )
    where = run([binaries / "python", "-c", "import tagrpo; print(tagrpo.__file__)"], tmp_path, binaries)
    assert Path(where.strip()).is_relative_to(site)
    run(["tagrpo-compare", "compare=demo"], tmp_path, binaries)
    assert (tmp_path / "runs/demo/report.html").stat().st_size > 100_000
    for words in (*commands("docs/quickstart.md"), *commands("README.md")):
        if words[0].startswith("tagrpo-"):
            run(shortened(words), tmp_path, binaries)
