"""What is particular to engines in this process; what they share is in test_contract.py."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, MambaConfig, MambaForCausalLM

from tagrpo.rollouts import SamplingConfig, TransformersEngine, VLLMEngine
from tagrpo.rollouts.engines import transformers as transformers_engine
from tagrpo.rollouts.engines.base import check_context, stop_token_ids
from tagrpo.rollouts.engines.transformers import draw
from tagrpo.types import Request

PROMPTS = [torch.tensor([10, 11, 12, 13]), torch.tensor([20, 21]), torch.tensor([30, 31, 32, 33, 34, 35])]


def logprobs_of(model, prompt, ids, temperature=1.0):
    with torch.no_grad():
        logits = model(torch.cat([prompt, ids])[None]).logits[0, len(prompt) - 1 : -1] / temperature
    return torch.log_softmax(logits, -1)[torch.arange(len(ids)), ids]


def test_nucleus_and_top_k_keep_the_likeliest_and_report_untruncated_logprobs():
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().expand(2000, 4)
    generator = torch.Generator().manual_seed(0)
    chosen, logprobs = draw(logits, SamplingConfig(top_p=0.75), generator)
    assert set(chosen.tolist()) == {0, 1}
    assert abs(float((chosen == 0).float().mean()) - 0.625) < 0.05
    torch.testing.assert_close(logprobs, torch.tensor([0.5, 0.3]).log()[chosen])
    chosen, _ = draw(logits, SamplingConfig(top_k=3), generator)
    assert set(chosen.tolist()) == {0, 1, 2}


def test_draws_from_chosen_rows_stay_in_their_rows_and_in_the_nucleus_of_each():
    logits = torch.full((5000, 3), -40.0)
    logits[torch.arange(5000), torch.arange(5000) % 3] = 0.0
    rows = torch.arange(4999, -1, -1).repeat(4)
    chosen, logprobs = draw(logits, SamplingConfig(top_p=0.9), torch.Generator().manual_seed(0), rows)
    assert torch.equal(chosen, rows % 3)
    torch.testing.assert_close(logprobs, torch.zeros(20000))
    chosen, _ = draw(logits, SamplingConfig(temperature=0.0), torch.Generator().manual_seed(0), rows)
    assert torch.equal(chosen, rows % 3)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_logits_that_give_no_probabilities_are_refused(temperature, value):
    logits = torch.zeros(4, 3)
    logits[1] = -torch.inf
    logits[2, 2] = value
    sampling, generator = SamplingConfig(temperature=temperature), torch.Generator().manual_seed(0)
    with pytest.raises(FloatingPointError, match="finite .*2 of 4 sequences"):
        draw(logits, sampling, generator)
    logits[1:3, :2] = torch.tensor([0.0, -torch.inf])
    logits[2, 2] = 0.0
    chosen, logprobs = draw(logits, sampling, generator)  # tokens without any probability are no fault
    assert chosen[1] == 0
    assert logprobs.isfinite().all()


def test_weights_of_another_model_are_refused(tiny_policy):
    engine = TransformersEngine(str(tiny_policy))
    parameters = dict(AutoModelForCausalLM.from_pretrained(tiny_policy).named_parameters())
    with pytest.raises(ValueError, match="no such parameter"):
        engine.sync([("model.unknown", torch.zeros(1))])
    with pytest.raises(ValueError, match=r"got none of model\.norm\.weight"):
        engine.sync([item for item in parameters.items() if item[0] != "model.norm.weight"])


def test_rows_per_batch_do_not_lose_or_mix_responses(tiny_policy):
    model = AutoModelForCausalLM.from_pretrained(tiny_policy)
    engine = TransformersEngine(str(tiny_policy), max_rows=3)
    engine.sync(model.named_parameters())
    results = engine.generate(Request(PROMPTS, [2, 0, 5], SamplingConfig(max_new_tokens=5), seed=0))
    assert [len(samples) for samples in results] == [2, 0, 5]
    for prompt, samples in zip(PROMPTS, results, strict=True):
        for sample in samples:
            torch.testing.assert_close(
                sample.logprobs, logprobs_of(model, prompt, sample.token_ids), atol=1e-4, rtol=1e-4
            )


@pytest.mark.parametrize("lengths", [[20, 20], [17, 20, 19], [20, 30, 25, 18]])
def test_a_common_head_is_encoded_once_and_responses_are_those_of_whole_prompts(
    tiny_policy, lengths, monkeypatch
):
    model = AutoModelForCausalLM.from_pretrained(tiny_policy)
    engine = TransformersEngine(str(tiny_policy), dtype="float64")
    engine.sync(model.named_parameters())
    generator = torch.Generator().manual_seed(sum(lengths))
    vocabulary = model.config.vocab_size
    head = torch.randint(vocabulary, (16,), generator=generator)
    prompts = []
    for number, length in enumerate(lengths):
        rest = torch.randint(vocabulary, (length - 16,), generator=generator)
        rest[0] = number
        prompts.append(torch.cat([head, rest]))
    encoded = []
    forward = engine.model.forward
    monkeypatch.setattr(
        engine.model, "forward", lambda **inputs: encoded.append(inputs["input_ids"]) or forward(**inputs)
    )
    request = Request(prompts, [3] * len(prompts), SamplingConfig(max_new_tokens=8), seed=0)
    shared = engine.generate(request)
    assert torch.equal(encoded[0], head[None])
    assert encoded[1].shape == (len(prompts), max(lengths) - 16)
    monkeypatch.setattr(transformers_engine, "LEAST_HEAD", 17)
    encoded.clear()
    whole = engine.generate(request)
    assert encoded[0].shape == (len(prompts), max(lengths))
    for ours, theirs in zip(shared, whole, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert torch.equal(one.token_ids, other.token_ids)
            torch.testing.assert_close(one.logprobs, other.logprobs, atol=1e-6, rtol=0)


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 40])
def test_every_interval_ends_where_numpy_says(rows):
    logprobs = torch.log_softmax(torch.randn(rows, 50, generator=torch.Generator().manual_seed(rows)), -1)
    mass = np.exp(logprobs.double().numpy()).cumsum(-1)
    expected = mass / mass[:, -1:] + np.arange(rows)[:, None]
    found = transformers_engine._interval_ends(logprobs).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-15)
    assert (found[:, -1] == np.arange(1, rows + 1)).all()


def test_responses_are_computed_together_while_their_tokens_agree_and_are_drawn_as_if_alone(
    tmp_path, monkeypatch
):
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=4, n_embd=8, n_layer=1, n_head=2, n_positions=16, eos_token_id=1, bos_token_id=1
    )
    model = GPT2LMHeadModel(config).eval()
    model.save_pretrained(tmp_path)
    engine = TransformersEngine(str(tmp_path), max_rows=8000)
    engine.sync(model.named_parameters())
    monkeypatch.setattr(transformers_engine, "COMPACT_BELOW", 1.0)  # finished rows leave at once
    computed = []
    forward = engine.model.forward
    monkeypatch.setattr(
        engine.model, "forward", lambda **inputs: computed.append(inputs["input_ids"]) or forward(**inputs)
    )
    prompts = [torch.tensor([2, 3]), torch.tensor([0])]
    results = engine.generate(Request(prompts, [4000, 4000], SamplingConfig(max_new_tokens=3), 0))

    starts = {
        (p, *row.token_ids[:n].tolist()) for p, rows in enumerate(results) for row in rows for n in (1, 2)
    }
    assert sum(len(ids) for ids in computed[1:]) == len([start for start in starts if start[-1] != 1])
    for prompt, rows in zip(prompts, results, strict=True):
        drawn = Counter(tuple(row.token_ids.tolist()) for row in rows)
        for response in itertools.product(range(4), repeat=3):
            ends = [n for n, token in enumerate(response) if token == 1]
            ids = torch.tensor(response[: ends[0] + 1] if ends else response)
            probability = float(logprobs_of(model, prompt, ids).sum().exp())
            deviation = (probability * (1 - probability) / 4000) ** 0.5
            assert abs(drawn[tuple(ids.tolist())] / 4000 - probability) < 4.5 * deviation


def test_another_architecture_samples_too(tmp_path):
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=50, n_embd=16, n_layer=1, n_head=2, n_positions=64, eos_token_id=1, bos_token_id=1
    )
    model = GPT2LMHeadModel(config).eval()
    model.save_pretrained(tmp_path)
    engine = TransformersEngine(str(tmp_path))
    engine.sync(model.named_parameters())
    prompts = [torch.tensor([5, 6, 7]), torch.tensor([8])]
    results = engine.generate(Request(prompts, [2, 2], SamplingConfig(max_new_tokens=6), 0))
    for prompt, samples in zip(prompts, results, strict=True):
        for sample in samples:
            torch.testing.assert_close(
                sample.logprobs, logprobs_of(model, prompt, sample.token_ids), atol=1e-4, rtol=1e-4
            )


def test_shared_heads_of_keys_are_not_copied_and_nothing_changes(tiny_policy, monkeypatch):
    model = AutoModelForCausalLM.from_pretrained(tiny_policy)
    heads, sampled = set(), []
    attend = torch.nn.functional.scaled_dot_product_attention
    for name in (transformers_engine.GROUPED_ATTENTION, "sdpa"):
        engine = TransformersEngine(str(tiny_policy))
        assert engine.model.config._attn_implementation == transformers_engine.GROUPED_ATTENTION
        engine.model.set_attn_implementation(name)
        engine.sync(model.named_parameters())
        with monkeypatch.context() as patch:
            if name != "sdpa":
                patch.setattr(
                    transformers_engine.F,
                    "scaled_dot_product_attention",
                    lambda q, k, v, **options: (
                        heads.add((q.shape[1], k.shape[1])) or attend(q, k, v, **options)
                    ),
                )
            sampled.append(engine.generate(Request(PROMPTS, [3, 3, 3], SamplingConfig(max_new_tokens=8), 0)))
    assert heads == {(model.config.num_attention_heads, model.config.num_key_value_heads)}
    assert model.config.num_key_value_heads < model.config.num_attention_heads
    for ours, theirs in zip(*(itertools.chain(*results) for results in sampled), strict=True):
        assert ours.token_ids.tolist() == theirs.token_ids.tolist()
        assert torch.equal(ours.logprobs, theirs.logprobs)


def test_a_model_with_recurrent_layers_is_refused(tmp_path):
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "state_size": 4}
    MambaForCausalLM(MambaConfig(vocab_size=50, eos_token_id=1, bos_token_id=1, **sizes)).save_pretrained(
        tmp_path
    )
    with pytest.raises(ValueError, match="Use rollout=vllm"):
        TransformersEngine(str(tmp_path))


def test_a_team_that_does_not_divide_the_ranks_is_refused(tiny_policy):
    with pytest.raises(ValueError, match=r"tensor_parallel_size to divide the 1 ranks.*rollout=vllm_server"):
        VLLMEngine(str(tiny_policy), tensor_parallel_size=2)


TEAM = """
import sys, torch, torch.distributed as dist
from transformers import AutoModelForCausalLM
from tagrpo.rollouts import SamplingConfig, VLLMEngine
from tagrpo.types import Request

