"""Score prompts, mini-batches and the groups of all ranks, by value."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch

from tagrpo.modules import experience
from tagrpo.modules.experience import (
    Experience,
    MicroBatch,
    TokenColumns,
    reward_groups,
    split_by_question,
)
from tagrpo.packing.batch import pack
from tagrpo.types import LossOutputs, RewardGroups

REWARDS = [[[1.0, 0.0], [0.0]], [[1.0], [0.0, 0.0]]]


def test_under_the_original_all_responses_of_a_question_share_one_prompt(make_batch):
    rollouts = make_batch(REWARDS).rollouts
    experience = Experience(rollouts, "original")
    assert len(experience.prompts) == 2
    assert experience.prompt.tolist() == [0, 0, 0, 1, 1, 1]
    assert torch.equal(experience.prompts[1], rollouts.prompts[2].token_ids)
    sampled_there = experience.any_token(experience.columns.on_score_prompt)
    assert sampled_there.tolist() == [True, True, False, True, False, False]
    assert experience.lengths.tolist() == [len(ids) for ids in rollouts.token_ids]


def test_under_their_own_prompt_responses_are_scored_where_they_were_sampled(make_batch):
    rollouts = make_batch(REWARDS).rollouts
    experience = Experience(rollouts, "own")
    assert experience.prompt.tolist() == rollouts.prompt.tolist() == [0, 0, 1, 2, 3, 3]
    assert all(torch.equal(a, p.token_ids) for a, p in zip(experience.prompts, rollouts.prompts, strict=True))
    assert experience.columns.on_score_prompt.all()


def test_two_questions_of_equal_text_keep_prompts_of_their_own(make_batch):
    batch = make_batch([[[1.0]], [[0.0]]])
    same = batch.prompts[0]
    prompts = [same, same._replace(question=1)]
    object.__setattr__(batch.rollouts, "prompts", prompts)
    assert Experience(batch.rollouts, "original").prompt.tolist() == [0, 1]


def test_mini_batches_hold_whole_questions_and_everything_once():
    question = torch.tensor([0, 0, 1, 2, 2, 2, 3, 4])
    assert [rows.tolist() for rows in split_by_question(question, 5, 2)] == [[0, 1, 2, 3, 4, 5], [6, 7]]
    assert [rows.tolist() for rows in split_by_question(question, 5, 5)] == [[0, 1], [2], [3, 4, 5], [6], [7]]
    assert [rows.tolist() for rows in split_by_question(torch.tensor([0]), 1, 2)] == [[0], []]


@pytest.mark.parametrize(
    ("questions", "mini_batches", "ranks", "sizes"),
    [(1, 8, 8, [1] * 8), (3, 2, 2, [3, 3]), (8, 16, 4, [2] * 16), (2, 5, 2, [1, 1, 1, 1, 0])],
)
def test_ranks_take_turns_with_larger_mini_batches_so_that_no_step_is_empty(
    questions, mini_batches, ranks, sizes, monkeypatch
):
    found = torch.zeros(mini_batches, dtype=torch.long)
    for rank in range(ranks):
        monkeypatch.setattr(experience, "rank", lambda rank=rank: rank)
        parts = split_by_question(torch.arange(questions), questions, mini_batches)
        assert sorted(torch.cat(parts).tolist()) == list(range(questions))
        found += torch.tensor([len(part) for part in parts])
    assert found.tolist() == sizes


def test_ranks_do_not_share_groups():
    def part(rewards, question, prompt):
        rewards = torch.tensor(rewards)
        return RewardGroups(
            rewards=rewards, correct=rewards > 0, question=torch.tensor(question), prompt=torch.tensor(prompt),
            progress=0.5,
        )  # fmt: skip

    joined = RewardGroups.joined(
        [part([1.0, 0.0, 1.0], [0, 0, 1], [0, 1, 2]), part([0.0, 1.0], [0, 1], [0, 2])]
    )
    assert joined.question.tolist() == [0, 0, 1, 2, 3]
    assert joined.prompt.tolist() == [0, 1, 2, 3, 5]
    assert joined.rewards.tolist() == [1, 0, 1, 0, 1]
    assert (joined.entropy, joined.answers, joined.progress) == (None, None, 0.5)


def test_a_strategy_is_given_the_final_answers_of_all_responses(make_batch):
    rollouts = replace(make_batch(REWARDS).rollouts, answers=["1", None, "2", "", "1", "3"])
    assert reward_groups(rollouts, None, 0.0).answers == ["1", None, "2", "", "1", "3"]


def test_a_micro_batch_has_the_columns_of_its_tokens_and_its_parts(make_batch):
    experience = Experience(make_batch(REWARDS).rollouts, "own")
    places = torch.arange(int(experience.lengths.sum()))
    experience.columns.prompt_weights = experience.columns.mismatch_weights = places.float()
    packed = pack(experience.prompts, experience.prompt, experience.responses, torch.tensor([2, 0]))
    seen = []

    def loss(inputs):
        seen.append(inputs)
        return LossOutputs(loss=inputs.logprobs.sum(), sums={})

    totals = {"responses": 7.0, "tokens": 9.0}
    batch = MicroBatch(experience, packed, loss, totals, None, staleness_log_cap=0.0)
    assert all(hasattr(batch, each.name) for each in fields(batch)), "FSDP2 reads them in the forward"
    assert len(batch.old_logprobs) == len(batch.log_ratio) == 0, "until the forward has been made"
    expected = torch.cat([places.split(experience.lengths.tolist())[row] for row in packed.rows.tolist()])
    assert torch.equal(experience.tokens(packed.rows), expected)
    assert (
        batch.columns.prompt_weights.tolist() == batch.columns.mismatch_weights.tolist() == expected.tolist()
    )
    assert (batch.columns.terms, batch.columns.reference_logprobs) == ({}, None)
    first = int(packed.lengths[0])
    current = torch.full((len(expected) - first,), -2.0)
    assert float(batch(slice(first, None), current, None)) == float(current.sum())
    (inputs,) = seen
    assert inputs.weights.tolist() == expected[first:].square().tolist()
    assert inputs.old_logprobs.tolist() == current.tolist(), "not known: the current ones"
    assert inputs.response.tolist() == [1] * len(current)
    assert (inputs.num_responses, inputs.num_tokens, inputs.lengths.tolist()) == (
        7.0,
        9.0,
        packed.lengths.tolist(),
    )


def test_one_step_of_age_is_stale(make_batch):
    batch = make_batch([[[1.0, 0.0, 1.0]]])
    rollouts = replace(
        batch.rollouts, staleness=torch.tensor([0, 1, 2]), replayed=torch.tensor([False, False, True])
    )
    experience = Experience(rollouts, "own")
    assert experience.any_token(experience.columns.stale).tolist() == [False, True, False]


def test_entropies_answers_and_progress_of_all_ranks_are_joined():
    parts = [
        RewardGroups(
            rewards=torch.tensor([float(rank), 1.0]), correct=torch.tensor([False, True]),
            question=torch.tensor([0, 1]), prompt=torch.tensor([0, 2]), entropy=torch.tensor([0.5 + rank, 1.0]),
            answers=[None, f"{rank}"], progress=0.25 + rank,
        )
        for rank in range(2)
    ]  # fmt: skip
    joined = RewardGroups.joined(parts)
    assert joined.rewards.tolist() == [0.0, 1.0, 1.0, 1.0]
    assert joined.question.tolist() == [0, 1, 2, 3]
    assert joined.prompt.tolist() == [0, 2, 3, 5]
    assert joined.entropy.tolist() == [0.5, 1.0, 1.5, 1.0]
    assert joined.answers == [None, "0", None, "1"]
    assert joined.progress == 0.25


def test_columns_are_named(make_batch):
    columns = Experience(make_batch(REWARDS).rollouts, "own").columns
    with pytest.raises(TypeError):
        TokenColumns(*vars(columns).values())
