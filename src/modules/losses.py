"""Policy losses on packed tokens: a policy term, the divergence from the reference, entropy.

Policy terms per token are PPO-style clipping over token, sequence or geometric-mean ratios, CISPO, and
replay. Every normaliser is an argument that counts the whole mini-batch, so that micro-batches and ranks add
up to one large batch. Token losses (`by_token`) accept any part of a response's tokens. Other losses need
whole responses.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ..types import Loss, LossInputs, LossOutputs
from ..types.checks import check_choice, found, name_of

MAX_LOG_RATIO = 20.0
"""Largest absolute log-ratio before the exponential; larger ones are clamped.

e^20 is finite, and far outside any clip range. Beyond the bound, the gradient through the exponential is
zero."""


def bounded_exp(log_ratio: Tensor) -> Tensor:
    """Return the exponential of `log_ratio`, clamped to ±`MAX_LOG_RATIO` so that no gradient overflows."""
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def response_sum(values: Tensor, inputs: LossInputs) -> Tensor:
    """Return the sum of `values` [T], numbers or flags, over each response, [R] float."""
    values = values.to(inputs.logprobs.dtype)
    return values.new_zeros(len(inputs.lengths)).index_add(0, inputs.response, values)


def response_mean(values: Tensor, inputs: LossInputs) -> Tensor:
    """Return the mean of `values` [T] over each token's response, [T]."""
    return (response_sum(values, inputs) / inputs.lengths)[inputs.response]


class Surrogate(NamedTuple):
    """Policy term of each token, to maximise, before weights and aggregation. All fields are [T]."""

    value: Tensor
    """Value of the term. A response-level term is repeated at each of the response's tokens."""
    ratio: Tensor
    """Policy ratio in the term."""
    clip_low: Tensor
    """Bool, true if the lower bound of the clip range acted on this token."""
    clip_high: Tensor


def clip_surrogate(
    _: LossInputs, log_ratio: Tensor, advantages: Tensor, low: float, high: float
) -> Surrogate:
    """Return min(ρ A, clip(ρ, 1 − low, 1 + high) A).

    A token counts as clipped if the clip removes its gradient.
    """
    ratio = bounded_exp(log_ratio)
    value = torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)
    return Surrogate(
        value, ratio, (ratio < 1 - low) & (advantages < 0), (ratio > 1 + high) & (advantages > 0)
    )


def gspo_surrogate(
    inputs: LossInputs, log_ratio: Tensor, advantages: Tensor, low: float, high: float
) -> Surrogate:
    """Return GSPO's clipped term, with one ratio per response (arXiv 2507.18071, Eq. 5–7).

    The ratio is length-normalised, s = (π_θ(o)/π_old(o))^(1/|o|), and repeated at each of the response's
    tokens. Value and gradient are those of GSPO-token unless `weights` vary within a response.
    """
    return clip_surrogate(inputs, response_mean(log_ratio, inputs), advantages, low, high)


def product_surrogate(
    inputs: LossInputs, log_ratio: Tensor, advantages: Tensor, low: float, high: float
) -> Surrogate:
    """Return the clipped term with the ratio of the whole response, π_θ(o)/π_old(o), without a length norm.

    The ratio is repeated at each of the response's tokens. It is the ratio of RLOO in TRL.
    """
    whole = response_sum(log_ratio, inputs)[inputs.response]
    return clip_surrogate(inputs, whole, advantages, low, high)


def gmpo_surrogate(
    inputs: LossInputs, log_ratio: Tensor, advantages: Tensor, low: float, high: float
) -> Surrogate:
    """Return GMPO's term: A times the geometric mean of the clipped token ratios (arXiv 2507.20673).

    Each ratio is clipped before the mean, in log space, to (e^−low, e^high): the upper bound acts if A > 0,
    the lower bound if A < 0.
    """
    clip_low = (log_ratio < -low) & (advantages < 0)
    clip_high = (log_ratio > high) & (advantages > 0)
    bounded = torch.where(clip_low | clip_high, log_ratio.clamp(-low, high), log_ratio)
    ratio = bounded_exp(response_mean(bounded, inputs))
    return Surrogate(ratio * advantages, ratio, clip_low, clip_high)


def cispo_surrogate(
    inputs: LossInputs, log_ratio: Tensor, advantages: Tensor, low: float, high: float
) -> Surrogate:
    """Return CISPO's term, sg[clip(ρ, 1 − low, 1 + high)] A log π_θ (arXiv 2506.13585).

    No token loses its gradient.
    """
    ratio = bounded_exp(log_ratio).detach()
    weight = ratio.clamp(1 - low, 1 + high)
    return Surrogate(weight * advantages * inputs.logprobs, ratio, ratio < 1 - low, ratio > 1 + high)


