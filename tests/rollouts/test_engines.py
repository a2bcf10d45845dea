"""What every engine promises, tested on each of them."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

from tagrpo.rollouts import SamplingConfig, TransformersEngine
from tagrpo.rollouts.base import check_context
from tagrpo.rollouts.transformers import draw, stop_token_ids

PROMPTS = [torch.tensor([10, 11, 12, 13]), torch.tensor([20, 21]), torch.tensor([30, 31, 32, 33, 34, 35])]
SAMPLES = [3, 1, 4]


@pytest.fixture(params=["transformers", pytest.param("vllm", marks=pytest.mark.vllm)])
def engine(request, tiny_policy):
    engine = (
        TransformersEngine(str(tiny_policy))
        if request.param == "transformers"
        else request.getfixturevalue("vllm_engine")
    )
    engine.sync(AutoModelForCausalLM.from_pretrained(tiny_policy).named_parameters())
    return engine


def logprobs_of(model, prompt, ids, temperature=1.0):
    with torch.no_grad():
        logits = model(torch.cat([prompt, ids])[None]).logits[0, len(prompt) - 1 : -1] / temperature
    return torch.log_softmax(logits, -1)[torch.arange(len(ids)), ids]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_of_a_plain_forward(engine, tiny_policy, temperature):
    model = AutoModelForCausalLM.from_pretrained(tiny_policy)
    results = engine.generate(PROMPTS, SAMPLES, SamplingConfig(max_new_tokens=12, temperature=temperature), seed=1)
    assert [len(samples) for samples in results] == SAMPLES
    for prompt, samples in zip(PROMPTS, results, strict=True):
        for sample in samples:
            expected = logprobs_of(model, prompt, sample.token_ids, temperature)
            torch.testing.assert_close(sample.logprobs, expected, atol=1e-4, rtol=1e-4)


def test_responses_end_at_the_stop_token_or_at_the_limit(engine, tiny_policy):
    stop = AutoTokenizer.from_pretrained(tiny_policy).eos_token_id
    results = engine.generate([PROMPTS[0]], [64], SamplingConfig(max_new_tokens=6), seed=2)[0]
    for sample in results:
        ended = sample.token_ids.tolist()[-1] == stop
        assert sample.truncated == (not ended)
        assert stop not in sample.token_ids.tolist()[:-1]
        assert len(sample.token_ids) == 6 or ended
    assert any(sample.truncated for sample in results)


def test_the_seed_decides(engine):
    sampling = SamplingConfig(max_new_tokens=8)

    def tokens(seed):
        results = engine.generate(PROMPTS, SAMPLES, sampling, seed)
        return [sample.token_ids.tolist() for samples in results for sample in samples]

    assert tokens(5) == tokens(5)
    assert tokens(5) != tokens(6)
    assert len({tuple(ids) for ids in tokens(5)}) > 4, "samples of one prompt differ"


def test_greedy_output_equals_the_trainers_after_every_sync(engine, tiny_policy):
    model = AutoModelForCausalLM.from_pretrained(tiny_policy)
    greedy = SamplingConfig(max_new_tokens=10, temperature=0.0)
    outputs = []
    for step in range(3):
        torch.manual_seed(step)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
        engine.sync(model.named_parameters())
        results = engine.generate(PROMPTS, [1, 1, 1], greedy, seed=0)
        for prompt, (sample,) in zip(PROMPTS, results, strict=True):
            expected = model.generate(prompt[None], max_new_tokens=10, do_sample=False)[0, len(prompt) :]
            assert sample.token_ids.tolist() == expected.tolist()
            torch.testing.assert_close(
                sample.logprobs, logprobs_of(model, prompt, sample.token_ids), atol=1e-4, rtol=1e-4
            )
        outputs.append([samples[0].token_ids.tolist() for samples in results])
    assert outputs[0] != outputs[1] != outputs[2], "the weights changed, so must the output"


def test_sampling_leaves_torchs_randomness_and_threads_alone(engine):
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    engine.generate(PROMPTS, SAMPLES, SamplingConfig(max_new_tokens=4), seed=0)
    assert torch.equal(torch.rand(2), expected)
    torch.set_num_threads(1)
    assert torch.get_num_threads() == 1


def test_a_prompt_that_leaves_no_room_is_refused(engine):
    with pytest.raises(ValueError, match="max_new_tokens is 300"):
        engine.generate([PROMPTS[0]], [1], SamplingConfig(max_new_tokens=300), seed=0)


def test_frequencies_are_those_of_the_model(tiny_policy):
    engine = TransformersEngine(str(tiny_policy))
    model = AutoModelForCausalLM.from_pretrained(tiny_policy)
    engine.sync(model.named_parameters())
    first = [s.token_ids[0] for s in engine.generate([PROMPTS[0]], [4000], SamplingConfig(max_new_tokens=1), seed=0)[0]]
    observed = torch.bincount(torch.stack(first), minlength=model.config.vocab_size) / 4000
    expected = model(PROMPTS[0][None]).logits[0, -1].softmax(-1)
    # Four standard deviations of a frequency from 4,000 draws.
    assert ((observed - expected).abs() < 4 * (expected * (1 - expected) / 4000).sqrt() + 1e-3).all()


def test_nucleus_and_top_k_keep_the_likeliest_and_report_untruncated_logprobs():
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().expand(2000, 4)
    generator = torch.Generator().manual_seed(0)
    chosen, logprobs = draw(logits, SamplingConfig(top_p=0.75), generator)
    assert set(chosen.tolist()) == {0, 1}
    assert abs(float((chosen == 0).float().mean()) - 0.625) < 0.05
    torch.testing.assert_close(logprobs, torch.tensor([0.5, 0.3]).log()[chosen])
    chosen, _ = draw(logits, SamplingConfig(top_k=3), generator)
    assert set(chosen.tolist()) == {0, 1, 2}


def test_weights_of_another_model_are_refused(tiny_policy):
    engine = TransformersEngine(str(tiny_policy))
    parameters = dict(AutoModelForCausalLM.from_pretrained(tiny_policy).named_parameters())
    with pytest.raises(ValueError, match="no such parameter"):
        engine.sync([("model.unknown", torch.zeros(1))])
    with pytest.raises(ValueError, match=r"model\.norm\.weight did not come"):
        engine.sync([item for item in parameters.items() if item[0] != "model.norm.weight"])


def test_rows_per_batch_do_not_lose_or_mix_responses(tiny_policy):
    model = AutoModelForCausalLM.from_pretrained(tiny_policy)
    engine = TransformersEngine(str(tiny_policy), max_rows=3)
    engine.sync(model.named_parameters())
    results = engine.generate(PROMPTS, [2, 0, 5], SamplingConfig(max_new_tokens=5), seed=0)
    assert [len(samples) for samples in results] == [2, 0, 5]
    for prompt, samples in zip(PROMPTS, results, strict=True):
        for sample in samples:
            torch.testing.assert_close(
                sample.logprobs, logprobs_of(model, prompt, sample.token_ids), atol=1e-4, rtol=1e-4
            )


def test_another_architecture_samples_too(tmp_path):
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=50, n_embd=16, n_layer=1, n_head=2, n_positions=64, eos_token_id=1, bos_token_id=1)
    model = GPT2LMHeadModel(config).eval()
    model.save_pretrained(tmp_path)
    engine = TransformersEngine(str(tmp_path))
    engine.sync(model.named_parameters())
    prompts = [torch.tensor([5, 6, 7]), torch.tensor([8])]
    for prompt, samples in zip(
        prompts, engine.generate(prompts, [2, 2], SamplingConfig(max_new_tokens=6), 0), strict=True
    ):
        for sample in samples:
            torch.testing.assert_close(
                sample.logprobs, logprobs_of(model, prompt, sample.token_ids), atol=1e-4, rtol=1e-4
            )


def test_sampling_options_out_of_range_are_refused():
    for options in ({"temperature": -1.0}, {"top_p": 0.0}, {"top_k": -1}, {"max_new_tokens": 0}):
        with pytest.raises(ValueError, match=r"rollout\.sampling"):
            SamplingConfig(**options)


def test_a_model_without_a_stop_token_is_refused(tmp_path):
    GPT2Config(vocab_size=8, eos_token_id=None, bos_token_id=None).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="eos_token_id"):
        stop_token_ids(str(tmp_path))


def test_the_context_check_counts_prompt_and_response():
    check_context([torch.zeros(6)], SamplingConfig(max_new_tokens=4), 10)
    with pytest.raises(ValueError, match="a prompt has 7"):
        check_context([torch.zeros(7)], SamplingConfig(max_new_tokens=4), 10)
