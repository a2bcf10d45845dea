"""Exact success: against enumeration of every sequence of tokens, and against what the engine samples."""

from itertools import product

import pytest
import torch
from scipy.stats import binom
from transformers import AutoModelForCausalLM, AutoTokenizer

from examples.starters.parts import build_answer_tokenizer, build_model
from tagrpo.lab.exact import correct_tokens, exact_success
from tagrpo.lab.tasks.shortest_path import ShortestPathReward
from tagrpo.modules.policy.logprobs import Scorer
from tagrpo.packing.policy import CausalPolicy
from tagrpo.rollouts import TransformersEngine
from tagrpo.types import Request, SamplingConfig

WORDS = ["right", "down", "left", "up", "walk"]
QUESTIONS = {"walk right": ("right down", "down right"), "walk down": ("down",), "walk": ("up up left",)}
reward = ShortestPathReward()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny random policy whose probabilities are far from uniform, and a tokenizer of eight words."""
    path = tmp_path_factory.mktemp("policy")
    tokenizer = build_answer_tokenizer(WORDS)
    torch.manual_seed(1)
    model = build_model(tokenizer)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0 if parameter.dim() > 1 else 1.0)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def tokenizer(folder):
    return AutoTokenizer.from_pretrained(folder)


def success(folder, tokenizer, questions, max_new_tokens, temperature=1.0, token_budget=16384):
    scorer = Scorer(CausalPolicy(AutoModelForCausalLM.from_pretrained(folder)), token_budget=token_budget)
    prompts = [torch.tensor(tokenizer(question).input_ids) for question in questions]
    stops = [tokenizer.eos_token_id]
    correct = [
        correct_tokens(reward.correct_responses(answers), tokenizer, stops, max_new_tokens)
        for answers in questions.values()
    ]
    return exact_success(scorer, prompts, correct, temperature)


def by_brute_force(folder, tokenizer, question, answers, max_new_tokens, temperature):
    """Every sequence that a sampler can return, its probability step by step, its text, the verifier's word."""
    model = AutoModelForCausalLM.from_pretrained(folder).double()
    prompt, total, correct = tokenizer(question).input_ids, 0.0, 0.0
    stop, others = tokenizer.eos_token_id, [t for t in range(len(tokenizer)) if t != tokenizer.eos_token_id]
    sequences = [[*head, stop] for n in range(max_new_tokens) for head in product(others, repeat=n)]
    sequences += [list(ids) for ids in product(others, repeat=max_new_tokens)]  # ended by the length limit
    with torch.no_grad():
        for length in range(1, max_new_tokens + 1):
            same = [ids for ids in sequences if len(ids) == length]
            inputs = torch.tensor([prompt + ids for ids in same])
            logits = model(input_ids=inputs[:, :-1]).logits[:, len(prompt) - 1 :] / temperature
            chances = logits.log_softmax(-1).gather(-1, inputs[:, len(prompt) :, None]).sum((1, 2)).exp()
            texts = tokenizer.batch_decode(same, skip_special_tokens=True)
            verdicts = torch.tensor([reward(text, answers).correct for text in texts])
            total += chances.sum().item()
            correct += chances[verdicts].sum().item()
    assert total == pytest.approx(1, abs=1e-9)
    return correct


@pytest.mark.parametrize(("max_new_tokens", "temperature"), [(4, 0.6), (3, 1.4), (2, 1.0), (1, 1.0)])
def test_success_is_the_sum_over_every_sequence_that_the_verifier_accepts(
    folder, tokenizer, max_new_tokens, temperature
):
    # With two or three tokens, answers of that length are correct without a stop token, and longer ones never come.
    found = success(folder, tokenizer, QUESTIONS, max_new_tokens, temperature)
    for p, (question, answers) in zip(found.tolist(), QUESTIONS.items(), strict=True):
        expected = by_brute_force(folder, tokenizer, question, answers, max_new_tokens, temperature)
        assert p == pytest.approx(expected, rel=1e-5, abs=1e-12)
    assert found.dtype == torch.float64


