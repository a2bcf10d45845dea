"""The update against an independent computation: padded batches, plain PyTorch, formulas spelled out."""

from __future__ import annotations

import linecache
import math
from contextlib import contextmanager
from copy import copy
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM

from tagrpo.modules import update as update_module
from tagrpo.modules.advantages import GroupAdvantage
from tagrpo.modules.experience import Experience, MicroBatch
from tagrpo.modules.losses import PolicyLoss
from tagrpo.modules.policy.logprobs import Scorer
from tagrpo.modules.policy.model import load_causal_lm
from tagrpo.modules.update import PolicyUpdate, UpdateOptions
from tagrpo.packing.policy import CausalPolicy
from tagrpo.types import AdvantageStrategy

# Two questions with a rephrasing each; the first original is uniform, pooling rescues it.
REWARDS = [[[1.0, 1.0, 1.0], [0.0, 1.0, 0.0]], [[0.0, 1.0, 0.5], [1.0, 0.0, 0.0]]]


class Seen(PolicyLoss):
    """Keeps what it is given; its value and sums may be changed."""

    def __init__(self, factor=1.0, **options):
        super().__init__(**options)
        self.seen, self.factor = [], factor

    def __call__(self, inputs):
        self.seen.append(inputs)
        outputs = super().__call__(inputs)
        return replace(outputs, loss=outputs.loss * self.factor)


def make_update(folder, *, loss=None, lr=0.1, advantage=None, token_budget=60, **options) -> PolicyUpdate:
    loss = loss or PolicyLoss(kl_coef=0.0)
    policy = CausalPolicy(load_causal_lm(folder))
    reference = CausalPolicy(load_causal_lm(folder)).requires_grad_(False) if loss.kl_coef else None
    return PolicyUpdate(
        Scorer(policy, reference, token_budget=token_budget),
        advantage or GroupAdvantage("question"),
        loss,
        torch.optim.SGD(policy.parameters(), lr=lr),
        UpdateOptions(**{"max_grad_norm": 1e9, **options}),
    )


def learn(update, *batches):
    """The results of one update after the other."""
    return [update(batch.rollouts, len(batch.groups)) for batch in batches]


def parameters_of(update):
    return dict(update.scorer.policy.model.named_parameters())


def reference_logprobs(model, rollouts, anchor):
    """[R, Tmax] log-probs and mask by one padded forward per response."""
    rows = []
    for r, ids in enumerate(rollouts.token_ids):
        prompt = rollouts.prompts[int(rollouts.prompt[r])]
        head = prompt.anchor_ids if anchor == "original" else prompt.token_ids
        logits = model(torch.cat([head, ids])[None]).logits[0, len(head) - 1 : -1]
        rows.append(torch.log_softmax(logits, -1)[torch.arange(len(ids)), ids])
    mask = pad_sequence([torch.ones(len(row)) for row in rows], batch_first=True)
    return pad_sequence(rows, batch_first=True), mask


def normalised(values):
    values = np.array(values)
    return (values - values.mean()) / (values.std(ddof=1) + 1e-6)


@pytest.mark.parametrize(
    ("anchor", "group_by"), [("original", "question"), ("own", "prompt"), ("own", "question")]
)
def test_one_step_equals_plain_pytorch_on_padded_batches(tiny_policy, make_batch, anchor, group_by):
    batch = make_batch(REWARDS)
    rollouts = batch.rollouts
    update = make_update(tiny_policy, anchor=anchor, advantage=GroupAdvantage(group_by), mini_batches=1)

    model = AutoModelForCausalLM.from_pretrained(tiny_policy)
    pools = [sum(question, []) for question in REWARDS] if group_by == "question" else sum(REWARDS, [])
    advantages = torch.tensor(np.concatenate([normalised(pool) for pool in pools])).float()
    logprobs, mask = reference_logprobs(model, rollouts, anchor)
    ratio = torch.exp(logprobs - logprobs.detach())
    terms = torch.minimum(ratio * advantages[:, None], ratio.clamp(0.8, 1.2) * advantages[:, None])
    loss = -((terms * mask).sum(1) / mask.sum(1)).mean()
    loss.backward()
    expected = {name: p.detach() - 0.1 * p.grad for name, p in model.named_parameters()}

    learn(update, batch)
    for name, parameter in parameters_of(update).items():
        torch.testing.assert_close(parameter, expected[name], atol=1e-5, rtol=1e-5)