SURROGATES: dict[tuple[str, str], Callable[[LossInputs, Tensor, Tensor, float, float], Surrogate]] = {
    ("clip", "token"): clip_surrogate,  # GRPO and TA-GRPO (Eq. 2 and 4)
    ("clip", "sequence"): gspo_surrogate,
    ("clip", "product"): product_surrogate,
    ("clip", "geometric"): gmpo_surrogate,
    ("cispo", "token"): cispo_surrogate,
}
"""(objective, ratio) → function from inputs, log-ratios [T], advantages [T] and bounds to a policy term."""


RATIOS: dict[str, Callable[[Tensor, LossInputs], Tensor]] = {
    "token": lambda log_ratio, _: log_ratio,
    "sequence": response_mean,
    "product": lambda log_ratio, inputs: response_sum(log_ratio, inputs)[inputs.response],
}
"""Level of the ratio → function of [T] log-ratios of tokens to [T] logarithms of the ratios that are clipped."""


def replace_replayed(
    policy: Surrogate, ratio: Tensor, advantages: Tensor, replayed: Tensor, delta: float
) -> Surrogate:
    """Return `policy` with A ρ/(ρ + δ) at the tokens of replayed responses, without clipping (ExGRPO)."""
    value = torch.where(replayed, advantages * ratio / (ratio + delta), policy.value)
    ratio = torch.where(replayed, ratio, policy.ratio)
    return Surrogate(value, ratio, policy.clip_low & ~replayed, policy.clip_high & ~replayed)


KL_ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": lambda d: -d,
    "k2": lambda d: d.square() / 2,
    "k3": lambda d: torch.expm1(d) - d,
}
"""Estimators of KL(p ‖ q) from one token drawn from p; d = log q − log p (Schulman, "Approximating KL").

In the loss, p is π_θ and q the reference; in k3, d is at most `MAX_LOG_RATIO` (see `token_kl`). In
expectation, the gradient of k2 is that of the divergence, the gradient of k3 is that of KL(π_ref ‖ π_θ), and
the gradient of k1 is zero."""


def token_kl(inputs: LossInputs, estimator: str) -> Tensor:
    """Return the estimated divergence from the reference at each token, [T].

    With d = log π_ref − log π, k3 is constant if d exceeds `MAX_LOG_RATIO`; verl clamps k3 to ±10, which
    removes larger gradients.

    Raises:
        ValueError: if the inputs have no log-probs of the reference.
    """
    if inputs.reference_logprobs is None:
        raise ValueError(
            "Expected reference_logprobs for a loss with kl_coef > 0, but got None. Score the responses "
            "under the frozen reference policy, or set loss.kl_coef=0."
        )
    difference = inputs.reference_logprobs - inputs.logprobs
    return KL_ESTIMATORS[estimator](difference.clamp(max=MAX_LOG_RATIO) if estimator == "k3" else difference)


TOKEN_TERMS: dict[str, Callable[[LossInputs], Tensor]] = {
    "log_ratio": lambda inputs: (inputs.logprobs - inputs.old_logprobs).abs(),
    "nll": lambda inputs: -inputs.logprobs,
}
"""Name → loss term, [T], multiplied by its coefficient in `LossInputs.token_terms` and added to the loss.

`log_ratio`: |log π_θ − log π_old|, without gradient if the ratio is exactly 1 (KL-Cov); `nll`: −log π_θ, to
learn tokens regardless of their ratio."""


def inverse(count: float) -> float:
    """Return 1 / `count`, and 0 for 0: if all responses of a batch are masked, its loss is 0.

    >>> inverse(4), inverse(0)
    (0.25, 0.0)
    """
    return 1 / count if count else 0.0


def inverses(counts: Tensor) -> Tensor:
    """Return 1 / `counts`, elementwise, and 0 for 0.

    >>> inverses(torch.tensor([4.0, 0.0]))
    tensor([0.2500, 0.0000])
    """
    return torch.where(counts == 0, 0.0, 1 / counts)


