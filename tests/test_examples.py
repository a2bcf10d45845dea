"""The examples run or fit what they start, and show that diagnostics need nothing else of this package."""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from torch.distributed.run import get_args_parser

from notebooks.replay import replay
from tagrpo.analysis.rollouts import difficulty_of_run, read_rollouts
from tagrpo.modules.advantages import GroupAdvantage
from tagrpo.rollouts.servers import serve
from tagrpo.rollouts.servers.access import VARIABLE
from tagrpo.rollouts.servers.vllm_server import VLLMServerEngine
from tagrpo.settings.checks import missing_settings
from tagrpo.settings.config import check_settings
from tagrpo.starter import starter_path

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_the_foreign_project_borrows_only_callbacks_and_metrics():
    imported = set()
    for node in ast.walk(ast.parse((EXAMPLES / "guessing.py").read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        imported |= {*names, node.module} if isinstance(node, ast.ImportFrom) else set(names)
    assert {name for name in imported if name.startswith("tagrpo")} == {"tagrpo.callbacks", "tagrpo.metrics"}


@pytest.fixture(scope="module")
def guessed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guessing")
    spec = importlib.util.spec_from_file_location("guessing", EXAMPLES / "guessing.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["guessing"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return folder, module.main(folder)


def test_the_foreign_module_learns_and_every_callback_measures(guessed):
    folder, metrics = guessed
    rows = pd.read_csv(folder / "metrics.csv").dropna(subset=["zero_gradient/percentage"])
    assert len(rows) == 3 * 16
    success = rows["rephrasing/0/correct"]
    assert success.iloc[-8:].mean() > success.iloc[:8].mean() + 0.1
    assert rows["uniform_reward/rephrasings"].notna().all()
    assert rows["answer_diversity/entropy"].iloc[-8:].mean() < rows["answer_diversity/entropy"].iloc[:8].mean()
    # One direction per text: the distance is the chance that two responses differ.
    assert rows["embedding_distance/pool"].dropna().between(0, 1).all()
    assert set(pd.read_csv(folder / "embedding_diversity.csv")["pool"]) == {"original", "rephrasings", "pool"}
    (split,) = json.loads((folder / "test.json").read_text())["splits"]
    assert split == "digits"
    assert metrics["pass@k/digits/8"] > metrics["pass@k/digits/1"]
    assert metrics["pass@8"] >= metrics["pass@1"]


def test_its_rollouts_can_be_replayed_and_tested(guessed):
    folder, _ = guessed
    rollouts = read_rollouts(folder)
    assert len(rollouts) == 48 * 4 * 3 * 8
    logged = pd.read_csv(folder / "metrics.csv")["zero_gradient/percentage"].dropna().tolist()
    replayed = replay(rollouts, {"pooled": GroupAdvantage(group_by="question")})["zero_gradient"].tolist()
    assert replayed == pytest.approx(logged)
    early = rollouts[rollouts["iteration"] < 16]
    assert difficulty_of_run(early)[0].p_value < 1e-6, "its phrasings differ in difficulty by construction"


PLAIN = """
import sys
sys.path.insert(0, {folder!r})
import plain_torch
shares = plain_torch.main()
found = sorted({{name.split(".")[0] for name in sys.modules}} & {{"lightning", "pytorch_lightning", "hydra", "vllm"}})
print(shares[0], shares[-1], found)
"""


def test_the_pipeline_and_the_update_train_in_plain_torch():
    program = PLAIN.format(folder=str(EXAMPLES))
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    first, last, found = result.stdout.split(maxsplit=2)
    assert float(last) > float(first) + 0.1
    assert found.strip() == "[]"


def test_the_plain_script_is_short():
    (main,) = [
        node for node in ast.parse((EXAMPLES / "plain_torch.py").read_text()).body if isinstance(node, ast.FunctionDef)
    ]
    assert main.end_lineno - main.lineno < 30


def test_the_job_set_starts_what_the_commands_accept_and_its_parts_fit_together():
    service, jobs = yaml.safe_load_all((EXAMPLES / "jobset.yaml").read_text())
    specs = {job["name"]: job["template"]["spec"] for job in jobs["spec"]["replicatedJobs"]}
    (trainer,), (server,) = (specs[name]["template"]["spec"]["containers"] for name in ("trainer", "servers"))

    arguments = get_args_parser().parse_args(trainer["command"][1:])
    assert (trainer["command"][0], arguments.training_script, arguments.no_python) == ("torchrun", "tagrpo-train", True)
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        cfg = compose("train", arguments.training_script_args, return_hydra_config=True)
    check_settings(cfg)
    assert not list(missing_settings(OmegaConf.masked_copy(cfg, [key for key in cfg if key != "hydra"])))
    nodes, processes = cfg.trainer.num_nodes, cfg.trainer.devices
    assert int(arguments.nnodes) == nodes == specs["trainer"]["parallelism"] == specs["trainer"]["completions"]
    assert int(arguments.nproc_per_node) == processes == trainer["resources"]["limits"]["nvidia.com/gpu"]
    assert arguments.rdzv_endpoint == f"{jobs['metadata']['name']}-trainer-0-0.{jobs['metadata']['name']}:29500"
    (mount,), (volume,) = trainer["volumeMounts"], specs["trainer"]["template"]["spec"]["volumes"]
    assert mount["name"] == volume["name"]
    assert cfg.hydra.run.dir.startswith(mount["mountPath"])

    *program, model = server["command"]
    options = dict(zip(server["args"][::2], server["args"][1::2], strict=True))
    assert program == ["python", "-m", serve.__name__]
    assert model == cfg.model.path
    assert options["--host"] == "0.0.0.0", "elsewhere it listens on its own node alone"
    assert int(options["--tensor-parallel-size"]) == server["resources"]["limits"]["nvidia.com/gpu"]
    (port,) = {port["containerPort"] for port in server["ports"]} | {server["readinessProbe"]["tcpSocket"]["port"]}
    assert int(options["--port"]) == port
    assert cfg.rollout.engine.url == f"dns:http://{service['metadata']['name']}:{port}"
    VLLMServerEngine(starter_path(), cfg.rollout.engine.url)
    assert service["spec"]["clusterIP"] == "None"
    labels = {"jobset-name": jobs["metadata"]["name"], "replicatedjob-name": "servers"}
    assert service["spec"]["selector"] == {f"jobset.sigs.k8s.io/{name}": value for name, value in labels.items()}
    assert jobs["spec"]["successPolicy"]["targetReplicatedJobs"] == ["trainer"]
    token = {"name": VARIABLE, "valueFrom": {"secretKeyRef": {"name": "tagrpo-token", "key": "token"}}}
    assert trainer["env"] == server["env"] == [token]