def test_two_mini_batches_with_clip_and_kl_equal_plain_pytorch(tiny_policy, make_batch):
    batch = make_batch(REWARDS)
    rollouts = batch.rollouts
    update = make_update(
        tiny_policy, loss=PolicyLoss(clip_low=0.01, clip_high=0.02, kl_coef=0.5), lr=0.5, mini_batches=2
    )

    model = AutoModelForCausalLM.from_pretrained(tiny_policy)
    advantages = torch.tensor(np.concatenate([normalised(sum(question, [])) for question in REWARDS])).float()
    with torch.no_grad():
        old, mask = reference_logprobs(model, rollouts, "original")
    clipped = 0
    for question in (0, 1):
        rows = rollouts.question == question
        logprobs, _ = reference_logprobs(model, rollouts, "original")
        ratio = torch.exp(logprobs - old)
        clipped += int((((ratio - 1.005).abs() > 0.015) & (mask > 0))[rows].sum())
        policy = -torch.minimum(ratio * advantages[:, None], ratio.clamp(0.99, 1.02) * advantages[:, None])
        kl = torch.exp(old - logprobs) - 1 - (old - logprobs)
        per_response = ((policy + 0.5 * kl) * mask).sum(1) / mask.sum(1)
        model.zero_grad()
        per_response[rows].mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.5 * parameter.grad
    assert clipped > 0, "the second mini-batch must be outside the clip range for the test to say anything"

    learn(update, batch)
    expected = dict(model.named_parameters())
    for name, parameter in parameters_of(update).items():
        torch.testing.assert_close(parameter, expected[name].detach(), atol=1e-5, rtol=1e-4)


