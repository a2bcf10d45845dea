"""What credit is told of its responses, and what becomes of what it returns."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tagrpo.modules.credit.assign import assign_credit, largest_over_ranks
from tagrpo.modules.experience import Experience, split_by_question
from tagrpo.modules.policy.logprobs import ResponseScores
from tagrpo.types import Credit, History, TokenCredit

REWARDS = [[[0.0, 1.0]], [[1.0, 0.0], [1.0]], [[0.0, 1.0, 1.0]]]


class Told(TokenCredit):
    """Keeps its inputs; the advantage of each response for its tokens."""

    def __init__(self):
        self.inputs = []

    def __call__(self, inputs):
        self.inputs.append(inputs)
        return Credit(inputs.advantages[inputs.response])


def described(rollouts):
    """The same rollouts with all that credit may read."""
    count = len(rollouts)
    return replace(
        rollouts,
        text=[f"text {row}" for row in range(count)],
        answers=[f"answer {row}" for row in range(count)],
        reward_terms={"short": torch.arange(count) / 8},
        history=History(*(torch.arange(count) + shift for shift in (100, 200, 300))),
    )


def assigned(credit, rollouts, out_of_loss=()):
    experience = Experience(rollouts, "own")
    experience.in_loss = torch.tensor([row not in out_of_loss for row in range(len(rollouts))])
    experience.advantages = torch.arange(len(rollouts)) - 3.0
    columns = -torch.arange(int(experience.lengths.sum())).float()
    experience.scores = ResponseScores(
        logprobs=columns, entropies=-columns, entropy=torch.zeros(len(rollouts))
    )
    experience.mini_batches = split_by_question(rollouts.question, 3, 3)
    assign_credit(credit, experience, 0.25)
    return experience


def test_credit_is_told_texts_answers_terms_and_history_of_its_mini_batch(make_batch):
    rollouts, credit = described(make_batch(REWARDS).rollouts), Told()
    experience = assigned(credit, rollouts, out_of_loss=[3])
    assert [inputs.texts for inputs in credit.inputs] == [
        ["text 0", "text 1"], ["text 2", "text 3", "text 4"], ["text 5", "text 6", "text 7"],
    ]  # fmt: skip
    second = credit.inputs[1]
    assert second.reward_terms["short"].tolist() == [0.25, 0.375, 0.5]
    assert [column.tolist() for column in second.groups.history] == [
        [102, 103, 104],
        [202, 203, 204],
        [302, 303, 304],
    ]
    assert second.groups.answers == ["answer 2", "answer 3", "answer 4"]
    assert second.groups.progress == 0.25
    # The fourth response is not in the loss, so that it has no token here.
    assert sorted(set(second.response.tolist())) == [0, 2]
    assert experience.columns.terms == {}


def test_terms_and_history_that_nobody_gives_are_empty(make_batch):
    credit = Told()
    assigned(credit, make_batch(REWARDS).rollouts)
    (first, *_) = credit.inputs
    assert (first.groups.history, dict(first.reward_terms)) == (None, {})


def test_mini_batches_together_are_told_of_all_tokens_in_their_order(make_batch):
    credit = Told()
    experience = assigned(credit, described(make_batch(REWARDS).rollouts))
    assert len(credit.inputs) == 3
    for name, column in (("logprobs", experience.scores.logprobs), ("entropy", experience.scores.entropies)):
        assert torch.equal(torch.cat([getattr(inputs, name) for inputs in credit.inputs]), column), name
    assert experience.columns.advantages.tolist() == (
        (torch.arange(8.0) - 3).repeat_interleave(experience.lengths).tolist()
    )


def test_terms_of_a_few_mini_batches_are_zero_in_the_others(make_batch):
    class Sometimes(Told):
        def __call__(self, inputs):
            credit = super().__call__(inputs)
            return (
                credit._replace(terms={"nll": torch.ones(len(inputs.response))})
                if len(self.inputs) == 2
                else credit
            )

    rollouts = make_batch(REWARDS).rollouts
    experience = assigned(Sometimes(), rollouts)
    (nll,) = experience.columns.terms.values()
    expected = [float(2 <= row < 5) for row in torch.repeat_interleave(rollouts.lengths).tolist()]
    assert nll.tolist() == expected
    experience.advantages[:] = 0.0
    experience.columns.advantages[:] = 0.0
    assert experience.learns().tolist() == [2 <= row < 5 for row in range(8)]


def test_a_term_that_is_not_finite_is_refused_by_its_name(make_batch):
    class Broken(Told):
        def __call__(self, inputs):
            return (
                super()
                .__call__(inputs)
                ._replace(terms={"nll": torch.full((len(inputs.response),), torch.inf)})
            )

    with pytest.raises(FloatingPointError, match=r"Broken \(credit\).*nll"):
        assigned(Broken(), make_batch(REWARDS).rollouts)


@pytest.mark.parametrize(("count", "found"), [(2, 3.0), (9, 1.0)])
def test_the_nth_largest_or_the_smallest_where_there_are_fewer(count, found):
    assert largest_over_ranks(torch.tensor([1.0, 5.0, 3.0]), count) == found
    assert largest_over_ranks(torch.zeros(0), count) == torch.inf


@pytest.mark.parametrize(
    "returned",
    [
        lambda inputs: None,
        lambda inputs: inputs.advantages[inputs.response],
        lambda inputs: Credit(None),
        lambda inputs: Credit(inputs.advantages[inputs.response].tolist()),
        lambda inputs: Credit(torch.zeros(len(inputs.response) + 1)),
        lambda inputs: Credit(torch.zeros(len(inputs.response), 1)),
        lambda inputs: Credit(torch.full((len(inputs.response),), 1e39, dtype=torch.float64)),
        lambda inputs: Credit(inputs.advantages[inputs.response], terms=None),
        lambda inputs: Credit(inputs.advantages[inputs.response], terms={"nll": 1.0}),
        lambda inputs: Credit(inputs.advantages[inputs.response], terms={"nll": torch.ones(1)}),
    ],
)
def test_credit_of_another_kind_is_refused_with_its_class(make_batch, returned):
    class Mine(TokenCredit):
        def __call__(self, inputs):
            return returned(inputs)

    with pytest.raises((TypeError, ValueError, FloatingPointError), match=r"Mine \(credit\)"):
        assigned(Mine(), make_batch(REWARDS).rollouts)


def test_a_term_that_no_loss_has_is_refused(make_batch):
    class Mine(TokenCredit):
        def __call__(self, inputs):
            return Credit(
                inputs.advantages[inputs.response], terms={"mine": torch.ones(len(inputs.response))}
            )

    with pytest.raises(ValueError, match=r"credit\.terms.*log_ratio"):
        assigned(Mine(), make_batch(REWARDS).rollouts)
