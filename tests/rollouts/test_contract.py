"""What every engine promises, tested on each of them."""

from __future__ import annotations

import gc
import hashlib
import json
import runpy
import threading
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tagrpo.modules.policy.lora import LoraSettings
from tagrpo.modules.policy.model import load_causal_lm
from tagrpo.modules.policy.sharding import full_tensors
from tagrpo.rollouts import SamplingConfig, TransformersEngine
from tagrpo.rollouts.servers.vllm_server import VLLMServerEngine
from tagrpo.types import Engine, Request

PROMPTS = [torch.tensor([10, 11, 12, 13]), torch.tensor([20, 21]), torch.tensor([30, 31, 32, 33, 34, 35])]
SAMPLES = [3, 1, 20]


@pytest.fixture(scope="module")
def engines(request, tiny_policy):
    """Name → engine, made when it is first asked for."""

    make = {
        "transformers": lambda: TransformersEngine(str(tiny_policy)),
        "vllm": lambda: request.getfixturevalue("vllm_engine"),
        "vllm_server": lambda: VLLMServerEngine(
            str(tiny_policy),
            request.getfixturevalue("vllm_server"),
            dtype="float32",
            timeout=600,
            patience=600,
        ),
    }
    made = {}

    def engine(name):
        if name not in made:
            made[name] = make[name]()
            gc.freeze()  # transformers collects garbage twice a call: half a second with these libraries imported
        return made[name]

    yield engine
    gc.unfreeze()


@pytest.fixture(
    params=[
        "transformers",
        pytest.param("vllm", marks=pytest.mark.vllm),
        pytest.param("vllm_server", marks=[pytest.mark.vllm, pytest.mark.slow]),
    ]
)
def engine(request, engines, tiny_policy):
    engine = engines(request.param)
    engine.sync(AutoModelForCausalLM.from_pretrained(tiny_policy).named_parameters())
    return engine


def generate(engine, prompts, num_samples, sampling, seed, *deliver):
    return engine.generate(Request(prompts, num_samples, sampling, seed), *deliver)


def logprobs_of(model, prompt, ids, temperature=1.0):
    with torch.no_grad():
        logits = model(torch.cat([prompt, ids])[None]).logits[0, len(prompt) - 1 : -1] / temperature
    return torch.log_softmax(logits, -1)[torch.arange(len(ids)), ids]


def tokens(results):
    return [[sample.token_ids.tolist() for sample in samples] for samples in results]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_of_a_plain_forward(engine, tiny_policy, temperature):
    model = AutoModelForCausalLM.from_pretrained(tiny_policy)
    results = generate(
        engine, PROMPTS, SAMPLES, SamplingConfig(max_new_tokens=12, temperature=temperature), seed=1
    )
    for prompt, samples in zip(PROMPTS, results, strict=True):
        for sample in samples:
            expected = logprobs_of(model, prompt, sample.token_ids, temperature)
            torch.testing.assert_close(sample.logprobs, expected, atol=1e-4, rtol=1e-4)


def test_each_prompt_has_as_many_samples_as_were_asked_for_even_none(engine):
    results = generate(engine, PROMPTS, [2, 0, 17], SamplingConfig(max_new_tokens=5), seed=0)
    assert [len(samples) for samples in results] == [2, 0, 17]
    for sample in (sample for samples in results for sample in samples):
        assert sample.token_ids.dtype == torch.long
        assert sample.logprobs.dtype == torch.float32
        assert sample.token_ids.shape == sample.logprobs.shape
        assert 1 <= len(sample.token_ids) <= 5
    assert generate(engine, [], [], SamplingConfig(max_new_tokens=5), seed=0) == []
    assert generate(engine, PROMPTS[:1], [0], SamplingConfig(max_new_tokens=5), seed=0) == [[]]


def test_responses_end_at_the_stop_token_or_at_the_limit(engine, tiny_policy):
    stop = AutoTokenizer.from_pretrained(tiny_policy).eos_token_id
    results = generate(engine, [PROMPTS[0]], [64], SamplingConfig(max_new_tokens=6), seed=2)[0]
    for sample in results:
        ended = sample.token_ids.tolist()[-1] == stop
        assert sample.truncated == (not ended)
        assert stop not in sample.token_ids.tolist()[:-1]
        assert len(sample.token_ids) == 6 or ended
    assert len({sample.truncated for sample in results}) == 2, "both ways to end occur"


def test_it_has_all_that_an_engine_needs(engine):
    assert isinstance(engine, Engine)
    engine.sleep()
    engine.sleep()
    assert len(generate(engine, PROMPTS[:1], [2], SamplingConfig(max_new_tokens=2), 0)[0]) == 2, (
        "and wakes up"
    )


def test_the_seed_decides(engine):
    sampling = SamplingConfig(max_new_tokens=8)
    first = tokens(generate(engine, PROMPTS, SAMPLES, sampling, 5))
    assert first == tokens(generate(engine, PROMPTS, SAMPLES, sampling, 5))
    assert first != tokens(generate(engine, PROMPTS, SAMPLES, sampling, 6))
    assert len({tuple(ids) for ids in first[2]}) > 15, "samples of one prompt differ"