def test_a_replayed_response_keeps_the_log_probs_of_the_policy_that_sampled_it(tiny_policy, make_batch):
    batch = make_batch(REWARDS)
    replayed = torch.zeros(12, dtype=torch.bool)
    replayed[[1, 8]] = True  # one in each mini-batch
    rollouts = replace(batch.rollouts, replayed=replayed)
    batch.rollouts = rollouts
    loss = PolicyLoss(kl_coef=0.0, replay_shaping=0.2)
    update = make_update(
        tiny_policy, loss=loss, mini_batches=2, advantage=GroupAdvantage(scale="none"), lr=0.5
    )

    model = AutoModelForCausalLM.from_pretrained(tiny_policy)
    with torch.no_grad():
        old, mask = reference_logprobs(model, rollouts, "original")
    for row in (1, 8):
        old[row, : len(rollouts.logprobs[row])] = rollouts.logprobs[row]
    pools = [np.array(sum(question, [])) for question in REWARDS]
    advantages = torch.tensor(np.concatenate([pool - pool.mean() for pool in pools])).float()[:, None]
    for question in (0, 1):
        ratio = torch.exp(reference_logprobs(model, rollouts, "original")[0] - old)
        policy = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        policy = torch.where(replayed[:, None], advantages * ratio / (ratio + 0.2), policy)
        model.zero_grad()
        (-(policy * mask).sum(1) / mask.sum(1))[rollouts.question == question].mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.5 * parameter.grad

    learn(update, batch)
    expected = dict(model.named_parameters())
    for name, parameter in parameters_of(update).items():
        torch.testing.assert_close(parameter, expected[name].detach(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("token_budget", [1, 40, 10_000])
def test_micro_batches_do_not_change_the_update(tiny_policy, make_batch, token_budget):
    def parameters(budget):
        update = make_update(tiny_policy, token_budget=budget, mini_batches=2)
        learn(update, make_batch(REWARDS))
        return torch.cat([p.flatten() for _, p in parameters_of(update).items()])

    torch.testing.assert_close(parameters(token_budget), parameters(200), atol=1e-6, rtol=0)


@pytest.mark.parametrize("ratio", ["token", "sequence"])
def test_the_size_of_the_heads_chunks_does_not_change_the_update(tiny_policy, make_batch, ratio):
    def learned(size):
        loss = PolicyLoss(clip_low=0.01, clip_high=0.02, kl_coef=0.5, entropy_coef=0.1, ratio=ratio)
        update = make_update(tiny_policy, loss=loss, lr=0.5)
        update.scorer.policy.chunk_size = size
        (result,) = learn(update, make_batch(REWARDS))
        outputs = result.outputs()
        del outputs["seconds_update"], outputs["token_entropies"]  # the latter are rounded to half precision
        return parameters_of(update), outputs, result.metrics()

    # Responses have 3 to 8 tokens: chunks of 5 begin and end inside them.
    torch.testing.assert_close(learned(5), learned(None), atol=1e-6, rtol=1e-4, equal_nan=True)


def test_the_entropies_of_tokens_are_those_whose_mean_is_shown(tiny_policy, make_batch):
    (result,) = learn(make_update(tiny_policy, token_budget=40), make_batch(REWARDS))
    outputs = result.outputs()
    assert any(entropies is not None for entropies in outputs["token_entropies"])
    for entropies, mean, length in zip(
        outputs["token_entropies"], outputs["entropy"], result.experience.lengths, strict=True
    ):
        if entropies is None:
            assert torch.isnan(mean), "of a response that needed no forward"
        else:
            assert len(entropies) == length
            assert float(entropies.float().mean()) == pytest.approx(float(mean), rel=2e-3)


def test_leaving_out_responses_without_advantage_changes_nothing(tiny_policy, make_batch):
    uniform = [[[1.0, 1.0], [1.0, 1.0]], *REWARDS]

    class Tiny(GroupAdvantage):
        """The same advantages, but never exactly zero."""

        def __call__(self, groups):
            advantages = super().__call__(groups)
            return torch.where(advantages == 0, 1e-12, advantages)

    dropped = make_update(tiny_policy, mini_batches=1)
    kept = make_update(tiny_policy, mini_batches=1, advantage=Tiny("question"))
    learn(dropped, make_batch(uniform))
    learn(kept, make_batch(uniform))
    for (name, a), (_, b) in zip(parameters_of(dropped).items(), parameters_of(kept).items(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-7, rtol=0, msg=name)


def test_a_batch_without_any_advantage_makes_a_step_of_zero(tiny_policy, make_batch):
    update = make_update(tiny_policy, mini_batches=2)
    before = {name: p.clone() for name, p in load_causal_lm(tiny_policy).named_parameters()}
    (result,) = learn(update, make_batch([[[1.0, 1.0]], [[0.0, 0.0]]]))
    assert result.grad_norms == [0.0, 0.0]
    for name, parameter in parameters_of(update).items():
        assert torch.equal(parameter, before[name])


def test_the_first_ratio_is_exactly_one(tiny_policy, make_batch, monkeypatch):
    loss = Seen(kl_coef=0.0)
    seen = loss.seen
    update = make_update(tiny_policy, loss=loss, mini_batches=2, token_budget=30)
    learn(update, make_batch(REWARDS))
    first = [x for x in seen if torch.equal(x.logprobs.detach(), x.old_logprobs)]
    later = [x for x in seen if not torch.equal(x.logprobs.detach(), x.old_logprobs)]
    assert first
    assert later, "after an update the policy differs from the old one"
    assert seen[: len(first)] == first


def test_truncated_responses_are_left_out_when_masked(tiny_policy, make_batch):
    batch = make_batch([[[1.0, 0.0, 1.0, 0.0]]])
    object.__setattr__(batch.rollouts, "truncated", torch.tensor([False, False, True, True]))
    loss = Seen(kl_coef=0.0)
    seen = loss.seen
    update = make_update(tiny_policy, loss=loss, mini_batches=1, mask_truncated=True)
    learn(update, batch)
    assert sum(len(x.lengths) for x in seen) == 2
    assert {x.num_responses for x in seen} == {2}
    assert {x.num_tokens for x in seen} == {float(batch.rollouts.lengths[:2].sum())}


def test_the_prompt_correction_is_the_truncated_ratio_of_the_two_prompts(tiny_policy, make_batch):
    batch = make_batch([[[1.0, 0.0], [0.0, 1.0]]])
    loss = Seen(kl_coef=0.0)
    seen = loss.seen
    update = make_update(tiny_policy, loss=loss, mini_batches=1, prompt_correction=1.5)
    learn(update, batch)
    model = AutoModelForCausalLM.from_pretrained(tiny_policy)
    with torch.no_grad():
        anchored, mask = reference_logprobs(model, batch.rollouts, "original")
        sampled, _ = reference_logprobs(model, batch.rollouts, "own")
    expected = torch.exp(anchored - sampled).clamp(max=1.5)[mask > 0]
    weights = torch.cat([x.weights for x in seen])
    torch.testing.assert_close(weights.sort().values, expected.sort().values, atol=1e-4, rtol=1e-4)
    assert (weights == 1).sum() >= int(batch.rollouts.lengths[:2].sum()), (
        "samples of the original keep their weight"
    )


def test_a_gradient_that_is_not_finite_is_skipped_and_too_many_stop_the_run(tiny_policy, make_batch):
    loss = Seen(factor=float("nan"), kl_coef=0.0)
    update = make_update(tiny_policy, loss=loss, mini_batches=1, max_skipped=1)
    before = {name: p.clone() for name, p in load_causal_lm(tiny_policy).named_parameters()}
    with pytest.raises(FloatingPointError, match=r"policy\.skip_grad_norm\), .* 2 "):
        learn(update, make_batch(REWARDS), make_batch(REWARDS))
    for name, parameter in parameters_of(update).items():
        assert torch.equal(parameter, before[name])


def test_a_gradient_that_explodes_is_skipped_where_a_limit_is_set(tiny_policy, make_batch):
    update = make_update(tiny_policy, mini_batches=1, skip_grad_norm=1e-6, max_skipped=1)
    before = {name: p.clone() for name, p in load_causal_lm(tiny_policy).named_parameters()}
    learn(update, make_batch(REWARDS))
    with pytest.raises(FloatingPointError, match=r"policy\.skip_grad_norm\), .* 2 "):
        learn(update, make_batch(REWARDS))
    for name, parameter in parameters_of(update).items():
        assert torch.equal(parameter, before[name])


def test_advantages_that_are_not_finite_end_the_run(tiny_policy, make_batch):
    class Broken(AdvantageStrategy):
        def __call__(self, groups):
            return torch.full_like(groups.rewards, torch.nan)

    with pytest.raises(FloatingPointError, match="Broken .advantage."):
        learn(make_update(tiny_policy, advantage=Broken()), make_batch(REWARDS))


def test_what_lacks_something_is_refused_by_name(tiny_policy):
    with pytest.raises(TypeError, match=r"AdvantageStrategy.*needs_entropy"):
        make_update(tiny_policy, advantage=lambda groups: groups.rewards)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_options_are_finite_but_for_the_cap_of_staleness(value):
    for name in ("max_grad_norm", "skip_grad_norm", "prompt_correction"):
        with pytest.raises(ValueError, match=f"policy.{name}"):
            UpdateOptions(**{name: value})
    if value == math.inf:
        assert UpdateOptions(staleness_cap=value).staleness_cap == value
    else:
        with pytest.raises(ValueError, match="policy.staleness_cap"):
            UpdateOptions(staleness_cap=value)


def test_the_options_are_those_of_the_papers_run():
    options = UpdateOptions()
    assert (options.anchor, options.mini_batches, options.max_grad_norm) == ("original", 2, 1.0)
    assert (options.mask_truncated, options.prompt_correction, options.skip_grad_norm) == (False, None, None)
    assert (options.staleness_cap, options.max_skipped) == (2.0, 5)
    UpdateOptions(mini_batches=1, staleness_cap=1.0)
    with pytest.raises(ValueError, match="policy.mini_batches"):
        UpdateOptions(mini_batches=0)
    with pytest.raises(ValueError, match="policy.staleness_cap"):
        UpdateOptions(staleness_cap=0.99)
    for name in ("max_grad_norm", "skip_grad_norm", "prompt_correction"):
        with pytest.raises(ValueError, match=f"policy.{name}.*0"):
            UpdateOptions(**{name: 0.0})
    with pytest.raises(FrozenInstanceError):
        options.mini_batches = 3
    with pytest.raises(TypeError):
        UpdateOptions("own")


class Progress(AdvantageStrategy):
    """Keeps the progress that it is told; all advantages are minus one, in `rewards`' sign."""

    def __call__(self, groups):
        self.told = groups.progress
        return torch.where(groups.rewards > 0.5, 1.0, -1.0)


def test_progress_is_zero_unless_it_is_told_and_a_response_with_an_advantage_of_minus_one_is_learned(
    tiny_policy, make_batch
):
    strategy = Progress()
    update = make_update(tiny_policy, advantage=strategy, mini_batches=1)
    batch = make_batch(REWARDS)
    result = update(batch.rollouts, len(batch.groups))
    assert strategy.told == 0.0
    assert result.dropped == 0
    update(batch.rollouts, len(batch.groups), progress=0.75)
    assert strategy.told == 0.75


def test_old_logprobs_are_scored_for_later_mini_batches_alone(tiny_policy, make_batch, monkeypatch):
    update = make_update(tiny_policy, mini_batches=2)
    scored, score = [], update.scorer.score
    monkeypatch.setattr(
        update.scorer, "score", lambda e, rows: scored.append(rows.tolist()) or score(e, rows)
    )
    batch = make_batch(REWARDS)
    update(batch.rollouts, len(batch.groups))
    second = (batch.rollouts.question == 1).nonzero()[:, 0].tolist()
    assert scored == [second]


class Entropy(Progress):
    """A strategy that needs the entropy of every response."""

    needs_entropy = True

    def __call__(self, groups):
        self.entropy = groups.entropy
        return super().__call__(groups)


def test_the_first_mini_batch_has_no_old_logprobs_even_where_a_strategy_needed_them(
    tiny_policy, make_batch, monkeypatch
):
    strategy = Entropy()
    update = make_update(tiny_policy, advantage=strategy, mini_batches=2)
    known, take = [], MicroBatch.__post_init__

    def spy(self):
        known.append(self.experience.any_token(self.experience.columns.old_known).nonzero()[:, 0].tolist())
        take(self)

    monkeypatch.setattr(MicroBatch, "__post_init__", spy)
    batch = make_batch(REWARDS)
    update(batch.rollouts, len(batch.groups))
    assert torch.isfinite(strategy.entropy).all()
    assert known
    assert all(rows == (batch.rollouts.question == 1).nonzero()[:, 0].tolist() for rows in known)


def test_gradients_are_synchronised_with_the_last_micro_batch_alone(tiny_policy, make_batch):
    told = []
    update = make_update(tiny_policy, mini_batches=1, token_budget=12)

    @contextmanager
    def gradient_sync(last):
        told.append(last)
        yield

    update.gradient_sync = gradient_sync
    batch = make_batch(REWARDS)
    update(batch.rollouts, len(batch.groups))
    assert len(told) > 2
    assert told == [False] * (len(told) - 1) + [True]


def test_the_learning_rate_is_that_of_the_first_group(tiny_policy, make_batch):
    update = make_update(tiny_policy, mini_batches=1)
    update.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))], "lr": 0.5})
    (result,) = learn(update, make_batch(REWARDS))
    assert result.steps[-1].lr == 0.1