def test_a_policy_that_pads_and_a_small_budget_give_the_same(folder, tokenizer):
    whole = success(folder, tokenizer, QUESTIONS, 8)
    assert torch.allclose(success(folder, tokenizer, QUESTIONS, 8, token_budget=5), whole, rtol=1e-5)
    reversed_questions = dict(reversed(QUESTIONS.items()))
    assert torch.allclose(success(folder, tokenizer, reversed_questions, 8).flip(0), whole, rtol=1e-5)


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.3])
def test_4096_draws_of_the_engine_agree_with_the_exact_probability(folder, tokenizer, temperature):
    engine = TransformersEngine(str(folder))
    engine.sync(AutoModelForCausalLM.from_pretrained(folder).named_parameters())
    sampling, draws = SamplingConfig(temperature=temperature, max_new_tokens=3), 4096
    prompts = [torch.tensor(tokenizer(question).input_ids) for question in QUESTIONS]
    drawn = engine.generate(Request(prompts, [draws] * len(prompts), sampling, 0))
    exact = success(folder, tokenizer, QUESTIONS, 3, temperature)
    for p, completions, answers in zip(exact.tolist(), drawn, QUESTIONS.values(), strict=True):
        texts = tokenizer.batch_decode([c.token_ids for c in completions], skip_special_tokens=True)
        correct = sum(reward(text, answers).correct for text in texts)
        low, high = binom.interval(0.9999, draws, p)
        assert low <= correct <= high
        assert 0.0005 < p < 0.9  # else nothing was compared


def test_the_policy_s_own_temperature_is_put_back(folder, tokenizer):
    policy = CausalPolicy(AutoModelForCausalLM.from_pretrained(folder), temperature=0.3)
    prompt = torch.tensor(tokenizer("walk").input_ids)
    correct = [correct_tokens(["up"], tokenizer, [tokenizer.eos_token_id], 4)]
    hot = exact_success(Scorer(policy), [prompt], correct, 2.0)
    assert policy.temperature == 0.3
    assert hot != exact_success(Scorer(policy), [prompt], correct, 0.3)


def test_a_question_without_a_possible_answer_has_none_and_no_question_is_no_error(folder, tokenizer):
    scorer = Scorer(CausalPolicy(AutoModelForCausalLM.from_pretrained(folder)))
    prompt = torch.tensor(tokenizer("walk").input_ids)
    assert correct_tokens(["up up left"], tokenizer, [0], 2) == []
    assert exact_success(scorer, [prompt, prompt], [[], []]).tolist() == [0.0, 0.0]
    assert exact_success(scorer, [], []).tolist() == []
    assert correct_tokens([], tokenizer, [0], 2) == []


def test_a_policy_of_nan_has_no_success(folder, tokenizer):
    model = AutoModelForCausalLM.from_pretrained(folder)
    torch.nn.init.constant_(model.model.norm.weight, torch.nan)
    correct = [correct_tokens(["up"], tokenizer, [tokenizer.eos_token_id], 4)]
    with pytest.raises(FloatingPointError, match="1 of 1 prompts .*NaN"):
        exact_success(Scorer(CausalPolicy(model)), [torch.tensor(tokenizer("walk").input_ids)], correct)


def test_each_stop_token_ends_an_answer(tokenizer):
    up = tokenizer.convert_tokens_to_ids("up")
    found = correct_tokens(["up"], tokenizer, [0], 4)
    assert [ids.tolist() for ids in found] == [[up, 0]]
    assert [ids.tolist() for ids in correct_tokens(["up"], tokenizer, [0], 1)] == [[up]]


def test_a_text_that_the_tokenizer_can_t_say_is_refused(tokenizer):
    with pytest.raises(ValueError, match="'east'.*'<unk>'"):
        correct_tokens(["east"], tokenizer, [0], 4)
