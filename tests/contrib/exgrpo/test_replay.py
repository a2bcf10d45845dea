"""Replay of past successes: draws against their distribution, batches by hand, ranks side by side."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tagrpo.contrib.exgrpo import replay as module
from tagrpo.contrib.exgrpo.replay import SolvedQuestion, SuccessReplay, latest_partial_rate
from tagrpo.datamodules import memory
from tagrpo.types import QuestionGroup
from tests.helpers import on_two_ranks

PARTLY = [[[1.0, 0.0, 0.0, 0.0]], [[1.0, 1.0, 0.0, 0.0]], [[1.0, 1.0, 1.0, 1.0]], [[0.0, 0.0, 0.0, 0.0]]]


def with_ids(batch, *ids):
    batch.groups = [group._replace(id=id) for group, id in zip(batch.groups, ids, strict=True)]
    return batch


class Policy:
    """Its entropies are those that are given, zeros without; `asked` is what it was asked for."""

    def __init__(self, entropies=None):
        self.entropies, self.asked = entropies, []

    def response_entropy(self, prompts, responses):
        self.asked += zip(prompts, responses, strict=True)
        return torch.tensor(self.entropies or [0.0] * len(responses))


def replayed_in(batch):
    """Row of a prompt → the past success among its responses."""
    return {row: prompt.past for row, prompt in enumerate(batch.prompts) if prompt.past is not None}


def recorded(rates):
    replay = SuccessReplay()
    replay.records = {id: SolvedQuestion(QuestionGroup(id, "q", (), ("1",))) for id in rates}
    replay.memory.records = {
        id: memory.Record(visits=[memory.Visit((8,), (int(8 * rate),)), memory.Visit((8,), (0,))])
        for id, rate in rates.items()
    }
    return replay


def observed(replay, batch):
    """What is logged when the memory and then the replay have taken a batch in."""
    replay.memory.remember(batch)
    return replay.observe(batch)


def test_questions_are_drawn_by_a_normal_weight_of_their_rate_and_uniformly_within_it():
    rates = {"a": 0.125, "b": 0.5, "c": 0.5, "d": 0.75, "e": 0.625, "f": 0.875}
    replay = recorded(rates)
    draws = [replay.draw(1, iteration, set())[0] for iteration in range(4000)]
    weight = {rate: np.exp(-((rate - 0.5) ** 2) / (2 * 0.125**2)) for rate in set(rates.values())}
    share = {rate: list(rates.values()).count(rate) for rate in weight}
    for id, rate in rates.items():
        expected = weight[rate] / sum(weight.values()) / share[rate]
        error = 4 * np.sqrt(expected * (1 - expected) / len(draws))
        assert abs(draws.count(id) / len(draws) - expected) < error, id


def test_a_question_whose_partial_success_is_forgotten_is_drawn_as_one_of_rate_0():
    replay = recorded({"forgotten": 0.0, "half": 0.5})
    replay.spread = 0.5
    draws = [replay.draw(1, iteration, set())[0] for iteration in range(2000)]
    expected = np.exp(-0.5) / (1 + np.exp(-0.5))
    assert abs(draws.count("forgotten") / len(draws) - expected) < 4 * np.sqrt(
        expected * (1 - expected) / len(draws)
    )


def test_a_question_is_drawn_once_and_never_beside_itself():
    replay = recorded(dict.fromkeys("abcde", 0.5))
    assert sorted(replay.draw(9, 0, without={"b", "x"})) == ["a", "c", "d", "e"]
    assert replay.draw(3, 7, set()) == replay.draw(3, 7, set()) != replay.draw(3, 8, set())


def test_only_questions_solved_in_part_are_recorded_and_solved_ones_retire(make_batch):
    replay = SuccessReplay(start=0.5)
    first = with_ids(make_batch(PARTLY), "a", "b", "c", "d")
    assert observed(replay, first) == {"replay/questions": 2, "replay/successes": 3, "replay/retired": 1}
    assert {id: latest_partial_rate(replay.memory[id].visits) for id in replay.records} == {
        "a": 0.25,
        "b": 0.5,
    }
    kept = [success.token_ids.tolist() for success in replay.records["b"].successes]
    assert kept == [first.rollouts.token_ids[row].tolist() for row in (4, 5)]
    # 7 of 16 are correct: not yet more than half.
    assert not replay.started
    # "a" is solved in full and leaves; "c" was retired before and stays out; "d" is new.
    observed(replay, with_ids(make_batch([PARTLY[2], PARTLY[1], PARTLY[0]], seed=1), "a", "c", "d"))
    assert list(replay.records) == ["b", "d"]
    assert {id for id, known in replay.memory.records.items() if known.solved_in_full} == {"a", "c"}
    assert replay.started


def test_the_same_success_is_kept_once_and_the_oldest_give_way(make_batch):
    replay = SuccessReplay(per_question=3)
    first = with_ids(make_batch([PARTLY[1]]), "a")
    for _ in range(2):
        observed(replay, first)
    assert len(replay.records["a"].successes) == 2
    others = [with_ids(make_batch([PARTLY[0]], seed=seed), "a") for seed in (5, 6)]
    for batch in others:
        observed(replay, batch)
    kept = [success.token_ids.tolist() for success in replay.records["a"].successes]
    assert kept == [
        batch.rollouts.token_ids[row].tolist() for batch, row in ((first, 1), (others[0], 0), (others[1], 0))
    ]
    assert latest_partial_rate(replay.memory["a"].visits) == 0.25


def test_the_last_questions_give_way_to_the_surest_successes(make_batch):
    replay = SuccessReplay(ratio=0.5, start=0.0)
    past = with_ids(make_batch([[[0.0, 1.0, 1.0], [0.0, 0.0, 1.0]]]), "past")
    observed(replay, past)
    batch = with_ids(make_batch(PARTLY, seed=2), "a", "b", "c", "d")
    batch.rollouts = None
    policy = Policy([0.9, 0.3, 0.1])
    batch = replay.substitute(batch, 0, policy)
    asked, replayed = policy.asked, replayed_in(batch)
    # Two of four questions may be replayed, one is on record: the last gives way.
    assert [group.id for group in batch.groups] == ["a", "b", "c", "past"]
    assert [(p.question, p.rephrasing, p.num_samples) for p in batch.prompts] == [
        (0, 0, 4), (1, 0, 4), (2, 0, 4), (3, 0, 3), (3, 1, 2),
    ]  # fmt: skip
    assert [r.tolist() for _, r in asked] == [past.rollouts.token_ids[row].tolist() for row in (1, 2, 5)]
    assert [p.rephrasing for p, _ in asked] == [0, 0, 1]
    # The third candidate has the lowest entropy: it answers the rephrasing.
    assert list(replayed) == [4]
    assert replayed[4].token_ids.tolist() == past.rollouts.token_ids[5].tolist()
    assert replayed[4].logprobs.tolist() == past.rollouts.logprobs[5].tolist()


def test_nothing_is_replayed_before_the_start(make_batch):
    replay = SuccessReplay(start=0.9)
    observed(replay, with_ids(make_batch([PARTLY[0]]), "past"))
    batch = with_ids(make_batch(PARTLY), "a", "b", "c", "d")
    assert replay.substitute(batch, 0, Policy()) is batch


def test_a_replayed_success_counts_neither_as_new_nor_towards_the_rate(make_batch):
    replay = SuccessReplay(start=0.0)
    batch = with_ids(make_batch([[[1.0, 1.0, 0.0, 0.0]]]), "a")
    flags = torch.tensor([True, False, False, False])
    batch.rollouts = replace(batch.rollouts, replayed=flags)
    batch.prompts = [batch.prompts[0]._replace(num_samples=3)]
    observed(replay, batch)
    record = replay.records["a"]
    assert latest_partial_rate(replay.memory["a"].visits) == pytest.approx(1 / 3)
    assert [s.token_ids.tolist() for s in record.successes] == [batch.rollouts.token_ids[1].tolist()]
    # The next time round the question gets as many responses as ever.
    assert record.successes[0].prompts[0].num_samples == 4


def test_a_prompt_with_a_single_response_is_never_replayed(make_batch):
    replay = SuccessReplay(start=0.0)
    observed(replay, with_ids(make_batch([[[1.0], [0.0, 1.0]]]), "a"))
    assert [success.row for success in replay.records["a"].successes] == [1]


def test_what_is_on_record_survives_a_checkpoint(make_batch, tmp_path):
    replay = SuccessReplay(start=0.1)
    observed(replay, with_ids(make_batch(PARTLY), "a", "b", "c", "d"))
    torch.save(replay.state_dict(), tmp_path / "state.pt")
    other = SuccessReplay(start=0.1)
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    other.memory.load_state_dict(replay.memory.state_dict())
    batches = [with_ids(make_batch(PARTLY, seed=3), "e", "f", "g", "h") for _ in range(2)]
    batches = [r.substitute(batch, 5, Policy()) for r, batch in zip((replay, other), batches, strict=True)]
    results = [replayed_in(batch) for batch in batches]
    assert list(results[0]) == list(results[1]) != []
    assert [g.id for g in batches[0].groups] == [g.id for g in batches[1].groups]
    for left, right in zip(results[0].values(), results[1].values(), strict=True):
        assert left.token_ids.tolist() == right.token_ids.tolist()
    assert other.started


def test_ranks_share_what_they_find_and_replay_different_questions(make_batch, monkeypatch):
    replays, batches = [SuccessReplay(start=0.0) for _ in range(2)], [None, None]

    def run(rank):
        found = with_ids(make_batch([PARTLY[rank], PARTLY[1]], seed=rank), f"x{rank}", f"y{rank}")
        observed(replays[rank], found)
        served = with_ids(make_batch(PARTLY[:2], seed=9), f"u{rank}", f"v{rank}")
        batches[rank] = replays[rank].substitute(served, 0, Policy())

    on_two_ranks(monkeypatch, run, module, memory)
    assert list(replays[0].records) == list(replays[1].records) == ["x0", "y0", "x1", "y1"]
    drawn = [batch.groups[1].id for batch in batches]
    assert drawn[0] != drawn[1]
    assert set(drawn) < set(replays[0].records)


@pytest.mark.parametrize("options", [{"ratio": 0.0}, {"start": 1.5}, {"spread": 0.0}, {"per_question": 0}])
def test_impossible_options_are_refused(options):
    with pytest.raises(ValueError, match=rf"replay\.{next(iter(options))}"):
        SuccessReplay(**options)


def test_options_at_the_ends_of_their_ranges():
    replay = SuccessReplay(ratio=1, start=0.0, per_question=1)
    assert (replay.spread, replay.seed, SuccessReplay().per_question) == (0.125, 0, 8)
    SuccessReplay(start=1.0)
    for refused in (
        {"ratio": 1.01},
        {"ratio": 0},
        {"start": -0.01},
        {"start": 1.01},
        {"spread": 0},
        {"per_question": 0},
    ):
        with pytest.raises(ValueError, match="Expected 0 < replay.ratio"):
            SuccessReplay(**refused)


def test_replay_begins_after_a_larger_share_of_correct_responses_not_an_equal_one(make_batch):
    half = with_ids(make_batch([[[1.0, 0.0]]]), "a")
    replay = SuccessReplay(start=0.5)
    observed(replay, half)
    assert not replay.started
    replay = SuccessReplay(start=0.49)
    observed(replay, half)
    assert replay.started


def test_questions_that_were_only_replayed_tell_nothing_and_those_after_them_do(make_batch):
    batch = with_ids(make_batch([[[1.0, 0.0]], [[1.0, 0.0]]]), "a", "b")
    batch.rollouts = replace(batch.rollouts, replayed=torch.tensor([True, True, False, False]))
    replay = SuccessReplay()
    observed(replay, batch)
    assert list(replay.records) == ["b"]


def test_what_is_drawn_fills_the_count_exactly():
    replay = recorded(dict.fromkeys("abcde", 0.5))
    for count in range(6):
        assert len(replay.draw(count, 0, set())) == count


def test_state_keeps_everything_of_a_question(make_batch):
    replay = SuccessReplay(start=0.0)
    batch = with_ids(make_batch(PARTLY), "a", "b", "c", "d")
    batch.groups = [group._replace(metadata={"level": 3}) for group in batch.groups]
    observed(replay, batch)
    again = SuccessReplay()
    again.load_state_dict(replay.state_dict())
    again.memory = replay.memory
    assert again.records.keys() == replay.records.keys() == {"a", "b"}
    for id, record in replay.records.items():
        assert again.records[id].group == record.group == batch.groups["ab".index(id)]
    chosen = replayed_in(again.substitute(with_ids(make_batch(PARTLY), "p", "q", "r", "s"), 0, Policy()))
    assert chosen
    assert not any(success.truncated for success in chosen.values())


def test_the_latest_partial_success_is_looked_for_backwards():
    visits = [memory.Visit((4,), (right,)) for right in (1, 3, 0, 4)]
    assert latest_partial_rate(visits) == 0.75
    assert latest_partial_rate(visits[2:]) == 0.0


def test_a_question_that_a_thrown_away_batch_has_solved_in_full_is_not_replayed():
    replay = recorded({"a": 0.5, "b": 0.5})
    replay.memory.records["a"].solved_in_full = True
    assert replay.draw(2, 0, set()) == ["b"]


def test_a_narrow_weight_far_from_all_rates_still_draws_the_nearest():
    replay = recorded({"a": 0.125, "b": 0.875, "c": 0.25})
    replay.spread = 1e-3
    assert [replay.draw(1, iteration, set()) for iteration in range(5)] == [["c"]] * 5