def test_skipped_steps_are_counted_and_a_good_one_forgives(tiny_policy, make_batch):
    batch = make_batch(REWARDS)
    update = make_update(tiny_policy, mini_batches=1, skip_grad_norm=1e-9, max_skipped=2)
    with pytest.warns(UserWarning, match="Skipped an optimizer") as warned:
        (result,) = learn(update, batch)
    line = linecache.getline(warned[0].filename, warned[0].lineno).strip()
    assert line == "result.steps.append(self._apply_gradient())"
    assert result.skipped == 1
    assert update.skipped_in_a_row == 1
    update.options = UpdateOptions(max_grad_norm=1e9, mini_batches=1)
    learn(update, batch)
    assert update.skipped_in_a_row == 0


def test_useful_operations_are_counted_by_the_given_function_or_not_at_all(tiny_policy, make_batch):
    update = make_update(tiny_policy)
    assert learn(update, make_batch(REWARDS))[0].flop == 0
    update.useful_flop = lambda work: 3.0 * work.tokens
    (result,) = learn(update, make_batch(REWARDS))
    assert result.flop == 3 * result.work.tokens > 0


def test_updates_are_told_apart(tiny_policy):
    update = make_update(tiny_policy)
    assert len({update, make_update(tiny_policy)}) == 2
    assert update != copy(update)


