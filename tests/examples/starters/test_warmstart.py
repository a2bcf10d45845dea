"""The starter: its tokenizer, the policy that ships, and how it is made."""

import json
import random
from itertools import islice, pairwise

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from examples.starters import warmstart as module
from examples.starters.arithmetic import arithmetic_example, build_tokenizer
from examples.starters.parts import build_model, prompt_text
from examples.starters.warmstart import (
    IGNORED,
    TASKS,
    WarmstartConfig,
    batches,
    chain_sequence,
    fit,
    problem_sequence,
    solve_rate,
    warmstart,
)
from tagrpo.lab.tasks.arithmetic.source import REFORMULATED, REPHRASINGS, SPLITS, ArithmeticSource
from tagrpo.starter import starter_path

pytestmark = pytest.mark.pages

TINY = WarmstartConfig(
    chain_steps=2,
    word_steps=3,
    extra_steps=2,
    max_extensions=2,
    batch_size=4,
    gate=0.0,
    validation_questions=6,
    validation_samples=1,
)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(starter_path())


@pytest.fixture(scope="module")
def starter():
    return AutoModelForCausalLM.from_pretrained(starter_path())


def all_texts():
    for split in SPLITS:
        for regime in [name for name in REPHRASINGS if name != REFORMULATED]:  # it has starters of its own
            for group in ArithmeticSource(split, regime, size=60).load():
                yield from (group.question, *group.rephrasings, prompt_text(group.question))
    rng = random.Random(0)
    for _ in range(300):
        yield arithmetic_example(rng).response


def test_decoding_gives_every_question_and_solution_back(tokenizer):
    for text in all_texts():
        ids = tokenizer(text).input_ids
        assert tokenizer.unk_token_id not in ids
        assert tokenizer.decode(ids) == text


def test_each_digit_is_a_token_and_an_unknown_word_is_unk(tokenizer):
    assert tokenizer.tokenize("Tom loses 1234.") == ["Tom", "loses", "1", "2", "3", "4", "."]
    assert tokenizer.tokenize("Tom eats 12.") == ["Tom", "<unk>", "1", "2", "."]


