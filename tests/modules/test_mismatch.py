"""The correction for the engine against verl's formulas on padded batches, written anew, and through an update."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib import resources
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM

from tagrpo.modules.advantages import GroupAdvantage
from tagrpo.modules.experience import Experience
from tagrpo.modules.losses import PolicyLoss
from tagrpo.modules.mismatch import Corrected, MismatchCorrection, check_corrected
from tagrpo.modules.policy.logprobs import Scorer
from tagrpo.modules.policy.model import load_causal_lm
from tagrpo.modules.update import PolicyUpdate, UpdateOptions
from tagrpo.packing.policy import CausalPolicy
from tagrpo.types import AdvantageStrategy

REWARDS = [[[1.0, 1.0, 0.0], [0.0, 1.0, 0.0]], [[0.0, 1.0, 0.5], [1.0, 0.0, 0.0]]]

PRESETS = {
    "token_tis": ("token", 2.0, None, None),
    "sequence_tis": ("sequence", 2.0, None, None),
    "sequence_mis": ("sequence", 2.0, "seq_sum_k1", (0.5, 2.0)),
    "geometric_rs": (None, None, "seq_mean_k1", (0.999, 1.001)),
    "geometric_rs mismatch.weight=token mismatch.cap=2.0": ("token", 2.0, "seq_mean_k1", (0.999, 1.001)),
    "geometric_rs mismatch.weight=sequence mismatch.cap=2.0": (
        "sequence",
        2.0,
        "seq_mean_k1",
        (0.999, 1.001),
    ),
    "divergence_rs": (None, None, "seq_mean_k3", 0.01),
    "divergence_rs mismatch.weight=token mismatch.cap=2.0": ("token", 2.0, "seq_mean_k3", 0.01),
    "divergence_rs mismatch.weight=sequence mismatch.cap=2.0": ("sequence", 2.0, "seq_mean_k3", 0.01),
    "icepop": ("token", None, "token_k1", (0.2, 2.0)),
}
"""Option and settings → verl's rollout_is, its threshold, rollout_rs, its threshold; bounds of k1 are those of μ/π."""


def verl(log_ratio, mask, level, threshold, rejection, bounds):
    """rollout_corr_helper.py: weights and the mask after rejection, [B, T] each."""
    mask = mask.double()
    safe = log_ratio.clamp(-20, 20)
    lengths = mask.sum(-1, keepdim=True)
    if level is None:
        weights = torch.ones_like(safe)
    else:
        total = (log_ratio * mask).sum(-1, keepdim=True).clamp(-20, 20).expand_as(safe)
        weights = (safe if level == "token" else total).exp()
    weights = weights.clamp(max=math.inf if threshold is None else threshold) * mask
    if rejection is None:
        return weights, mask
    k1, k3 = -safe, safe.exp() - 1 - safe
    statistic = {
        "token_k1": k1,
        "seq_sum_k1": (k1 * mask).sum(-1, keepdim=True),
        "seq_mean_k1": (k1 * mask).sum(-1, keepdim=True) / lengths,
        "seq_mean_k3": (k3 * mask).sum(-1, keepdim=True) / lengths,
    }[rejection].expand_as(safe)
    if rejection.endswith("k1"):
        keep = (statistic >= math.log(bounds[0])) & (statistic <= math.log(bounds[1]))
    else:
        keep = statistic <= bounds
    return weights, mask * keep


def preset(name):
    from hydra import compose, initialize_config_module
    from hydra.utils import instantiate

    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        return instantiate(compose("train", f"mismatch={name}".split()).mismatch)


def drawn(scale, seed=0):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 30, (200,), generator=generator)
    mask = torch.arange(30) < lengths[:, None]
    sampled = -torch.rand(200, 30, generator=generator, dtype=torch.float64)
    # Responses differ in how far the engine is off.
    off = scale * torch.rand(200, 1, generator=generator, dtype=torch.float64)
    return sampled + off * torch.randn(200, 30, generator=generator, dtype=torch.float64), sampled, mask