dist.init_process_group("gloo")
rank, folder = dist.get_rank(), sys.argv[1]
engine = VLLMEngine(folder, "float32", 64, kv_cache_memory_bytes=2**24, enforce_eager=True, tensor_parallel_size=2)
model = AutoModelForCausalLM.from_pretrained(folder)
prompts = [[torch.tensor([10, 11, 12, 13]), torch.tensor([20, 21])], [torch.tensor([30, 31, 32])], []]
found = []
for scale in (1.0, 2.0):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    engine.sync(model.named_parameters())
    for first, second, seed in ((0, 1, 5), (0, 1, 5), (2, 0, 6)):  # twice the same; then nothing on the first rank
        mine = prompts[second if rank else first]
        delivered = []
        sampling = SamplingConfig(max_new_tokens=6)
        request = Request(mine, [2] * len(mine), sampling, seed + 10 * rank)
        results = engine.generate(request, lambda p, _: delivered.append(p))
        assert sorted(delivered) == list(range(len(mine)))
        found.append([[(s.token_ids, s.logprobs) for s in samples] for samples in results])
        for prompt, samples in zip(mine, found[-1], strict=True):
            assert len(samples) == 2
            for ids, logprobs in samples:
                logits = model(torch.cat([prompt, ids])[None]).logits[0, len(prompt) - 1 : -1]
                exact = torch.log_softmax(logits, -1)[torch.arange(len(ids)), ids].detach()
                torch.testing.assert_close(logprobs, exact, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found[-3], found[-2])