@pytest.mark.parametrize(
    "terms", [{"entropy_coef": 1.0, "kl_coef": 0.0}, {"entropy_coef": 0.0, "kl_coef": 1.0}]
)
def test_other_terms_learn_from_responses_without_an_advantage(tiny_policy, make_batch, terms):
    update = make_update(tiny_policy, loss=PolicyLoss(**terms), mini_batches=2)
    batch = make_batch([[[1.0, 1.0]], [[0.0, 0.0]]])
    (result,) = learn(update, batch)
    assert result.dropped == 0
    if terms["entropy_coef"]:
        assert min(result.grad_norms) > 1e-3  # the entropy has a gradient
    assert 0 <= result.seconds < 3600


def test_a_norm_at_its_limit_is_not_skipped(tiny_policy, make_batch):
    batch = make_batch(REWARDS)
    (first,) = learn(make_update(tiny_policy, mini_batches=1), batch)
    (norm,) = first.grad_norms
    (again,) = learn(make_update(tiny_policy, mini_batches=1, skip_grad_norm=norm), batch)
    assert again.grad_norms == [norm]
    assert again.skipped == 0


def test_losses_are_multiplied_by_the_number_of_ranks_that_average_gradients(
    tiny_policy, make_batch, monkeypatch
):
    batch = make_batch(REWARDS)
    (alone,) = learn(make_update(tiny_policy, mini_batches=1), batch)
    monkeypatch.setattr(update_module, "world_size", lambda: 2)
    (of_two,) = learn(make_update(tiny_policy, mini_batches=1), batch)
    assert of_two.grad_norms == pytest.approx([2 * norm for norm in alone.grad_norms], rel=1e-5)