@pytest.mark.shell
@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("scale", [0.01, 0.6, 8.0])
def test_presets_are_those_of_verl(name, scale):
    logprobs, sampled, mask = drawn(scale)
    found = preset(name)(logprobs, sampled, mask)
    weights, kept = verl(logprobs - sampled, mask, *PRESETS[name])
    torch.testing.assert_close(found.weights, weights * kept, atol=1e-6, rtol=1e-6)
    used = (weights * kept)[mask]
    metrics = found.metrics()
    assert metrics["weight"] == pytest.approx(float(used.mean()), abs=1e-6)
    assert metrics["rejected"] == pytest.approx(1 - float(kept[mask].mean()), abs=1e-9)
    ess = float(used.mean() ** 2 / used.square().mean()) if used.any() else 0.0
    assert metrics["ess"] == pytest.approx(ess, abs=1e-6)


@pytest.mark.shell
def test_every_preset_has_been_compared_and_they_differ():
    from hydra import compose, initialize_config_module

    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        assert compose("train").get("mismatch") is None
    folder = resources.files("tagrpo.configs") / "mismatch"
    options = {file.name.removesuffix(".yaml") for file in folder.iterdir()}
    assert {name.split()[0] for name in PRESETS} == options - {"none"}
    outcomes = {name: preset(name)(*drawn(0.05)).sums["square"] for name in PRESETS}
    assert len({round(square, 6) for square in outcomes.values()}) > 5