assert str(found[0]) != str(found[3])
torch.save([len(part) for part in found], f"{folder}/rank{rank}.pt")
engine.close()
"""


@pytest.mark.slow
@pytest.mark.vllm
def test_a_team_of_ranks_holds_one_engine_and_each_gets_the_responses_to_its_prompts(tiny_policy, tmp_path):
    folder = shutil.copytree(tiny_policy, tmp_path / "policy")
    (tmp_path / "team.py").write_text(TEAM)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, str(tmp_path / "team.py"), str(folder)],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert [torch.load(folder / f"rank{rank}.pt") for rank in (0, 1)] == [[2, 2, 0] * 2, [1, 1, 2] * 2]


def test_sampling_options_out_of_range_are_refused():
    for options in ({"temperature": -1.0}, {"top_p": 0.0}, {"top_k": -1}, {"max_new_tokens": 0}):
        with pytest.raises(ValueError, match=r"rollout\.sampling"):
            SamplingConfig(**options)


def test_a_model_without_a_stop_token_is_refused(tmp_path):
    GPT2Config(vocab_size=8, eos_token_id=None, bos_token_id=None).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="eos_token_id"):
        stop_token_ids(str(tmp_path))


def test_the_context_check_counts_prompt_and_response():
    sampling = SamplingConfig(max_new_tokens=4)
    check_context(Request([torch.zeros(6)], [1], sampling, 0), 10)
    with pytest.raises(ValueError, match="a prompt has 7"):
        check_context(Request([torch.zeros(7)], [1], sampling, 0), 10)


def test_the_last_bit_goes_with_the_order_of_sums_and_in_float64_it_comes_back(tiny_policy):
    """One forward of a whole response sums in another order than tokens one by one with a cache, in padded batches.

    Before logits are rounded to float32 the difference is far below their last bit in float64, and above it in float32.
    """
    request = Request(PROMPTS, [5, 3, 4], SamplingConfig(max_new_tokens=12, temperature=0.7), 0)

    def differences(dtype):
        model = AutoModelForCausalLM.from_pretrained(tiny_policy).to(dtype)
        engine = TransformersEngine(str(tiny_policy), dtype=str(dtype).removeprefix("torch."), device="cpu")
        engine.sync(model.named_parameters())
        for prompt, completions in zip(PROMPTS, engine.generate(request), strict=True):
            for completion in completions:
                with torch.no_grad():
                    logits = model(torch.cat([prompt, completion.token_ids])[None]).logits[
                        0, len(prompt) - 1 : -1
                    ]
                plain = torch.log_softmax(logits.float() / 0.7, -1)
                yield (
                    (completion.logprobs - plain[torch.arange(len(plain)), completion.token_ids]).abs().max()
                )

    assert not any(differences(torch.float64))
    assert 0 < max(differences(torch.float32)) < 1e-5