def test_frequencies_are_those_of_the_model(engine, tiny_policy):
    model = AutoModelForCausalLM.from_pretrained(tiny_policy)
    count = 2000
    samples = generate(engine, [PROMPTS[0]], [count], SamplingConfig(max_new_tokens=1), seed=0)[0]
    observed = (
        torch.bincount(torch.cat([s.token_ids for s in samples]), minlength=model.config.vocab_size) / count
    )
    expected = model(PROMPTS[0][None]).logits[0, -1].softmax(-1)
    # Four standard deviations of a frequency.
    assert ((observed - expected).abs() < 4 * (expected * (1 - expected) / count).sqrt() + 2e-3).all()


def test_results_follow_the_order_of_the_prompts(engine):
    generator = torch.Generator().manual_seed(0)
    prompts = [
        torch.randint(3, 60, (length,), generator=generator) for length in (9, 2, 30, 4, 17, 3, 30, 12)
    ]
    greedy = SamplingConfig(max_new_tokens=10, temperature=0.0)
    counts = [1, 2, 1, 3, 1, 1, 2, 1]
    straight = tokens(generate(engine, prompts, counts, greedy, seed=0))
    order = [5, 2, 7, 0, 3, 6, 1, 4]
    shuffled = tokens(
        generate(engine, [prompts[p] for p in order], [counts[p] for p in order], greedy, seed=0)
    )
    assert shuffled == [straight[p] for p in order]
    assert len({tuple(samples[0]) for samples in straight}) > 5, "most prompts have an answer of their own"


def test_each_prompt_is_delivered_once_and_never_two_at_a_time(engine):
    delivered, busy = {}, threading.Lock()

    def deliver(prompt, completions):
        assert busy.acquire(blocking=False)
        assert prompt not in delivered
        delivered[prompt] = completions
        busy.release()

    results = generate(engine, PROMPTS, [2, 0, 9], SamplingConfig(max_new_tokens=8), 0, deliver)
    assert delivered.keys() == {0, 2}
    for prompt, completions in delivered.items():
        assert completions == results[prompt]


def fused(parameters):
    """Parameters under vLLM's names: q, k, v and gate, up one below the other; the tied head once more."""
    result = {}
    for name, tensor in parameters.items():
        for parts, whole in (
            (("q_proj", "k_proj", "v_proj"), "qkv_proj"),
            (("gate_proj", "up_proj"), "gate_up_proj"),
        ):
            if any(f".{part}." in name for part in parts):
                first = next(part for part in parts if f".{part}." in name)
                stem = [name.replace(first, part) for part in parts]
                name, tensor = name.replace(first, whole), torch.cat([parameters[part] for part in stem])
        result[name] = tensor
    return {**result, "lm_head.weight": parameters["model.embed_tokens.weight"]}


def digests(parameters):
    return {name: hashlib.sha256(t.detach().numpy().tobytes()).hexdigest() for name, t in parameters.items()}


def held_by(engine):
    """Digests of what the engine computes with, and whether its names are vLLM's."""
    if isinstance(engine, TransformersEngine):
        return digests(dict(engine.model.named_parameters())), False
    if isinstance(engine, VLLMServerEngine):
        (server,) = engine.servers.values()
        (results,) = json.loads(server.post("/collective_rpc", {"method": "weight_digests"}))["results"]
        return results, True
    digests_of = runpy.run_path(str(Path(__file__).parents[1] / "vllm_digests.py"))["digests_of"]
    return engine.llm.apply_model(digests_of)[0], True


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=4, alpha=12.0)], ids=["full", "lora"])
def test_after_every_sync_the_engine_holds_the_trainers_weights_and_says_the_same(engine, tiny_policy, lora):
    model = load_causal_lm(tiny_policy, lora=lora)
    greedy = SamplingConfig(max_new_tokens=10, temperature=0.0)
    outputs = []
    for step in range(3):
        torch.manual_seed(step)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.randn_like(parameter) * 0.1)
        engine.sync(full_tensors(model))
        held, names_of_vllm = held_by(engine)
        expected = {name: tensor.detach() for name, tensor in full_tensors(model)}
        assert held == digests(fused(expected) if names_of_vllm else expected)
        results = generate(engine, PROMPTS, [1, 1, 1], greedy, seed=0)
        for prompt, (sample,) in zip(PROMPTS, results, strict=True):
            reference = model.generate(prompt[None], max_new_tokens=10, do_sample=False)[0, len(prompt) :]
            assert sample.token_ids.tolist() == reference.tolist()
            logprobs = logprobs_of(model, prompt, sample.token_ids)
            torch.testing.assert_close(sample.logprobs, logprobs, atol=1e-4, rtol=1e-4)
        outputs.append(tokens(results))
    assert outputs[0] != outputs[1] != outputs[2], "the weights changed, so must the output"


def test_sampling_leaves_torchs_randomness_and_threads_alone(engine):
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    generate(engine, PROMPTS, SAMPLES, SamplingConfig(max_new_tokens=4), seed=0)
    assert torch.equal(torch.rand(2), expected)
    torch.set_num_threads(1)
    assert torch.get_num_threads() == 1


def test_a_prompt_that_leaves_no_room_is_refused(engine):
    with pytest.raises(ValueError, match="max_new_tokens is 300"):
        generate(engine, [PROMPTS[0]], [1], SamplingConfig(max_new_tokens=300), seed=0)