def test_geometric_weights_are_those_of_the_mean_log_ratio():
    logprobs, sampled, mask = drawn(0.6)
    found = MismatchCorrection(weight="geometric", cap=1.05)(logprobs, sampled, mask).weights
    for row in range(len(mask)):
        mean = float((logprobs - sampled)[row][mask[row]].mean())
        assert found[row][mask[row]].tolist() == pytest.approx(
            [min(math.exp(mean), 1.05)] * int(mask[row].sum())
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weight": "batch"}, r"mismatch\.weight to be one of"),
        ({"cap": 0.0}, r"mismatch\.cap"),
        ({"reject": "token", "low": 0.0}, r"0 < mismatch\.low ≤ mismatch\.high"),
        ({"reject": "token"}, r"one of them at least"),
        ({"low": 0.5}, r"with mismatch\.reject and only there"),
        ({"reject": "token", "low": 2.0, "high": 0.5}, r"0 < mismatch\.low ≤ mismatch\.high"),
        ({"reject": "divergence", "low": 0.5}, r"mismatch\.high alone"),
        ({"reject": "divergence", "low": 0.5, "high": 1.0}, r"mismatch\.high alone"),
        ({"weight": None}, r"Use mismatch=none"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        MismatchCorrection(**options)


def test_weights_are_capped_at_2_unless_another_cap_is_given_which_may_be_1():
    ratios, response = torch.tensor([0.5, 1.5, 2.5, 4.0]), torch.arange(4)
    assert MismatchCorrection().of_tokens(ratios.log(), response).weights.tolist() == pytest.approx(
        [0.5, 1.5, 2, 2]
    )
    below = MismatchCorrection(cap=1.0).of_tokens(ratios.log(), response)
    assert below.weights.tolist() == pytest.approx([0.5, 1, 1, 1])
    for given, name in ((below, "weights"), (MismatchCorrection(), "cap")):
        with pytest.raises(AttributeError):
            setattr(given, name, 3.0)


def test_ratios_at_a_bound_are_kept_and_not_truncated():
    log_ratio, response = torch.zeros(2), torch.arange(2)
    for bounds in ({"low": 1.0}, {"high": 1.0}, {"low": 1.0, "high": 1.0}):
        found = MismatchCorrection(cap=1.0, reject="token", **bounds).of_tokens(log_ratio, response)
        assert found.metrics() == {"weight": 1.0, "rejected": 0.0, "truncated": 0.0, "ess": 1.0}


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
def test_means_are_over_the_tokens_there_are_and_none_have_none(level):
    correction = MismatchCorrection(weight=level)
    alone = correction.of_tokens(torch.tensor([0.5]).log(), torch.tensor([0])).metrics()
    assert alone == pytest.approx({"weight": 0.5, "rejected": 0.0, "truncated": 0.0, "ess": 1.0})
    nothing = correction.of_tokens(torch.zeros(0), torch.zeros(0, dtype=torch.long))
    assert nothing.metrics() == {"weight": 0.0, "rejected": 0.0, "truncated": 0.0, "ess": 0.0}


# ---------------------------------------------------------------------- through an update


class Distinct(AdvantageStrategy):
    """Advantages that tell responses apart."""

    def __call__(self, groups):
        return torch.arange(1.0, 1 + len(groups.rewards))


class Seen(PolicyLoss):
    """Keeps the weights of each response."""

    by_token = False

    def __post_init__(self):
        super().__post_init__()
        self.by_token, self.weights, self.old = False, {}, {}

    def __call__(self, inputs):
        for row, advantage in enumerate(inputs.advantages.tolist()):
            self.weights[round(advantage) - 1] = inputs.weights[inputs.response == row]
        return super().__call__(inputs)


def logprobs_of(model, prompt, response):
    with torch.no_grad():
        logits = model(torch.cat([prompt, response])[None]).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits, -1)[torch.arange(len(response)), response]


@pytest.fixture
def recorded(tiny_policy, make_batch):
    """A batch whose engine is a little off, and by how much: [R] of [T_r] log π − log μ under the sampled prompt."""
    batch = make_batch(REWARDS)
    rollouts, model = batch.rollouts, AutoModelForCausalLM.from_pretrained(tiny_policy)
    generator = torch.Generator().manual_seed(0)
    ratios = [0.4 * torch.randn(len(ids), generator=generator) for ids in rollouts.token_ids]
    sampled = [rollouts.prompts[p].token_ids for p in rollouts.prompt.tolist()]
    own = [logprobs_of(model, *pair) for pair in zip(sampled, rollouts.token_ids, strict=True)]
    logprobs = [mine - ratio for mine, ratio in zip(own, ratios, strict=True)]
    return replace(batch, rollouts=replace(rollouts, logprobs=logprobs)), ratios


def updated(folder, batch, mismatch, loss=None, advantage=None, lr=0.3, **options):
    policy = CausalPolicy(load_causal_lm(folder))
    update = PolicyUpdate(
        Scorer(policy, token_budget=60), advantage or Distinct(), loss or PolicyLoss(kl_coef=0.0),
        torch.optim.SGD(policy.parameters(), lr=lr), UpdateOptions(max_grad_norm=1e9, **options), mismatch=mismatch,
    )  # fmt: skip
    result = update(batch.rollouts, len(batch.groups))
    return policy.model, result


@pytest.mark.shell
@pytest.mark.parametrize("anchor", ["own", "original"])
@pytest.mark.parametrize("mini_batches", [1, 2])
@pytest.mark.parametrize("name", ["token_tis", "sequence_mis", "icepop"])
def test_an_update_weighs_responses_as_verl_does(tiny_policy, recorded, name, anchor, mini_batches):
    batch, ratios = recorded
    loss = Seen(kl_coef=0.0)
    staleness = torch.zeros(12, dtype=torch.long)
    staleness[[1, 4, 8]] = 2  # weighted as all others are, and once
    batch.rollouts = replace(batch.rollouts, staleness=staleness)
    _, stats = updated(tiny_policy, batch, preset(name), loss, anchor=anchor, mini_batches=mini_batches)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones(len(r)) for r in ratios], batch_first=True)
    padded = torch.nn.utils.rnn.pad_sequence([r.double() for r in ratios], batch_first=True)
    weights, kept = verl(padded, mask, *PRESETS[name])
    for row in range(12):
        expected = (weights * kept)[row][mask[row] > 0]
        if expected.any():
            torch.testing.assert_close(loss.weights[row].double(), expected, atol=5e-6, rtol=5e-6)
        else:
            assert row not in loss.weights, "a rejected response needs no forward"
    logged = stats.metrics()
    tokens = mask > 0
    assert logged["rollout/mismatch_rejected"] == pytest.approx(1 - float(kept[tokens].mean()), abs=1e-6)
    assert logged["rollout/mismatch_weight"] == pytest.approx(
        float((weights * kept)[tokens].mean()), abs=1e-5
    )
    assert 0 < logged["rollout/mismatch_ess"] < 1