def scored_by(update, rollouts, monkeypatch):
    """The rows of each call of `Scorer.score` in one update, and whether under the own prompts."""
    calls, score = [], update.scorer.score

    def spy(experience, rows):
        calls.append(rows.tolist())
        return score(experience, rows)

    monkeypatch.setattr(update.scorer, "score", spy)
    update(rollouts, 2)
    return calls


def test_only_responses_that_need_a_weight_are_scored_for_it(tiny_policy, make_batch, monkeypatch):
    # Rows 3-5 and 9-11 answer rephrasings. Question 0 has the same reward everywhere, so no gradient.
    batch = make_batch([[[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]], [[0.0, 1.0, 0.5], [1.0, 0.0, 0.0]]])
    replayed, staleness = torch.zeros(12, dtype=torch.bool), torch.zeros(12, dtype=torch.long)
    replayed[9], staleness[[4, 7, 10]] = True, 1
    rollouts = replace(batch.rollouts, replayed=replayed, staleness=staleness)
    update = make_update(tiny_policy, mini_batches=1, prompt_correction=2.0)
    assert scored_by(update, rollouts, monkeypatch) == [[10, 11], [10, 11]]
    update = make_update(tiny_policy, mini_batches=1)
    assert scored_by(update, rollouts, monkeypatch) == [[10]]
    update = make_update(tiny_policy, mini_batches=2)
    new = [6, 7, 8, 10, 11]  # of question 1
    experience = Experience(rollouts, "original")
    experience.take_advantages(update.advantage, 0.0)
    with_gradient = [row for row in new if float(experience.advantages[row])]
    assert scored_by(update, rollouts, monkeypatch) == [[10], with_gradient]


