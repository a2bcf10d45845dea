"""`tagrpo-plan` on composed configurations."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from hydra import compose, initialize_config_module
from rich.console import Console
from transformers import AutoModelForCausalLM, Qwen3Config

from tagrpo.cli.forecast import GPUS
from tagrpo.cli.plan import engine_of, model_of, plan, show, workload_of


def composed(*overrides):
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        return compose("plan", list(overrides))


def test_the_demo_is_planned_from_its_settings_and_fits(tiny_policy):
    cfg = composed("experiment=ta_grpo", f"model.path={tiny_policy}", "gpu=l40s")
    found, work, lines = plan(cfg)
    # Eight questions with three rephrasings and eight samples each, on one CPU; 48 iterations.
    assert (work.ranks, work.questions * work.responses, work.iterations) == (1, 8 * 4 * 8, 48)
    assert work.mean == 20, "half of 40 tokens"
    assert found.seconds[1] < 3 * found.seconds[0]
    assert lines == []
    console = Console(record=True, width=120)
    show(found, work, lines, "l40s", console)
    text = console.export_text()
    for said in (
        "GiB per GPU",
        "activations",
        "GPU hours",
        "Assumed: responses of 20 tokens",
        "It fits: at most",
    ):
        assert said in text


PAPER = ("scale=paper", "data.train.path=x", "data.evaluation.test.path=y", "model=pretrained", "trainer.num_nodes=2")


def test_a_run_on_several_nodes_is_planned_with_all_their_gpus(tmp_path):
    # A model that is wide and shallow: as large as a real one where it matters, and planned at once.
    Qwen3Config(
        vocab_size=32000, hidden_size=4096, intermediate_size=12288, num_hidden_layers=3, num_attention_heads=32,
        num_key_value_heads=8, head_dim=128,
    ).save_pretrained(tmp_path)  # fmt: skip
    cfg = composed("experiment=ta_grpo", *PAPER, f"model.path={tmp_path}", "gpu=l40s", "questions=2560")
    found, work, lines = plan(cfg)
    assert (work.ranks, work.iterations, work.checkpointing) == (16, 2 * 10, True)
    assert work.reference, "the loss has a KL term"
    weights = 4 * (32000 * 4096 * 2 + 3 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 12288)) / 16 / 2**30
    assert found.update["weights"] == pytest.approx(weights, rel=0.05)
    assert found.update["optimizer"] == pytest.approx(2 * weights, rel=0.05), "of a fused optimizer too"
    assert min(found.update.values()) >= 0
    assert found.sampling["engine"] == pytest.approx(0.4 * GPUS["l40s"].memory)
    assert lines == []
    cfg.policy.token_budget = 2**18
    _, _, lines = plan(cfg)
    assert lines[0].startswith("policy.token_budget="), "an L40S has no room for 262,144 tokens"
    cfg.policy.token_budget = int(lines[0].partition("=")[2].partition(":")[0])
    assert plan(cfg)[2] == [], "the advice is good"


def test_lora_servers_and_an_engine_in_transformers_are_seen(tiny_policy):
    base = ("experiment=ta_grpo", f"model.path={tiny_policy}")
    model = model_of(composed(*base))
    assert not workload_of(composed(*base, "lora=default"), 1).reference
    assert workload_of(composed(*base, "policy.anchor=own"), 1).score_prompts == 4
    assert engine_of(composed(*base, "rollout=vllm_server"), GPUS["h100"], model).own_gpus
    large = replace(model, parameters=2**32)
    shared = engine_of(composed(*base, "rollout=vllm", "rollout.engine.tensor_parallel_size=4"), GPUS["h100"], large)
    assert (shared.asleep, shared.weights, shared.parallel) == (0.0, 2.0, 4), "8 GiB in bfloat16 on four GPUs"
    own = engine_of(composed(*base), GPUS["h100"], replace(model, parameters=2**30))
    assert own.asleep == 4.0, "a copy of the weights in float32"
    assert own.awake == pytest.approx(4.0 + 4 * 2 * 2 * 1 * 32 * 64 * (128 + 40) / 2**30), "and keys and values"


def test_adapters_and_a_list_of_devices_are_planned(tiny_policy):
    settings = ("experiment=ta_grpo", f"model.path={tiny_policy}", "rollout=vllm", "rollout.engine.sleep=false")
    whole, adapted = (plan(composed(*settings, *more, "trainer.devices=[0,2]")) for more in ([], ["lora=default"]))
    assert whole[1].ranks == adapted[1].ranks == 2
    assert adapted[0].update["optimizer"] < whole[0].update["optimizer"]


def test_a_plan_leaves_no_file_behind(tiny_policy, tmp_path):
    options = ["model=pretrained", f"model.path={tiny_policy}", "experiment=grpo"]
    subprocess.run([sys.executable, "-m", "tagrpo.cli.plan", *options], cwd=tmp_path, capture_output=True, check=True)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_gpu_is_refused(tiny_policy):
    with pytest.raises(ValueError, match="Expected gpu to be one of h200, h100"):
        plan(composed("experiment=ta_grpo", f"model.path={tiny_policy}", "gpu=abacus"))


@pytest.mark.parametrize("mean_length", [0, 1.5])
def test_a_mean_length_that_is_no_share_is_refused(tiny_policy, mean_length):
    with pytest.raises(ValueError, match="Expected mean_length to be above 0 and at most 1"):
        plan(composed("experiment=ta_grpo", f"model.path={tiny_policy}", f"mean_length={mean_length}"))


def test_sizes_of_a_model_are_those_of_its_parameters(tiny_policy):
    model = model_of(composed("experiment=ta_grpo", f"model.path={tiny_policy}"))
    real = AutoModelForCausalLM.from_pretrained(tiny_policy)
    assert model.parameters == model.trained == sum(p.numel() for p in real.parameters())
    assert model.root + sum(p.numel() for p in real.model.layers.parameters()) == model.parameters
    adapted = model_of(composed("experiment=ta_grpo", f"model.path={tiny_policy}", "lora=default"))
    assert 0 < adapted.trained < adapted.parameters - model.parameters + 1