@pytest.mark.shell
def test_the_change_of_prompt_is_corrected_apart(tiny_policy, recorded):
    batch, ratios = recorded
    loss, alone = Seen(kl_coef=0.0), Seen(kl_coef=0.0)
    updated(tiny_policy, batch, preset("token_tis"), loss, mini_batches=1, prompt_correction=1.5)
    updated(tiny_policy, batch, None, alone, mini_batches=1, prompt_correction=1.5)
    for row, ratio in enumerate(ratios):
        torch.testing.assert_close(
            loss.weights[row], alone.weights[row] * ratio.exp().clamp(max=2.0), atol=1e-5, rtol=1e-5
        )


@pytest.mark.shell
def test_replayed_responses_keep_the_ratio_to_what_sampled_them(tiny_policy, recorded):
    batch, _ = recorded
    replayed = torch.zeros(12, dtype=torch.bool)
    replayed[5] = True
    batch.rollouts = replace(batch.rollouts, replayed=replayed)
    loss = Seen(kl_coef=0.0)
    updated(tiny_policy, batch, preset("token_tis"), loss, anchor="own", mini_batches=1)
    assert torch.equal(loss.weights[5], torch.ones(len(loss.weights[5])))


@pytest.mark.shell
@pytest.mark.parametrize(("anchor", "forwards"), [("own", 1), ("original", 2)])
def test_it_costs_one_forward_which_own_prompts_need_anyway(
    tiny_policy, recorded, anchor, forwards, monkeypatch
):
    batch, _ = recorded
    calls, score = [], Scorer.score
    monkeypatch.setattr(
        Scorer, "score", lambda self, given, rows: calls.append(len(rows)) or score(self, given, rows)
    )
    updated(tiny_policy, batch, None, anchor=anchor, mini_batches=2, advantage=GroupAdvantage())
    assert len(calls) == 1, "old log-probs alone"
    calls.clear()
    updated(
        tiny_policy, batch, preset("token_tis"), anchor=anchor, mini_batches=2, advantage=GroupAdvantage()
    )
    assert len(calls) == forwards


def test_the_change_of_prompt_costs_forwards_of_the_responses_that_it_concerns_alone(
    tiny_policy, recorded, monkeypatch
):
    class Without3(Distinct):
        def __call__(self, groups):
            return super().__call__(groups).index_fill(0, torch.tensor([3]), 0.0)

    batch, _ = recorded
    replayed, staleness = torch.zeros(12, dtype=torch.bool), torch.zeros(12, dtype=torch.long)
    replayed[9], staleness[[1, 4]] = True, 2
    batch.rollouts = replace(batch.rollouts, replayed=replayed, staleness=staleness)
    calls, score = [], Scorer.score
    monkeypatch.setattr(
        Scorer, "score", lambda self, given, rows: calls.append(rows.tolist()) or score(self, given, rows)
    )
    updated(tiny_policy, batch, None, advantage=Without3(), mini_batches=1, prompt_correction=1.5)
    # Rows 3 to 5 and 9 to 11 answer rephrasings: 3 has no advantage, 9 its ratio in the loss. Under both prompts:
    assert calls == [[4, 5, 10, 11]] * 2
    calls.clear()
    updated(tiny_policy, batch, None, advantage=Without3(), mini_batches=1)
    assert calls == [[4]], "without the correction, the stale one alone"


def test_a_rejected_response_with_a_term_of_its_own_is_learned_from(tiny_policy, recorded):
    batch, _ = recorded
    experience = Experience(batch.rollouts, "own")
    experience.has_gradient = torch.ones(12, dtype=torch.bool)
    experience.columns.terms = {"nll": (experience.response == 3).float()}
    scorer = Scorer(CausalPolicy(load_causal_lm(tiny_policy)), token_budget=60)
    none = Corrected(weights=torch.zeros(len(experience.response)), sums={})
    kept = experience.correct_mismatch(scorer, SimpleNamespace(of_tokens=lambda *_: none))
    assert kept.tolist() == [row == 3 for row in range(12)]


