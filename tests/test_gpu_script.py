"""benchmarks/gpu.sh where python and the GPU are played by a few lines of shell: what each step is started with."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.pages

ROOT = Path(__file__).parents[1]
PYTHON = """#!/bin/sh
if [ "$1" = -c ]; then exit $NO_GPU; fi  # is there a GPU?
echo "$TORCH_COMPILE_DISABLE $HF_HUB_OFFLINE $*" >>"$CALLS"
case "$*" in
*$FAILS*) echo "the reason"; exit 3 ;;
*$HANGS*) sleep 600 ;;
esac
"""


@pytest.fixture
def gpu(tmp_path):
    """Runs the script; its outcome, the calls of python as (compilation is off, offline, arguments), its results."""
    for name, text in {"python": PYTHON, "nvidia-smi": "#!/bin/sh\necho a GPU\n"}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)

    def run(*steps, **variables):
        calls = tmp_path / "calls"
        calls.write_text("")
        environment = {
            **os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHON": str(tmp_path / "python"),
            "RESULTS": str(tmp_path / "results"), "RUNS": str(tmp_path / "runs"), "CALLS": str(calls),
            "NO_GPU": "0", "FAILS": "nothing", "HANGS": "nothing", **variables,
        }  # fmt: skip
        found = subprocess.run(
            ["bash", ROOT / "benchmarks" / "gpu.sh", *steps],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return found, [line.split(" ", 2) for line in calls.read_text().splitlines()], tmp_path / "results"

    return run


def test_every_step_runs_compiled_and_offline_but_the_one_that_is_about_the_way_without_compilation(gpu):
    names = gpu("list")[0].stdout.split()
    found, calls, results = gpu()
    assert found.returncode == 0, found.stderr
    assert len(calls) == len(names)
    assert [line.split("\t")[:2] for line in (results / "gpu-steps.tsv").read_text().splitlines()] == [
        [name, "done"] for name in names
    ]
    for name, (disabled, offline, arguments) in zip(names, calls, strict=True):
        assert (disabled, offline) == ("1" if name == "sdpa" else "0", "1"), name
        assert "pytest" in arguments or "cuda" in arguments or "trainer=gpu" in arguments, name
        assert (results / f"gpu-{name}.log").exists()
    written = {Path(p).name for _, _, arguments in calls for p in re.findall(r"--json (\S+)", arguments)}
    tables = re.findall(r'"(gpu-[\w-]+\.json)"', (ROOT / "benchmarks" / "tables.py").read_text())
    assert written == set(tables), "every figure has its table"


def test_the_tests_leave_compilation_on_where_the_script_has_said_so():
    first, _, _ = (ROOT / "tests" / "conftest.py").read_text().partition("import pandas")
    program = f"{first}\nprint(os.environ['TORCH_COMPILE_DISABLE'])"
    for said, expected in (("0", "0"), (None, "1")):
        environment = {name: value for name, value in os.environ.items() if name != "TORCH_COMPILE_DISABLE"}
        environment |= {"TORCH_COMPILE_DISABLE": said} if said else {}
        found = subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT / "tests", env=environment, capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        assert found.stdout.split() == [expected]


def test_a_step_that_fails_is_reported_and_the_next_one_goes_on(gpu):
    found, _, results = gpu("attention", "head", "policy", FAILS="test_head")
    assert found.returncode == 1, "as many as failed"
    assert "the reason" in found.stdout
    outcomes = [line.split("\t")[:2] for line in (results / "gpu-steps.tsv").read_text().splitlines()]
    assert outcomes == [["attention", "done"], ["head", "FAILED"], ["policy", "done"]]


def test_a_step_that_takes_too_long_is_ended_and_the_next_one_goes_on(gpu):
    _, calls, results = gpu("attention", "head", HANGS="test_attention", STEP_SECONDS="1")
    assert len(calls) == 2
    assert (results / "gpu-steps.tsv").read_text().startswith("attention\ttoo long\t")


def test_all_steps_together_have_a_limit_and_what_is_there_is_packed_after_each(gpu):
    found, calls, results = gpu("attention", "head", "policy", HANGS="test_attention", TOTAL="16")
    outcomes = [line.split("\t")[:2] for line in (results / "gpu-steps.tsv").read_text().splitlines()]
    assert outcomes == [["attention", "too long"], ["head", "no time left"], ["policy", "no time left"]]
    assert (found.returncode, len(calls)) == (3, 1)
    with tarfile.open(results / "gpu.tar.gz") as archive:
        assert {"gpu-attention.log", "gpu-head.log", "gpu-steps.tsv"} <= set(archive.getnames())


def test_steps_are_chosen_by_name_and_a_resumed_training_keeps_what_it_resumes(gpu, tmp_path):
    found, calls, _ = gpu("resume", "nonsense")
    assert (found.returncode, calls) == (64, [])
    assert "nonsense" in found.stderr
    kept = tmp_path / "runs" / "whole" / "checkpoint"
    kept.mkdir(parents=True)
    _, calls, _ = gpu("resume")
    assert len(calls) == 1
    assert "resume=auto" in calls[0][2]
    assert kept.exists()
    gpu("train")
    assert not kept.exists()


def test_without_a_gpu_only_the_small_form_runs_and_on_the_cpu(gpu):
    found, calls, _ = gpu(NO_GPU="3")
    assert (found.returncode, calls) == (64, [])
    assert "SIZE=tiny" in found.stderr
    found, calls, _ = gpu(NO_GPU="3", SIZE="tiny")
    assert found.returncode == 0
    assert not [arguments for _, _, arguments in calls if "cuda" in arguments or "trainer=gpu" in arguments]


def test_an_interpreter_that_is_missing_or_has_no_torch_is_named(gpu, tmp_path):
    for variables in ({"PYTHON": str(tmp_path / "none")}, {"NO_GPU": "1"}):
        found, calls, _ = gpu(SIZE="tiny", **variables)
        assert (found.returncode, calls) == (64, [])
        assert f"but got {variables.get('PYTHON', tmp_path / 'python')}" in found.stderr
        assert "No CUDA device" not in found.stderr + found.stdout


@pytest.mark.parametrize("no_gpu", ["0", "3"])
def test_all_results_are_in_one_archive(gpu, no_gpu):
    _, _, results = gpu("attention", SIZE="tiny", NO_GPU=no_gpu)
    with tarfile.open(results / "gpu.tar.gz") as archive:
        assert set(archive.getnames()) == {p.name for p in results.iterdir()} - {"gpu.tar.gz"}


BARE = """
import importlib.metadata as metadata
import re
import sys
from importlib.machinery import PathFinder
from pathlib import Path