def test_no_gradients_are_kept_after_an_update(tiny_policy, make_batch):
    update = make_update(tiny_policy, mini_batches=2)
    stepped = []
    update.optimizer.register_step_pre_hook(
        lambda *_: stepped.append(all(p.grad is not None for p in parameters_of(update).values()))
    )
    learn(update, make_batch(REWARDS))
    assert stepped == [True, True]
    assert all(parameter.grad is None for parameter in parameters_of(update).values())


@pytest.mark.parametrize(
    "returned",
    [
        lambda rewards: rewards.tolist(), lambda rewards: None, lambda rewards: rewards.sum(),
        lambda rewards: rewards[:-1],
        lambda rewards: rewards[:, None], lambda rewards: rewards.numpy(), lambda rewards: rewards.to("meta"),
        lambda rewards: rewards.double() + 1e39,
    ],
)  # fmt: skip
def test_advantages_of_another_kind_are_refused_with_the_class_of_the_strategy(
    tiny_policy, make_batch, returned
):
    class Mine(AdvantageStrategy):
        def __call__(self, groups):
            return returned(groups.rewards)

    with pytest.raises((TypeError, ValueError, FloatingPointError), match=r"Mine \(advantage\)"):
        learn(make_update(tiny_policy, advantage=Mine()), make_batch(REWARDS))


def test_a_strategy_or_loss_that_ends_the_program_is_an_error(tiny_policy, make_batch):
    class Leaving(AdvantageStrategy):
        def __call__(self, groups):
            raise SystemExit(0)

    class LeavingLoss(PolicyLoss):
        def __call__(self, inputs):
            raise SystemExit(0)

    with pytest.raises(RuntimeError, match=r"Leaving \(advantage\)"):
        learn(make_update(tiny_policy, advantage=Leaving()), make_batch(REWARDS))
    with pytest.raises(RuntimeError, match=r"LeavingLoss \(loss\)"):
        learn(make_update(tiny_policy, loss=LeavingLoss(kl_coef=0.0)), make_batch(REWARDS))


@pytest.mark.parametrize(
    "options", [{}, {"aggregation": "token_mean"}, {"aggregation": "constant", "max_length": 8}]
)
def test_an_update_in_which_every_response_is_masked_leaves_the_policy_alone(
    tiny_policy, make_batch, options
):
    batch = make_batch(REWARDS)
    batch.rollouts = replace(batch.rollouts, truncated=torch.ones_like(batch.rollouts.truncated))
    update = make_update(tiny_policy, loss=PolicyLoss(kl_coef=0.1, **options), mask_truncated=True)
    before = {name: parameter.clone() for name, parameter in parameters_of(update).items()}
    (result,) = learn(update, batch)
    assert result.grad_norms == [0.0, 0.0]
    assert all(torch.equal(parameter, before[name]) for name, parameter in parameters_of(update).items())


def test_gradients_that_are_not_clipped_keep_their_norm(tiny_policy, make_batch):
    batch = make_batch(REWARDS)
    before, results = {}, {}
    for norm in (None, 1e9, 1e-3):
        update = make_update(tiny_policy, mini_batches=1, max_grad_norm=norm)
        (results[norm],) = learn(update, batch)
        before[norm] = torch.cat([p.detach().flatten() for p in update.scorer.policy.parameters()])
    assert torch.equal(before[None], before[1e9])
    assert not torch.equal(before[None], before[1e-3])
    assert results[None].grad_norms == results[1e9].grad_norms
    assert results[None].grad_norms[0] > 1e-3


@pytest.mark.parametrize("error", [SystemExit(0), SystemExit("bye"), StopIteration()])
def test_an_optimizer_that_ends_the_program_is_an_error(tiny_policy, make_batch, monkeypatch, error):
    update = make_update(tiny_policy, mini_batches=1)

    def leave():
        raise error

    monkeypatch.setattr(update.optimizer, "step", leave)
    with pytest.raises(RuntimeError, match=r"\(optimizer\)"):
        learn(update, make_batch(REWARDS))