def test_decoding_special_tokens_can_be_left_out(tokenizer):
    ids = tokenizer("2 + 3 = 5 #### 5<eos>").input_ids
    assert ids[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(ids, skip_special_tokens=True) == "2 + 3 = 5 #### 5"


def test_text_only_grows_while_tokens_arrive(tokenizer):
    # Engines that stream, and those that look for stop strings, decode prefixes.
    for text in islice(all_texts(), 200):
        ids = tokenizer(text).input_ids
        texts = [tokenizer.decode(ids[:length]) for length in range(len(ids) + 1)]
        assert all(longer.startswith(shorter) for shorter, longer in pairwise(texts))


def test_the_shipped_tokenizer_is_the_one_that_the_code_builds(tokenizer):
    shipped, built = (json.loads(each.backend_tokenizer.to_str()) for each in (tokenizer, build_tokenizer()))
    for part in ("model", "pre_tokenizer", "decoder", "added_tokens"):
        assert shipped[part] == built[part]


def test_the_starter_is_small_and_its_output_head_is_its_embedding(starter, tokenizer):
    assert sum(parameter.numel() for parameter in starter.parameters()) < 600_000
    assert starter.lm_head.weight is starter.model.embed_tokens.weight
    assert starter.dtype == torch.float32
    assert starter.generation_config.eos_token_id == tokenizer.eos_token_id
    assert sum(path.stat().st_size for path in starter_path().iterdir() if path.is_file()) < 2.5e6


def test_the_starter_meets_its_gate_and_fails_more_often_in_rare_phrasings(starter, tokenizer):
    report = json.loads((starter_path() / "warmstart.json").read_text())
    assert report["gate"] == WarmstartConfig().gate <= report["validation_accuracy"]

    groups = ArithmeticSource("validation", size=96).load()
    torch.manual_seed(0)
    solved = solve_rate(starter, tokenizer, groups, num_samples=4)
    families = [group.metadata["family"] for group in groups]

    def mean(*names):
        return solved[[family in names for family in families]].mean().item()

    assert solved.mean().item() == pytest.approx(report["validation_accuracy"], abs=0.08)
    assert mean("narrative", "list", "symbol") > 0.5
    assert mean("passive", "reversed") < 0.3


def test_solve_rate_counts_the_text_after_the_last_marker(tokenizer, monkeypatch):
    groups = ArithmeticSource("validation", size=2).load()
    (right,), (other,) = groups[0].answer, groups[1].answer
    assert right != other
    responses = [f"#### {right}<eos>", f"#### {other} #### {right}<eos>", f"#### {right}2<eos>", "#### <eos>"]
    responses += [f"{other}<eos>", f"#### {right}<eos>", f"#### {other} +<eos>", f"2 #### {other}<eos>"]

    class Parrot(torch.nn.Module):
        def generate(self, input_ids, **_):
            said = tokenizer(responses, padding=True, padding_side="right", return_tensors="pt").input_ids
            return torch.cat([input_ids.repeat_interleave(4, dim=0), said], dim=1)

    assert solve_rate(Parrot(), tokenizer, groups, num_samples=4).tolist() == [2 / 4, 1 / 4]


def test_chains_are_true_and_only_their_results_are_learned(tokenizer):
    rng = random.Random(0)
    for _ in range(200):
        token_ids, labels = chain_sequence(tokenizer, rng)
        value, *parts = tokenizer.decode(token_ids).removeprefix("<sep> ").split(" ")
        results = []
        for symbol, operand, equals, result in zip(*[iter(parts)] * 4, strict=True):
            assert equals == "="
            assert eval(f"{value} {symbol} {operand}") == int(result)
            results.append(value := result)
        assert len(results) == 5
        learned = labels != IGNORED
        assert torch.equal(labels[learned], token_ids[learned])
        assert tokenizer.decode(labels[learned]) == "".join(results)


def test_of_a_problem_only_the_solution_and_its_end_are_learned(tokenizer):
    token_ids, labels = problem_sequence(tokenizer, random.Random(0))
    example = arithmetic_example(random.Random(0))
    learned = labels != IGNORED
    assert tokenizer.decode(token_ids[~learned]) == f"{example.question} <sep>"
    assert tokenizer.decode(labels[learned]) == f"{example.response} <eos>"


def test_batches_of_like_length_hold_little_padding(tokenizer):
    rng = random.Random(0)
    drawn = list(islice(batches(lambda: problem_sequence(tokenizer, rng), 32, rng), 16))
    assert {len(batch) for batch in drawn} == {32}
    tokens = sum(len(sequence.token_ids) for batch in drawn for sequence in batch)
    cells = sum(32 * max(len(sequence.token_ids) for sequence in batch) for batch in drawn)
    assert tokens / cells > 0.9


def test_padding_does_not_change_the_loss(tokenizer):
    torch.manual_seed(0)
    model, rng = build_model(tokenizer), random.Random(0)
    batch = [problem_sequence(tokenizer, rng) for _ in range(6)]
    assert len({len(sequence.token_ids) for sequence in batch}) > 1
    losses = []
    with torch.no_grad():
        for token_ids, labels in batch:
            logprobs = model(token_ids[None]).logits[0, :-1].log_softmax(-1)
            learned = labels[1:] != IGNORED
            losses.append(-logprobs[learned].gather(1, labels[1:][learned, None]))
    expected = torch.cat(losses).mean().item()
    assert fit(model, [batch], 1, learning_rate=1e-3) == pytest.approx(expected, rel=1e-5)


def test_the_same_seed_gives_the_same_bytes_and_leaves_the_caller_s_randomness_alone(tmp_path):
    for name, seed, callers_seed in (("one", 5, 0), ("two", 5, 1), ("other", 6, 2)):
        torch.manual_seed(callers_seed)
        before = torch.get_rng_state()
        report = warmstart(tmp_path / name, WarmstartConfig(**{**vars(TINY), "seed": seed}))
        assert torch.equal(torch.get_rng_state(), before)
        assert report == json.loads((tmp_path / name / "warmstart.json").read_text())
        assert report["steps"] == 5
    weights = {name: (tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two", "other")}
    assert weights["one"] == weights["two"] != weights["other"]
    assert AutoTokenizer.from_pretrained(tmp_path / "one").tokenize("He buys 4.") == ["He", "buys", "4", "."]
    AutoModelForCausalLM.from_pretrained(tmp_path / "one")


@pytest.mark.parametrize("task", ["countdown", "shortest_path"])
def test_the_starter_of_a_task_with_listed_answers_reports_its_exact_accuracy(task, tmp_path):
    settings = {**vars(TINY), "task": task, "chain_steps": 0, "validation_questions": 12}
    report = warmstart(tmp_path, WarmstartConfig(**settings))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.get_vocab() == TASKS[task].build_tokenizer().get_vocab()
    groups, verifier = TASKS[task].source("validation", size=12).load(), TASKS[task].verifier()
    model, total = AutoModelForCausalLM.from_pretrained(tmp_path), 0.0
    for group in groups:
        for text in verifier.correct_responses(group.answer):
            prompt = tokenizer(prompt_text(group.question)).input_ids
            ids = torch.tensor([prompt + tokenizer(text).input_ids + [tokenizer.eos_token_id]])
            with torch.no_grad():
                logprobs = model(ids).logits[0, len(prompt) - 1 : -1].double().log_softmax(-1)
            total += logprobs.gather(1, ids[0, len(prompt) :, None]).sum().exp().item()
    assert report["validation_accuracy"] == pytest.approx(total / 12, rel=1e-4)
    assert set(report["validation_accuracy_by_family"]) == {group.metadata["family"] for group in groups}


def test_training_is_extended_until_the_gate_is_met(tmp_path, monkeypatch):
    rates = iter([0.1, 0.2, 0.6])
    monkeypatch.setattr(module, "solve_rate", lambda *_: torch.full((6,), next(rates)))
    report = warmstart(tmp_path, WarmstartConfig(**{**vars(TINY), "gate": 0.5}))
    assert report["steps"] == 2 + 3 + 2 * 2
    assert report["validation_accuracy"] == pytest.approx(0.6)


def test_a_gate_that_is_not_met_is_an_error_that_says_what_was_reached(tmp_path):
    with pytest.raises(RuntimeError, match=r"1.1 .*0.\d+ .* 9 steps, 2 extensions"):
        warmstart(tmp_path / "out", WarmstartConfig(**{**vars(TINY), "gate": 1.1}))
    assert not (tmp_path / "out").exists()