COMMON = "torch triton transformers lightning accelerate peft pytest hypothesis httpx pandas pyarrow rich scipy"
SMALL = re.findall(r"^([\\w-]+)==", Path("requirements/gpu_offline.txt").read_text(), re.MULTILINE)
plain = lambda name: re.sub(r"[-_.]+", "-", name).lower()
there, wanted = {"tagrpo", "pip"}, {*map(plain, COMMON.split()), *map(plain, SMALL)}
while wanted:
    there.add(name := wanted.pop())
    if name not in map(plain, SMALL):  # what these need has to be in one of the lists
        try:
            needs = metadata.requires(name) or ()
        except metadata.PackageNotFoundError:
            continue
        wanted |= {plain(re.match(r"[\\w.-]+", n)[0]) for n in needs if "extra ==" not in n} - there
absent = {n for n, owners in metadata.packages_distributions().items() if not there & set(map(plain, owners))}
assert "vllm" in absent and "openai" in absent


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return None if name.partition(".")[0] in absent else PathFinder.find_spec(name, path, target)

    @staticmethod
    def find_distributions(*arguments):
        return (d for d in PathFinder.find_distributions(*arguments) if plain(d.name) in there)


sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
sys.path[:0] = ["tests", "benchmarks", "."]
"""
IMPORTS = """
import conftest, update_step
from hydra import compose, initialize_config_module
from hydra.utils import instantiate
import tagrpo.cli.train
from trl import GRPOConfig, GRPOTrainer
from tagrpo.settings import config
from tagrpo.cli.export import main

with initialize_config_module("tagrpo.configs", version_base="1.3"):
    chosen = ["experiment=ta_grpo", "logger=csv", "callbacks=[throughput,zero_gradient,checkpoint]", "strategy=fsdp2"]
    cfg = compose("train", [*chosen, "lora=default", "hydra.run.dir=/tmp"], return_hydra_config=True)
cfg.hydra.runtime.output_dir = sys.argv[1]
from hydra.core.hydra_config import HydraConfig

HydraConfig.instance().set_config(cfg)
config.build(cfg)
"""


def test_the_script_needs_no_package_that_its_documentation_does_not_name(tmp_path):
    environment = {**os.environ, "PYTHONPATH": ""}
    command = [sys.executable, "-c", BARE + IMPORTS, str(tmp_path)]
    found = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr[-3000:]


def test_every_target_that_the_makefile_names_exists():
    text = (ROOT / "Makefile").read_text()
    first = text.splitlines()[0]
    named = set(re.findall(r"[\w-]+", first.partition("make ")[2].partition(":")[0]))
    named |= set(re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)[1].split())
    assert "gpu" in named
    for target in named:
        assert re.search(rf"^{target}:", text, re.MULTILINE), target
