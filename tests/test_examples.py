"""The examples run or fit what they start, and show that diagnostics need nothing else of this package."""

from __future__ import annotations

import ast
import json
import shlex
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from torch.distributed.run import get_args_parser
from transformers import AutoTokenizer

from examples import guessing, plain_torch
from notebooks.replay import replay
from tagrpo.analysis.rollouts import difficulty_of_run, read_rollouts
from tagrpo.datamodules.prompts import PromptRenderer
from tagrpo.datamodules.templates import PlainTemplate, PromptAugmentation
from tagrpo.lab.tasks.arithmetic import ArithmeticSource
from tagrpo.modules.advantages import GroupAdvantage
from tagrpo.modules.losses import PolicyLoss
from tagrpo.modules.policy.logprobs import Scorer
from tagrpo.modules.policy.model import load_causal_lm
from tagrpo.modules.update import PolicyUpdate, UpdateOptions
from tagrpo.packing.policy import CausalPolicy
from tagrpo.rewards import FinalAnswerReward
from tagrpo.rollouts import RolloutPipeline, SamplingConfig, TransformersEngine
from tagrpo.rollouts.servers.access import VARIABLE
from tagrpo.rollouts.servers.vllm_server import VLLMServerEngine
from tagrpo.rollouts.transfer.flags import DEV_MODE, server_flags
from tagrpo.settings.checks import missing_settings
from tagrpo.settings.config import check_settings
from tagrpo.starter import starter_path
from tagrpo.types import QuestionBatch

pytestmark = pytest.mark.pages

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
    return folder, guessing.main(folder)


def test_the_foreign_module_learns_and_every_callback_measures(guessed):
    folder, metrics = guessed
    rows = pd.read_csv(folder / "metrics.csv").dropna(subset=["zero_gradient/percentage"])
    assert len(rows) == 3 * 16
    success = rows["rephrasing/0/correct"]
    assert success.iloc[-8:].mean() > success.iloc[:8].mean() + 0.1
    assert rows["uniform_reward/rephrasings"].notna().all()
    assert (
        rows["answer_diversity/entropy"].iloc[-8:].mean() < rows["answer_diversity/entropy"].iloc[:8].mean()
    )
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


def piped(steps):
    """The metrics of `plain_torch.main` by the pipeline and the update that trainings use."""
    folder = str(starter_path())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    groups = ArithmeticSource("train", size=4, num_rephrasings=3).load()
    templates = PromptAugmentation({"plain": PlainTemplate("{question} <sep>")})
    prompts = PromptRenderer(templates, tokenizer).prompts(groups, epoch=0, num_samples=8)
    policy = CausalPolicy(load_causal_lm(folder))
    engine = partial(TransformersEngine, folder)
    decode = partial(tokenizer.batch_decode, skip_special_tokens=True)
    pipeline = RolloutPipeline(engine, FinalAnswerReward(), decode, SamplingConfig(max_new_tokens=40))
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4)
    options = UpdateOptions(anchor="original", mini_batches=1)
    update = PolicyUpdate(
        Scorer(policy), GroupAdvantage("question"), PolicyLoss(kl_coef=0.0), optimizer, options
    )
    for step in range(steps):
        rollouts = pipeline.roll_out(
            QuestionBatch(groups=groups, prompts=prompts), policy.model, step
        ).rollouts
        result = update(rollouts, num_questions=len(groups))
        measured = result.metrics()
        advantages = result.experience.advantages.view(len(groups), -1)
        yield {
            "correct": float(rollouts.correct.float().mean()),
            "zero_gradient": 100 * float((advantages == 0).all(1).float().mean()),
            "loss": measured["train/loss"],
            "grad_norm": measured["train/grad_norm"],
        }
    pipeline.close()


def test_the_loop_in_the_open_trains_as_the_pipeline_and_the_update_do():
    history = plain_torch.main(steps=3)
    for ours, theirs in zip(history, piped(3), strict=True):
        assert (ours["correct"], ours["zero_gradient"]) == (theirs["correct"], theirs["zero_gradient"])
        # The pipeline's loss takes tokens in parts while their logits exist: sums in another order.
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-6)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-5)
    assert history[0]["grad_norm"] > 0


def test_the_job_set_starts_what_the_commands_accept_and_its_parts_fit_together():
    service, jobs = yaml.safe_load_all((EXAMPLES / "jobset.yaml").read_text())
    specs = {job["name"]: job["template"]["spec"] for job in jobs["spec"]["replicatedJobs"]}
    (trainer,), (server,) = (specs[name]["template"]["spec"]["containers"] for name in ("trainer", "servers"))

    arguments = get_args_parser().parse_args(trainer["command"][1:])
    assert (trainer["command"][0], arguments.training_script, arguments.no_python) == (
        "torchrun",
        "tagrpo-train",
        True,
    )
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        cfg = compose("train", arguments.training_script_args, return_hydra_config=True)
    check_settings(cfg)
    assert not list(missing_settings(OmegaConf.masked_copy(cfg, [key for key in cfg if key != "hydra"])))
    nodes, processes = cfg.trainer.num_nodes, cfg.trainer.devices
    assert (
        int(arguments.nnodes) == nodes == specs["trainer"]["parallelism"] == specs["trainer"]["completions"]
    )
    assert int(arguments.nproc_per_node) == processes == trainer["resources"]["limits"]["nvidia.com/gpu"]
    assert (
        arguments.rdzv_endpoint == f"{jobs['metadata']['name']}-trainer-0-0.{jobs['metadata']['name']}:29500"
    )
    (mount,), (volume,) = trainer["volumeMounts"], specs["trainer"]["template"]["spec"]["volumes"]
    assert mount["name"] == volume["name"]
    assert cfg.hydra.run.dir.startswith(mount["mountPath"])

    *program, model = server["command"]
    assert program == ["vllm", "serve"]
    flags = [shlex.split(flag) for flag in server_flags(cpu=False)]
    assert {"=".join(parts) for parts in flags} < set(server["args"])
    options = {name: value for name, _, value in (argument.partition("=") for argument in server["args"])}
    assert model == cfg.model.path
    assert options["--host"] == "0.0.0.0", "elsewhere it listens on its own node alone"
    assert int(options["--tensor-parallel-size"]) == server["resources"]["limits"]["nvidia.com/gpu"]
    (port,) = {port["containerPort"] for port in server["ports"]} | {
        server["readinessProbe"]["tcpSocket"]["port"]
    }
    assert int(options["--port"]) == port
    assert cfg.rollout.engine.url == f"dns:http://{service['metadata']['name']}:{port}"
    VLLMServerEngine(starter_path(), cfg.rollout.engine.url)
    assert service["spec"]["clusterIP"] == "None"
    labels = {"jobset-name": jobs["metadata"]["name"], "replicatedjob-name": "servers"}
    assert service["spec"]["selector"] == {
        f"jobset.sigs.k8s.io/{name}": value for name, value in labels.items()
    }
    assert jobs["spec"]["successPolicy"]["targetReplicatedJobs"] == ["trainer"]
    token = {"name": VARIABLE, "valueFrom": {"secretKeyRef": {"name": "tagrpo-token", "key": "token"}}}
    name, value = DEV_MODE.split("=")
    assert trainer["env"] == [token]
    assert server["env"] == [{"name": name, "value": value}, token]