AGGREGATIONS: dict[str, Callable[[LossInputs, int | None], Tensor]] = {
    "sequence_mean": lambda inputs, _: inverses(
        inputs.lengths.to(inputs.logprobs.dtype) * inputs.num_responses
    ),
    "token_mean": lambda inputs, _: inputs.logprobs.new_full(
        (len(inputs.lengths),), inverse(inputs.num_tokens)
    ),
    "constant": lambda inputs, max_length: inputs.logprobs.new_full(
        (len(inputs.lengths),), inverse((max_length or 1) * inputs.num_responses)
    ),
}
"""Name → function that returns the factor of each response's token terms in the loss, [R].

`sequence_mean`: 1 / (|o| · responses), GRPO; `token_mean`: 1 / tokens, DAPO (arXiv 2503.14476, Eq. 8);
`constant`: 1 / (max_length · responses), Dr. GRPO (arXiv 2503.20783). The factor is 0 if no response counts.
"""


@dataclass(eq=False)
class PolicyLoss(Loss):
    """Policy loss to minimise: policy term, divergence from the reference, and entropy, aggregated.

    L = Σ_t w_t · ( −v_t · surrogate_t + β · KL_t − γ · H_t + Σ_n c_nt · term_nt )

    | method | ratio | objective | aggregation | clip_low, clip_high | source |
    |---|---|---|---|---|---|
    | GRPO, TA-GRPO | token | clip | sequence_mean | 0.2, 0.2 | TA-GRPO, Eq. 2 and 4, Table 2 |
    | DAPO | token | clip | token_mean | 0.2, 0.28 | arXiv 2503.14476 |
    | Dr. GRPO | token | clip | constant | 0.2, 0.2 | arXiv 2503.20783 |
    | GSPO | sequence | clip | sequence_mean | 3e-4, 4e-4 | arXiv 2507.18071 |
    | RLOO in TRL | product | clip | sequence_mean | 0.2, 0.2 | TRL's `RLOOTrainer` |
    | GMPO | geometric | clip | sequence_mean | 0.4, 0.4 | arXiv 2507.20673 |
    | CISPO | token | cispo | token_mean | none, 3 (ours) | arXiv 2506.13585 |
    | ExGRPO | token | clip | constant | none, none | arXiv 2510.02245, Appendix D.4 |

    At tokens of replayed responses (ExGRPO, arXiv 2510.02245), the surrogate is A ρ/(ρ + δ), which is bounded
    without a clip. ρ is the token's ratio to the policy that sampled it, and δ is `replay_shaping`.

    The aggregation gives w_t (`AGGREGATIONS`). v_t is `LossInputs.weights`, which multiply only the policy
    term; a term of a whole response is multiplied by their mean. c_nt is the coefficient in
    `LossInputs.token_terms` of term n in `TOKEN_TERMS`.

    The outputs' `sums` and `response_sums` are sums over tokens: `tokens`; `ratio`; `clip_low` and
    `clip_high` (see `Surrogate`); `clip_dual` with `dual_clip`; `clipped`, the tokens whose gradient any of
    these bounds removed; `old_logprob`; `kl` and `entropy` if the inputs have them.

    Args:
        clip_low: ε_low; the range is (1 − ε_low, 1 + ε_high), for geometric ratios (e^−ε_low, e^ε_high). None
            sets no lower bound.
        clip_high: ε_high; larger than `clip_low` is DAPO's clip-higher. None sets no upper bound.
        ratio: `token`; `sequence`, the length-normalised ratio of a response; `product`, its ratio without a
            length norm; `geometric`.
        aggregation: `sequence_mean` | `token_mean` | `constant`.
        kl_coef: β; 0 needs no reference.
        kl_estimator: `k1` | `k2` | `k3`.
        kl_ratio: Multiply KL_t by the policy ratio before clipping, at the level of `ratio` and with its
            gradient, as TRL's `use_bias_correction_kl` does. With token ratios and k3, the expected gradient
            is then that of KL(π_θ ‖ π_ref).
        entropy_coef: γ; positive values reward entropy.
        entropy_aggregation: Aggregation of the entropy term; None takes `aggregation`. ExGRPO's code has
            `token_mean`.
        dual_clip: c > 1: if A < 0, the policy term is at least c · A (arXiv 1912.09729). None sets no such
            bound.
        objective: `clip` | `cispo`.
        max_length: Length that `constant` divides by, in tokens.
        replay_shaping: δ > 0, for replayed responses alone.

    Raises:
        ValueError: if an option is out of its range, or options contradict each other.

    >>> inputs = LossInputs(
    ...     logprobs=torch.tensor([1.5, 0.8]).log().requires_grad_(), old_logprobs=torch.zeros(2), entropy=None,
    ...     reference_logprobs=None, advantages=torch.tensor([2.0]), response=torch.tensor([0, 0]),
    ...     lengths=torch.tensor([2]), num_responses=1, num_tokens=2)
    >>> round(PolicyLoss(kl_coef=0.0)(inputs).loss.item(), 4)  # −(min(1.5, 1.2) · 2 + 0.8 · 2) / 2
    -2.0
    >>> round(PolicyLoss(ratio="sequence", kl_coef=0.0)(inputs).loss.item(), 4)  # −√(1.5 · 0.8) · 2
    -2.1909
    """

    clip_low: float | None = 0.2
    clip_high: float | None = 0.2
    ratio: Literal["token", "sequence", "product", "geometric"] = "token"
    aggregation: Literal["sequence_mean", "token_mean", "constant"] = "sequence_mean"
    kl_coef: float = 0.001
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    kl_ratio: bool = False
    entropy_coef: float = 0.0
    entropy_aggregation: Literal["token_mean"] | None = None
    dual_clip: float | None = None
    objective: Literal["clip", "cispo"] = "clip"
    max_length: int | None = None
    replay_shaping: float = 0.1

    def __post_init__(self) -> None:
        self.by_token = self.takes_credit = self.ratio == "token"
        self._check_ranges()
        self._check_combinations()

    def _check_ranges(self) -> None:
        check_choice("ratio", self.ratio, ("token", "sequence", "product", "geometric"), "loss")
        check_choice("aggregation", self.aggregation, tuple(AGGREGATIONS), "loss")
        check_choice(
            "entropy_aggregation", self.entropy_aggregation or "null", ("null", "token_mean"), "loss"
        )
        check_choice("kl_estimator", self.kl_estimator, tuple(KL_ESTIMATORS), "loss")
        check_choice("objective", self.objective, ("clip", "cispo"), "loss")
        low = self.clip_low or 0.0
        high = self.clip_high or 0.0
        if low < 0 or high < 0 or (self.ratio != "geometric" and low > 1):
            raise ValueError(
                "Expected 0 ≤ loss.clip_low ≤ 1 (any value from 0 with loss.ratio=geometric) and "
                f"loss.clip_high ≥ 0, or null for no bound, but got {self.clip_low} and {self.clip_high}."
            )
        if self.kl_coef < 0:
            raise ValueError(f"Expected loss.kl_coef to be at least 0, but got {self.kl_coef}.")
        if self.dual_clip is not None and self.dual_clip <= 1:
            raise ValueError(
                f"Expected loss.dual_clip to be null or greater than 1, but got {self.dual_clip}."
            )
        if self.max_length is not None and self.max_length < 1:
            raise ValueError(f"Expected loss.max_length to be null or at least 1, but got {self.max_length}.")
        if self.replay_shaping <= 0:
            raise ValueError(
                f"Expected loss.replay_shaping to be greater than 0, but got {self.replay_shaping}."
            )

    def _check_combinations(self) -> None:
        if (self.objective, self.ratio) not in SURROGATES:
            raise ValueError(
                f"Expected loss.ratio=token with loss.objective=cispo, but got {self.ratio}: CISPO's weights "
                "are those of tokens. Set loss.ratio=token or loss.objective=clip."
            )
        if self.ratio == "geometric" and self.aggregation != "sequence_mean":
            raise ValueError(
                "Expected loss.aggregation=sequence_mean with loss.ratio=geometric, but got "
                f"{self.aggregation}: GMPO's term belongs to a whole response. Set "
                "loss.aggregation=sequence_mean."
            )
        if self.kl_ratio and self.ratio == "geometric":
            raise ValueError(
                "Expected loss.kl_ratio=false with loss.ratio=geometric, but got true: GMPO's ratio is clipped "
                "before its mean. Drop it."
            )
        if self.dual_clip is not None and (self.objective != "clip" or self.ratio == "geometric"):
            raise ValueError(
                "Expected loss.dual_clip=null unless loss.objective=clip and loss.ratio is token, sequence or "
                f"product, but got {self.dual_clip} with {self.objective} and {self.ratio}. Drop it."
            )
        if (self.aggregation == "constant") != (self.max_length is not None):
            raise ValueError(
                "Expected loss.max_length with loss.aggregation=constant and only there, but got "
                f"{self.max_length} with {self.aggregation}. Set it to the largest number of response tokens."
            )

    def __call__(self, inputs: LossInputs) -> LossOutputs:
        """Return the loss of one micro-batch, and the sums of its metrics.

        Raises:
            ValueError: if the inputs lack the reference's log-probs or the entropy that the loss needs, or
                name an unknown token term.
        """
        per_token = inputs.token_advantages
        advantages = inputs.advantages[inputs.response] if per_token is None else per_token
        low, high = (math.inf if bound is None else bound for bound in (self.clip_low, self.clip_high))
        log_ratio = inputs.logprobs - inputs.old_logprobs
        policy = SURROGATES[self.objective, self.ratio](inputs, log_ratio, advantages, low, high)
        if inputs.replayed is not None:
            replayed = inputs.replayed[inputs.response]
            policy = replace_replayed(
                policy, bounded_exp(log_ratio), advantages, replayed, self.replay_shaping
            )
        tokens = {
            "tokens": torch.ones_like(advantages),
            "ratio": policy.ratio.detach(),
            "clip_low": policy.clip_low,
            "clip_high": policy.clip_high,
            "old_logprob": inputs.old_logprobs.detach(),
        }
        value = policy.value
        clipped = (policy.clip_low | policy.clip_high) & (self.objective == "clip")
        if self.dual_clip is not None:
            floor = torch.where(advantages < 0, self.dual_clip * advantages, -torch.inf)
            tokens["clip_dual"] = value < floor
            clipped = clipped | tokens["clip_dual"]
            value = torch.maximum(value, floor)
        tokens["clipped"] = clipped
        terms = -value if inputs.weights is None else -value * inputs.weights
        for name, coefficients in inputs.token_terms.items():
            check_choice("terms", name, tuple(TOKEN_TERMS), "credit")
            terms = terms + coefficients * TOKEN_TERMS[name](inputs)
        weights = AGGREGATIONS[self.aggregation](inputs, self.max_length)
        if self.kl_coef or inputs.reference_logprobs is not None:
            kl = token_kl(inputs, self.kl_estimator)
            tokens["kl"] = kl.detach()
            if self.kl_ratio:
                kl = kl * bounded_exp(RATIOS[self.ratio](log_ratio, inputs))
            terms = terms + self.kl_coef * kl
        if inputs.entropy is not None:
            tokens["entropy"] = inputs.entropy.detach()
        if self.entropy_coef:
            if inputs.entropy is None:
                raise ValueError("Expected entropy for a loss with entropy_coef ≠ 0, but got None.")
            # The loss is multiplied by its weights below; the quotient gives the entropy its own weights.
            other = AGGREGATIONS[self.entropy_aggregation or self.aggregation](inputs, self.max_length)
            quotient = torch.where(weights == 0, 0.0, other / weights)
            terms = terms - self.entropy_coef * inputs.entropy * quotient[inputs.response]
        return LossOutputs(
            loss=(terms * weights[inputs.response]).sum(),
            sums={name: column.sum() for name, column in tokens.items()},
            response_sums={name: response_sum(column, inputs) for name, column in tokens.items()},
        )


