"""SvS against Algorithm 1, with the ends of the ranges as in the authors' code, written anew over a made-up world."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest
import torch

from tagrpo.contrib.svs.self_play import SelfPlay
from tagrpo.types import Prompt, QuestionBatch, QuestionGroup, Rollouts

G = 8
SELDOM, USEFUL = (0.125, 0.5), (0.125, 0.625)
FORM = r"```text\s(.+?)```"


def responses(prompt):
    """Eight responses to a prompt, each with a problem between marks or without, and an answer of 0 to 3."""
    rng = random.Random(prompt)
    ease = rng.random()
    texts = []
    for _ in range(G):
        problem = rng.choice(
            ["```text\np{}\n```", "```text p{} ```", "p{}", "```text\np{}", "```text\n \n```"]
        )
        answer = 0 if rng.random() < ease else rng.randint(1, 3)
        texts.append(f"{problem.format(rng.randint(0, 40))} = {answer}")
    return texts


def is_correct(text, answer):
    return text.endswith(f"= {answer}")


def rolled_out(groups, texts_of, rephrasing=1):
    """A batch of one prompt for each question, with half a point for each response by a reward term."""
    flat = [(row, text) for row, texts in enumerate(texts_of) for text in texts]
    rows = torch.tensor([row for row, _ in flat], dtype=torch.long)
    correct = torch.tensor([is_correct(text, groups[row].answer[0]) for row, text in flat], dtype=torch.bool)
    prompts = [
        Prompt(
            row, rephrasing, "plain", (g.question, *g.rephrasings)[rephrasing], *torch.ones(2, 1).long(), G
        )
        for row, g in enumerate(groups)
    ]
    rollouts = Rollouts(
        prompts=prompts, prompt=rows, question=rows, rephrasing=torch.full_like(rows, rephrasing),
        token_ids=[torch.ones(1).long()] * len(flat), logprobs=[torch.zeros(1)] * len(flat),
        truncated=torch.zeros_like(correct), text=[text for _, text in flat], correct=correct,
        answers=[None] * len(flat), rewards=correct.float() + 0.5, reward_terms={"half": torch.full((len(flat),), 0.5)},
        replayed=torch.zeros_like(correct), staleness=torch.zeros_like(rows),
    )  # fmt: skip
    return QuestionBatch(list(groups), prompts, rollouts=rollouts)


def ask(groups):
    """As the pipeline asks: what is empty or the question itself is left out."""
    groups = [group for group in groups if group.rephrasings[0] not in ("", group.question)]
    return rolled_out(groups, [responses(group.rephrasings[0]) for group in groups])


def by_algorithm_1(questions):
    """(what was asked, response, reward) of syntheses and of solutions to variations; y, x̂ and ŷ as in the paper."""
    syntheses, solutions = [], []
    for x, a in questions:
        ys = responses(x)
        acc = sum(is_correct(y, a) for y in ys) / G
        if not SELDOM[0] <= acc <= SELDOM[1]:
            continue
        for y in [y for y in ys if is_correct(y, a)]:
            for synthesis in responses(f"vary: {y}"):
                marked = re.search("```text[ \n]([^`]+)```", synthesis)
                x_hat = marked.group(1).strip() if marked else ""
                reward = 0.0
                if x_hat and x_hat != x:
                    y_hats = responses(x_hat)
                    acc_hat = sum(is_correct(y_hat, a) for y_hat in y_hats) / G
                    reward = float(USEFUL[0] <= acc_hat <= USEFUL[1])
                    solutions += [(x_hat, y_hat, float(is_correct(y_hat, a))) for y_hat in y_hats]
                syntheses.append((f"vary: {y}", synthesis, reward))
    return syntheses, solutions


def described(batch, kind):
    rollouts = batch.rollouts
    assert {group.kinds for group in batch.groups} <= {(kind,)}
    assert len({group.id for group in batch.groups}) == len(batch.groups), "questions of their own"
    torch.testing.assert_close(rollouts.rewards, rollouts.correct.float() + rollouts.reward_terms["half"])
    asked = [rollouts.prompts[row].text for row in rollouts.prompt.tolist()]
    return list(zip(asked, rollouts.text, rollouts.correct.float().tolist(), strict=True))


def questions_of(*seeds):
    return [
        QuestionGroup(f"q{seed}", f"p{seed % 41}" if seed % 2 else f"question {seed}", (), ("0",))
        for seed in seeds
    ]


def batch_of(groups):
    return rolled_out(groups, [responses(group.question) for group in groups], rephrasing=0)


def test_what_is_written_asked_and_earned_is_that_of_the_algorithm():
    groups = questions_of(*range(60))
    parts = SelfPlay("vary: {response}", FORM, SELDOM, USEFUL).extend(batch_of(groups), ask)
    found = [described(part, kind) for part, kind in zip(parts, ("synthesis", "variation"), strict=True)]
    expected = by_algorithm_1([(group.question, group.answer[0]) for group in groups])
    for one, other in zip(found, expected, strict=True):
        assert one == other
        assert {reward for *_, reward in one} == {0.0, 1.0}
    assert len({group.id.partition("/")[0] for group in parts[0].groups}) < 60, (
        "some questions are too hard or easy"
    )
    assert {group.question for group in parts[1].groups} <= {group.question for group in groups}


@pytest.mark.parametrize(("right", "varied"), [(0, False), (1, True), (4, True), (5, False), (8, False)])
def test_the_ends_belong_to_the_range_of_seldom_solved_questions(right, varied):
    batch = rolled_out(questions_of(0), [["a = 0"] * right + ["b = 1"] * (G - right)], rephrasing=0)
    prompts, _ = SelfPlay("{response}", "(.+)").extend(batch, ask)
    assert [group.rephrasings for group in prompts.groups] == [("a = 0",)] * (right if varied else 0)


@pytest.mark.parametrize(("right", "reward"), [(0, 0.0), (1, 1.0), (5, 1.0), (6, 0.0), (8, 0.0)])
def test_a_variation_is_worth_writing_where_it_is_neither_too_easy_nor_too_hard(right, reward):
    def scripted(groups):
        (kind,) = groups[0].kinds
        texts = (
            ["c = 0"] * right + ["d = 1"] * (G - right)
            if kind == "variation"
            else ["```text\nnew\n``` = 1"] * G
        )
        return rolled_out(groups, [texts] * len(groups))

    batch = rolled_out(questions_of(0), [["a = 0"] + ["b = 1"] * (G - 1)], rephrasing=0)
    prompts, variations = SelfPlay("{response}", FORM).extend(batch, scripted)
    assert prompts.rollouts.rewards.tolist() == [0.5 + reward] * G
    assert prompts.rollouts.correct.tolist() == [bool(reward)] * G
    assert len(variations.groups) == G


def test_where_nothing_is_seldom_solved_it_asks_nothing_twice():
    asked = []

    def counted(groups):
        asked.append(len(groups))
        return ask(groups)

    solved = rolled_out(questions_of(0), [["a = 0"] * G], rephrasing=0)
    parts = SelfPlay("{response}", FORM).extend(solved, counted)
    assert asked == [0, 0], "as often as on a rank that has something to ask"
    assert [len(part.rollouts) for part in parts] == [0, 0]


def test_responses_to_offline_rephrasings_count_and_are_varied_too():
    batch = rolled_out(questions_of(0), [["a = 0", *["b = 1"] * 7]], rephrasing=0)
    batch.rollouts = replace(batch.rollouts, rephrasing=torch.arange(G) % 2)
    assert len(SelfPlay("{response}", FORM).extend(batch, ask)[0].groups) == 1


def test_no_id_recurs_in_a_later_batch_also_after_a_resume():
    batch = batch_of(questions_of(*range(40)))
    part = SelfPlay("vary: {response}", FORM)

    def ids(part):
        found = [group.id for each in part.extend(batch, ask) for group in each.groups]
        assert len(found) == len(set(found)) > 0
        return set(found)

    first, second = ids(part), ids(part)
    resumed = SelfPlay("vary: {response}", FORM)
    resumed.load_state_dict(part.state_dict())
    third = ids(resumed)
    assert third == ids(part)
    assert not first & second
    assert not (first | second) & third