CORRECTIONS = [
    {"weight": "token"}, {"weight": "sequence"}, {"weight": "geometric"}, {"weight": "token", "cap": None},
    {"weight": None, "reject": "token", "low": 0.5, "high": 2.0},
    {"weight": "token", "reject": "sequence", "low": 0.5, "high": 2.0},
    {"weight": None, "reject": "geometric", "low": 0.9, "high": 1.1},
    {"weight": "token", "reject": "divergence", "high": 0.5},
]  # fmt: skip


@pytest.mark.parametrize("options", CORRECTIONS, ids=str)
@pytest.mark.parametrize(
    "dtypes", [(torch.bfloat16, torch.bfloat16), (torch.bfloat16, torch.float32), (torch.float16,) * 2]
)
def test_half_precision_is_corrected_as_the_same_numbers_in_float32(options, dtypes):
    generator = torch.Generator().manual_seed(0)
    current, sampled = (-torch.rand(4, 6, generator=generator).to(dtype) for dtype in dtypes)
    mask = torch.rand(4, 6, generator=generator) > 0.3
    correction = MismatchCorrection(**options)
    found, expected = correction(current, sampled, mask), correction(current.float(), sampled.float(), mask)
    assert found.weights.dtype == torch.float32
    assert torch.equal(found.weights, expected.weights)
    assert found.sums == expected.sums


@pytest.mark.parametrize("options", CORRECTIONS, ids=str)
@pytest.mark.parametrize(
    "pair", [(math.nan, -1.0), (-1.0, math.nan), (-math.inf, -math.inf), (-1.0, -math.inf)]
)
def test_logprobs_that_say_nothing_are_refused_where_they_count(options, pair):
    current, sampled = torch.zeros(2, 3), torch.zeros(2, 3)
    current[1, 1], sampled[1, 1] = pair
    mask = torch.ones(2, 3, dtype=torch.bool)
    with pytest.raises(FloatingPointError, match="mismatch.* 1 of 6"):
        MismatchCorrection(**options)(current, sampled, mask)
    mask[1, 1] = False
    assert MismatchCorrection(**options)(current, sampled, mask).weights.isfinite().all()


@pytest.mark.parametrize("options", CORRECTIONS, ids=str)
@pytest.mark.parametrize("extreme", [-math.inf, -1e30, 1e30, -1000.0, 1000.0])
def test_extreme_ratios_have_finite_weights(options, extreme):
    ratio = torch.tensor([0.1, extreme, -0.2, extreme])
    if extreme == 1e30:
        ratio[3] = -1e30
    found = MismatchCorrection(**options).of_tokens(ratio, torch.tensor([0, 0, 1, 1]))
    assert found.weights.isfinite().all()
    assert (found.weights >= 0).all()
    assert all(math.isfinite(value) for value in found.metrics().values())


@pytest.mark.parametrize("options", CORRECTIONS, ids=str)
def test_a_batch_without_tokens_has_no_weights_and_finite_metrics(options):
    nothing = MismatchCorrection(**options)(torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2, 3))
    assert nothing.weights.tolist() == [[0.0] * 3] * 2
    assert set(nothing.metrics().values()) == {0.0}
    assert (
        len(MismatchCorrection(**options).of_tokens(torch.zeros(0), torch.zeros(0, dtype=torch.long)).weights)
        == 0
    )


@pytest.mark.parametrize(
    "returned",
    [
        lambda count: None,
        torch.ones,
        lambda count: Corrected(weights=[1.0] * count, sums={}),
        lambda count: Corrected(weights=torch.ones(count + 1), sums={}),
        lambda count: Corrected(weights=torch.full((count,), math.nan), sums={}),
        lambda count: Corrected(weights=-torch.ones(count), sums={}),
    ],
)
def test_a_correction_of_another_kind_is_named(returned):
    with pytest.raises((TypeError, ValueError, FloatingPointError), match=r"MismatchCorrection \(mismatch\)"):
        check_corrected(returned(3), 3, MismatchCorrection())
    sound = Corrected(weights=torch.ones(3), sums={"tokens": 3.0})
    assert check_corrected(sound, 3, MismatchCorrection()).sums == sound.sums