def check_outputs(outputs: object, inputs: LossInputs, loss: Loss) -> LossOutputs:
    """Check that a loss has returned a scalar with a gradient, and sums of the right shapes.

    A loss that is not finite passes this check: the norm of the gradient shows such a loss.

    Raises:
        TypeError: if `outputs` is not a `LossOutputs` of tensors, or its loss has no gradient although the
            log-probs have.
        ValueError: if the loss is not a scalar, or a sum has a shape that differs from its field's.
    """
    expected = f"Expected {name_of(loss)} (loss) to return"
    if not isinstance(outputs, LossOutputs):
        raise TypeError(f"{expected} LossOutputs, but got {found(outputs)}.")
    count = len(inputs.lengths)
    parts: dict[str, tuple[object, list[int]]] = {"loss": (outputs.loss, [])}
    parts |= {f"sums[{name!r}]": (value, []) for name, value in outputs.sums.items()}
    parts |= {f"response_sums[{name!r}]": (value, [count]) for name, value in outputs.response_sums.items()}
    for name, (value, shape) in parts.items():
        if not isinstance(value, Tensor) or value.is_complex():
            raise TypeError(f"{expected} a float tensor of shape {shape} as {name}, but got {found(value)}.")
        if list(value.shape) != shape or value.device != inputs.logprobs.device:
            device = inputs.logprobs.device
            raise ValueError(f"{expected} {name} of shape {shape} on {device}, but got {found(value)}.")
    if not outputs.loss.is_floating_point() or (
        inputs.logprobs.requires_grad and not outputs.loss.requires_grad
    ):
        raise TypeError(
            f"{expected} a float loss with a gradient, but got {found(outputs.loss)} without one. "
            "Compute it from LossInputs.logprobs; if no token counts, return `logprobs.sum() * 0`."
        )
    return outputs
