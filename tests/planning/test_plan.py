"""`tagrpo-plan` on composed configurations."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_module
from rich.console import Console
from transformers import AutoModelForCausalLM, Qwen3Config

import tagrpo.configs
from tagrpo.callbacks.throughput import PEAKS
from tagrpo.planning import plan as command
from tagrpo.planning.forecast import needed
from tagrpo.planning.plan import engine_of, model_of, plan, show, workload_of
from tests.helpers import forked


def composed(*overrides):
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        return compose("plan", list(overrides))


def printed(setup, gpu="h100"):
    console = Console(record=True, width=400)
    show(setup, gpu, console)
    return console.export_text()


def test_the_demo_is_planned_from_its_settings_and_fits(tiny_policy):
    setup = plan(composed("experiment=ta_grpo", f"model.path={tiny_policy}", "gpu=l40s"))
    # Eight questions with three rephrasings and eight samples each, on one CPU; 48 iterations.
    assert (setup.ranks, setup.responses, setup.prompts, setup.iterations) == (1, 8 * 4 * 8, 8, 48)
    assert (setup.mean, setup.assumed, setup.memory) == (20, True, 44.4), "half of 40 tokens"
    assert needed(setup) == []
    text = printed(setup, "l40s")
    for said in (
        "1 × l40s, 44 GiB each",
        "GPU, in an update",
        "activations",
        "GPU hours of 48 iterations",
        "Assumed: responses of 20 tokens on average, a guess",
        "It fits: at most 2.",
        "callbacks.checkpoint.keep=2",
    ):
        assert said in text
    assert "Idle" not in text


def test_hours_are_told_with_a_range_that_a_known_length_narrows(tiny_policy):
    texts = [
        printed(plan(composed("experiment=ta_grpo", f"model.path={tiny_policy}", *more)))
        for more in ([], ["response_tokens=20"])
    ]
    found = [
        [
            float(n)
            for n in re.search(r"GPU hours of 48 iterations: (\S+), from (\S+) to (\S+)\.\n", text).groups()
        ]
        for text in texts
    ]
    for (middle, low, high), factor in zip(found, (1.97, 1.8), strict=True):
        assert (middle / low, high / middle) == pytest.approx((factor, factor), rel=0.02)
    assert found[0][0] == found[1][0], "it is the length that was assumed"
    assert ["a guess" in text for text in texts] == [True, False]


PAPER = ("scale=paper", "data.train.path=x", "data.evaluation.test.path=y", "experiment=ta_grpo")


def test_a_run_on_several_nodes_is_planned_with_all_their_gpus(tmp_path):
    # A model that is wide and shallow: as large as a real one where it matters, and planned at once.
    Qwen3Config(
        vocab_size=32000, hidden_size=4096, intermediate_size=12288, num_hidden_layers=3, num_attention_heads=32,
        num_key_value_heads=8, head_dim=128,
    ).save_pretrained(tmp_path)  # fmt: skip
    model = ("model=pretrained", f"model.path={tmp_path}", "trainer.num_nodes=2")
    cfg = composed(*PAPER, *model, "gpu=l40s", "questions=2560")
    setup = plan(cfg)
    assert (setup.ranks, setup.nodes, setup.iterations, setup.checkpointing) == (16, 2, 2 * 10, True)
    assert (setup.kl, setup.copies, setup.replicas) == (True, 2, 1), "the loss has a KL term"
    weights = (
        4 * (32000 * 4096 * 2 + 3 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 12288)) / 16 / 2**30
    )
    update = setup.updating()
    assert update["weights"] == pytest.approx(weights, rel=0.05)
    assert update["optimizer"] == pytest.approx(2 * weights, rel=0.05), "of a fused optimizer too"
    assert min(update.values()) >= 0
    assert setup.sampling()["engine"] == pytest.approx(0.4 * 44.4)
    assert needed(setup) == []
    cfg.policy.token_budget = 2**18
    lines = needed(plan(cfg))
    assert lines[0].startswith("policy.token_budget="), "an L40S has no room for 262,144 tokens"
    assert "It does not fit" in printed(plan(cfg))
    cfg.policy.token_budget = int(lines[0].partition("=")[2].partition(",")[0])
    assert needed(plan(cfg)) == [], "the advice is good"


def test_replicas_are_read_where_the_strategy_has_them(tiny_policy):
    setup = plan(composed(*PAPER, "model=pretrained", f"model.path={tiny_policy}", "++strategy.replicas=2"))
    assert (setup.replicas, setup.ranks) == (2, 8)
    assert setup.updating()["weights"] == pytest.approx(4 * setup.parameters / 4 / 2**30)


def test_lora_servers_and_an_engine_in_transformers_are_seen(tiny_policy):
    base = ("experiment=ta_grpo", f"model.path={tiny_policy}")
    assert workload_of(composed(*base, "lora=default"), 1)["copies"] == 1
    assert workload_of(composed(*base, "policy.anchor=own"), 1)["prompts"] == 4 * 8
    gpu, large = composed(*base).gpus.h100, {"parameters": 2**32, "layers": 2, "keys": 32, "context": 4096}
    shared = engine_of(composed(*base, "rollout=vllm", "rollout.engine.tensor_parallel_size=4"), gpu, large)
    assert (shared["asleep"], shared["held"], shared["team"]) == (0.0, 2.0, 4), (
        "8 GiB in bfloat16 on four GPUs"
    )
    assert (shared["context"], shared["token"] * 2**30) == (128 + 40, 2 * 2 * 32 * 2 / 4), (
        "as long as the data need"
    )
    longer = engine_of(composed(*base, "rollout=vllm", "rollout.engine.max_model_len=9999"), gpu, large)
    assert (longer["context"], longer["servers"]) == (4096, 0), "as far as the model's context goes"
    unset = engine_of(composed(*base, "rollout=vllm", "rollout.engine.max_model_len=null"), gpu, large)
    assert unset["context"] == 4096
    own = engine_of(composed(*base), gpu, {**large, "parameters": 2**30})
    assert own["asleep"] == 4.0, "a copy of the weights in float32"
    assert own["awake"] == pytest.approx(4.0 + 4 * 2 * 2 * 32 * 64 * (128 + 40) / 2**30), (
        "and keys and values"
    )


def test_servers_are_told_with_their_gpus_their_time_and_what_is_idle(tiny_policy):
    base = ("experiment=ta_grpo", f"model.path={tiny_policy}", "rollout=vllm_server", "response_tokens=20")
    urls = ("rollout.engine.url=[http://a:1,http://b:1,http://c:1]", "gpus_per_server=2")
    assert plan(composed(*base)).servers == 1
    setup, ahead = (plan(composed(*base, *urls, *more)) for more in ([], ["rollout.ahead=1"]))
    assert (setup.servers, setup.team, setup.ahead, ahead.ahead) == (6, 2, False, True)
    assert setup.updating()["engine"] == setup.sampling()["engine"] == 0, "on GPUs of their own"
    learn, draw = setup.update_seconds(), setup.sampling_seconds()
    numbers = r"hours of 48 iterations: (\S+), from .*\nIdle of these: (\S+) of 1 GPUs that train, (\S+) of 6 of servers"
    for each, seconds in ((setup, learn + draw), (ahead, max(learn, draw))):
        found = [float(n) for n in re.search(numbers, printed(each)).groups()]
        expected = [7 * seconds, seconds - learn, 6 * (seconds - draw)]
        assert found == pytest.approx([48 * each / 3600 for each in expected], rel=0.01)


def test_adapters_and_a_list_of_devices_are_planned(tiny_policy):
    settings = (
        "experiment=ta_grpo",
        f"model.path={tiny_policy}",
        "rollout=vllm",
        "rollout.engine.sleep=false",
    )
    whole, adapted = (
        plan(composed(*settings, *more, "trainer.devices=[0,2]")) for more in ([], ["lora=default"])
    )
    assert whole.ranks == adapted.ranks == 2
    assert adapted.updating()["optimizer"] < whole.updating()["optimizer"]


def test_a_plan_leaves_no_file_behind(tiny_policy, tmp_path):
    options = ["model=pretrained", f"model.path={tiny_policy}", "experiment=grpo"]
    code, output = forked("plan", *options, folder=tmp_path)
    assert code == 0, output
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_gpu_is_refused_and_one_of_ones_own_is_taken(tiny_policy):
    base = ("experiment=ta_grpo", f"model.path={tiny_policy}")
    with pytest.raises(ValueError, match="Expected gpu .*h200, h100"):
        plan(composed(*base, "gpu=abacus"))
    mine = "+gpus.mine={memory: 10, rate: 1e12, bandwidth: 1e11, rows: 8}"
    assert plan(composed(*base, "gpu=mine", mine)).memory == 10


@pytest.mark.parametrize("name", ["gpus_per_node", "gpus_per_server"])
def test_a_node_or_server_without_gpus_is_refused(tiny_policy, name):
    with pytest.raises(ValueError, match=f"Expected {name}.*0"):
        command.check_settings(
            composed("experiment=ta_grpo", f"model.path={tiny_policy}", "rollout=vllm_server", f"{name}=0")
        )


@pytest.mark.parametrize("tokens", [0, 41, "many"])
def test_a_mean_response_that_no_response_can_have_is_refused(tiny_policy, tokens):
    with pytest.raises(ValueError, match=r"Expected response_tokens.*=40"):
        plan(composed("experiment=ta_grpo", f"model.path={tiny_policy}", f"response_tokens={tokens}"))


def test_sizes_of_a_model_are_those_of_its_parameters(tiny_policy):
    model = model_of(composed("experiment=ta_grpo", f"model.path={tiny_policy}"))
    real = AutoModelForCausalLM.from_pretrained(tiny_policy)
    assert model["parameters"] == model["trained"] == sum(p.numel() for p in real.parameters())
    assert model["root"] + sum(p.numel() for p in real.model.layers.parameters()) == model["parameters"]
    adapted = model_of(composed("experiment=ta_grpo", f"model.path={tiny_policy}", "lora=default"))
    assert 0 < adapted["trained"] < adapted["parameters"] - model["parameters"] + 1


PUBLISHED = {
    "llama3.1_8b": 8_030_261_248,
    "llama3.2_1b": 1_235_814_400,
    "llama3.2_1b_base": 1_235_814_400,
    "llama3.2_3b": 3_212_749_824,
    "llama3.2_3b_base": 3_212_749_824,
    "qwen2.5_32b": 32_763_876_352,
    "qwen2.5_7b": 7_615_616_512,
    "qwen2.5_math_1.5b": 1_543_714_304,
    "qwen3_1.7b": 1_720_574_976,
    "qwen3_4b": 4_022_468_096,
    "r1_qwen_1.5b": 1_543_714_304 + 151936 * 1536,  # Qwen2.5-Math-1.5B with a head of its own
    "r1_qwen_7b": 7_615_616_512,
    "smollm2_135m_hub": 134_515_008,
}


def test_models_of_the_hub_come_with_their_sizes():
    folder = Path(tagrpo.configs.__file__).parent / "model"
    settings = {file.stem: yaml.safe_load(file.read_text()).get("path", "") for file in folder.glob("*.yaml")}
    on_the_hub = {name: path for name, path in settings.items() if re.fullmatch(r"[\w-]+/[\w.-]+", path)}
    assert on_the_hub.keys() == PUBLISHED.keys()
    known = yaml.safe_load(Path(command.__file__).with_name("models.yaml").read_text())
    assert known.keys() == set(on_the_hub.values())


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.runs if number % 4 else [])
        for number, name in enumerate(PUBLISHED)
    ],
)
def test_they_have_as_many_parameters_as_is_published(name, monkeypatch):
    monkeypatch.setattr("transformers.utils.hub.hf_hub_download", None)  # nothing is asked for there
    assert model_of(composed(*PAPER, f"model={name}"))["parameters"] == PUBLISHED[name]


def test_the_papers_run_is_planned_without_a_hub():
    setup = plan(composed(*PAPER, "model=qwen3_4b", "questions=7498"))
    assert needed(setup) == []
    assert (setup.context, setup.iterations) == (4096 + 3072, 58), (
        "the longest prompt and response of an evaluation"
    )
    assert sum(setup.sampling().values()) == pytest.approx(43.7, abs=0.05)
    # Estimated with other means: 25 GPU hours where responses have about 900 tokens.
    known = plan(composed(*PAPER, "model=qwen3_4b", "questions=7498", "response_tokens=900"))
    hours = 58 * 8 * (known.update_seconds() + known.sampling_seconds()) / 3600
    assert hours / known.spread() < 25 < hours * known.spread()


def test_rates_of_gpus_are_those_that_the_share_of_the_peak_is_of():
    planned = {name.upper(): gpu.rate for name, gpu in composed("experiment=grpo").gpus.items()}
    assert {name: float(planned[name]) for name in PEAKS if name in planned} == {
        name: PEAKS[name] for name in ("H200", "H100", "A100", "L40S")
    }


def test_a_number_of_rephrasings_is_asked_for(tiny_policy):
    with pytest.raises(ValueError, match=r"data\.num_rephrasings to be a number"):
        plan(composed("experiment=ta_grpo", f"model.path={tiny_policy}", "data.num_rephrasings=null"))
