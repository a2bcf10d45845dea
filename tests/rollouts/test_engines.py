"""What is particular to engines in this process; what they share is in test_contract.py."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, MambaConfig

from tagrpo.rollouts import ContinuousBatchingEngine, SamplingConfig, TransformersEngine, VLLMEngine
from tagrpo.rollouts.base import check_context
from tagrpo.rollouts.transformers import draw, stop_token_ids

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


def test_several_gpus_per_colocated_engine_are_refused_with_the_way_out(tiny_policy):
    with pytest.raises(ValueError, match="rollout=vllm_server"):
        VLLMEngine(str(tiny_policy), options={"tensor_parallel_size": 2})


def test_continuous_batching_refuses_recurrent_layers(tmp_path):
    MambaConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, state_size=4, eos_token_id=1, bos_token_id=1
    ).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="rollout=transformers"):
        ContinuousBatchingEngine(str(tmp_path), "float32")


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
