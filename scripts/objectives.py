"""Write what each experiment optimises, and by how much it is biased.

python scripts/objectives.py     # tables of docs/objectives.md and of benchmarks/OBJECTIVES.md, and their figures
"""

import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch
from hydra import compose, initialize_config_module
from hydra.utils import instantiate
from torch import Tensor

from tagrpo.analysis.plots import save
from tagrpo.analysis.sections import table
from tagrpo.files import write_section
from tagrpo.lab.enumerable import (
    Policies,
    Responses,
    all_responses,
    expected_update,
    probabilities,
    success_rates,
    token_entropies,
)
from tagrpo.lab.objectives import expected_weights
from tagrpo.metrics.functional import zero_gradient_probability
from tagrpo.modules.advantages import GroupAdvantage
from tagrpo.modules.losses import PolicyLoss
from tagrpo.modules.update import UpdateOptions
from tagrpo.settings import methods
from tagrpo.types import AdvantageStrategy

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "notebooks"))  # its figures are those of objectives.ipynb
from objective_plots import Setting, plot_pooling, plot_weights, pooling  # noqa: E402

DOCUMENT = ROOT / "docs" / "objectives.md"
ALL = ROOT / "benchmarks" / "OBJECTIVES.md"
"""The tables of all experiments."""
SHOWN = (
    "dapo", "dr_grpo", "grpo", "grpo_matched", "mathforge", "max_rl", "pass_at_k", "pass_at_k_bootstrap", "pkpo",
    "ta_grpo",
)  # fmt: skip
"""Experiments whose weights are in `DOCUMENT`."""
SHOWN_POOLS = ((0.01, 0.5), (0.01, 0.5, 0.9))
"""Success rates of the original and of its rephrasings in `DOCUMENT`."""
RATES = (0.01, 0.05, 0.2, 0.5, 0.8, 0.95)
SHAPES = {"one token": all_responses(64), "up to four tokens": all_responses(4, 4)}
OWN = UpdateOptions(anchor="own")
DIVISORS = {"sequence_mean": "own length", "token_mean": "all tokens", "constant": "a constant"}


class Experiment(NamedTuple):
    """The settings of an experiment that decide its expected update."""

    setting: Setting
    """Advantage strategy, prompts and samples."""
    loss: PolicyLoss
    """As configured."""
    options: UpdateOptions
    """Anchor and prompt correction."""
    keeps: str | None
    """Pool of dynamic sampling, which replaces uniform ones; None without."""


def experiments() -> dict[str, Experiment]:
    """All experiments whose strategy reads rewards alone and whose tokens share their response's advantage."""
    found = {}
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        for name in methods.experiments():
            cfg = compose("train", [f"experiment={name}"])
            if cfg.get("credit") is not None:
                continue
            strategy, sampling = instantiate(cfg.advantage), cfg.rollout.get("dynamic_sampling")
            with suppress(ValueError):  # the strategy reads entropies or answers
                expected_weights(strategy, torch.tensor([0.5]), 2)
                found[name] = Experiment(
                    Setting(strategy, 1 + cfg.data.num_rephrasings, cfg.data.samples_per_prompt),
                    instantiate(cfg.loss),
                    UpdateOptions(anchor=cfg.policy.anchor, prompt_correction=cfg.policy.prompt_correction),
                    None if sampling is None else sampling.pool,
                )
    return found


def left_out(kept: Iterable[str]) -> str:
    """List the experiments that are not in `kept`, by what their advantages depend on besides verdicts."""
    reasons: dict[str, list[str]] = {
        "entropies, answers or log-probs": [],
        "what is remembered of a question": [],
        "the token": [],
    }
    per_response, history, per_token = reasons.values()
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        for name in sorted({*methods.experiments()} - {*kept}):
            cfg = compose("train", [f"experiment={name}"])
            if cfg.get("credit") is not None:
                per_token.append(name)
            elif instantiate(cfg.advantage).needs_history:
                history.append(name)
            else:
                per_response.append(name)
    lines = []
    for reason, names in reasons.items():
        lines.append(f"- on {reason}: {', '.join(f'`{name}`' for name in names)}")
    return "\n".join(lines)


def weights(methods: dict[str, Experiment]) -> str:
    """w(p) of every experiment where its prompts are equally difficult; methods of one line share a row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for name, (setting, _, _, keeps) in methods.items():
        line = [f"{setting.prompts} × {setting.samples}"]
        for rate in RATES:
            success = torch.full((setting.prompts,), rate, dtype=torch.float64)
            value = float(expected_weights(setting.strategy, success, setting.samples).sum())
            if keeps is not None:
                silent = zero_gradient_probability(success, setting.samples, pooled=keeps == "question").max()
                value /= 1 - float(silent)
            line.append(f"{value:.3f}")
        rows.setdefault(tuple(line), []).append(f"`{name}`")
    head = ["experiment", "prompts × responses", *(f"p = {rate:g}" for rate in RATES)]
    return markdown(head, ([", ".join(names), *line] for line, names in rows.items()))


def pools(
    original: Sequence[float] = (0.01, 0.1, 0.5), rephrasings: Sequence[float] = (0.01, 0.1, 0.5, 0.9)
) -> str:
    """Effect of a pool of 4 × 8 on the original question."""
    columns = {
        "original": "p₀",
        "rephrasings": "p of 3 rephrasings",
        "alone/weight": "weight alone",
        "pooled/weight": "pooled",
        "matched/weight": "alone, 32 responses",
        "alone/no_gradient": "no gradient alone",
        "pooled/no_gradient": "pooled",
        "pooled/offset": "E[A], pooled",
        "alone/about_verdict": "about the verdict, alone",
        "pooled/about_verdict": "pooled",
    }
    percent = {name for name in columns if name.endswith(("no_gradient", "about_verdict"))}
    rows = pooling(original, rephrasings, 3, 8).to_dict("records")
    cells = (
        [f"{100 * row[c]:.0f} %" if c in percent else f"{round(row[c], 2) + 0.0:g}" for c in columns]
        for row in rows
    )
    return markdown(list(columns.values()), cells)


def drawn(seed: int, prompts: int, responses: Responses, distance: float = 0.5, easier: float = 0.0) -> tuple:
    """Policies for some prompts [P, S, V], and [R] which responses are correct.

    Args:
        seed: Of everything.
        prompts: P.
        responses: All of them; a tenth is correct.
        distance: Standard deviation of the rephrasings' logits from those of the original, which is 1.
        easier: Added to the log-odds of correct responses to rephrasings.
    """
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(prompts, *responses.table, generator=generator, dtype=torch.float64)
    table = torch.cat([noise[:1], noise[:1] + distance * noise[1:]])
    count = len(responses.lengths)
    correct = torch.zeros(count, dtype=torch.bool)
    correct[torch.randperm(count, generator=generator)[: count // 10]] = True
    tilted = probabilities(table, responses) * torch.where(correct, easier, 0.0).exp()
    mass = torch.zeros_like(table)
    for row, chance in zip(mass[1:], tilted[1:], strict=True):
        row.index_put_((responses.states, responses.tokens), chance[responses.response], accumulate=True)
    table[1:] = mass[1:].log()
    return table, correct


def objective(
    ages: Policies,
    responses: Responses,
    correct: Tensor,
    setting: Setting,
    loss: PolicyLoss,
    options: UpdateOptions,
) -> Tensor:
    """[P, S, V] gradient of what a method is to ascend: success rates by their weights, divergence, entropy.

    Σ_n w_n p_n, or (Σ_n w_n) p_0 under `anchor=original`; minus β KL(π_ref ‖ π), which is what k3 descends; plus γ H of
    the tokens. All over the mean length of a response, or over the constant of `aggregation=constant`.
    """
    logits = ages.current.clone().requires_grad_()
    sampled, current, reference = (
        probabilities(table, responses) for table in (ages.sampler, logits, ages.reference)
    )
    success = success_rates(logits, responses, correct)
    weight = expected_weights(setting.strategy, sampled @ correct.double(), setting.samples)
    score = [0] * setting.prompts if options.anchor == "original" else list(range(setting.prompts))
    divergence = (reference[score] * (reference[score] / current[score]).log()).sum(1).mean()
    entropy = (token_entropies(logits, responses) * current[:, responses.response]).sum(1)[score].mean()
    length = float((sampled * responses.lengths).sum(1).mean())
    scale = 1 / (loss.max_length if loss.aggregation == "constant" else length)
    value = (weight * success[score]).sum() - loss.kl_coef * divergence + loss.entropy_coef * entropy
    return torch.autograd.grad(scale * value, logits)[0]


def bias(update: Tensor, target: Tensor) -> float:
    """‖update − target‖ / ‖target‖."""
    return float((update - target).norm() / target.norm())


def estimators(methods: dict[str, Experiment]) -> str:
    """The bias of every experiment, with its own loss, anchor and correction; equal lines share a row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for name, (setting, loss, options, _) in methods.items():
        line = ["own prompt" if options.anchor == "own" else "original", DIVISORS[loss.aggregation]]
        for responses in SHAPES.values():
            table, correct = drawn(0, setting.prompts, responses)
            ages = Policies(table, table, table, table + 0.3 * drawn(1, setting.prompts, responses)[0])
            if loss.aggregation == "constant":
                loss.max_length = int(responses.lengths.max())
            update = expected_update(
                ages, responses, correct, setting.strategy, loss, setting.samples, options
            )
            line.append(share(bias(update, objective(ages, responses, correct, setting, loss, options))))
        rows.setdefault(tuple(line), []).append(f"`{name}`")
    head = ["experiment", "scored under", "divides by", *SHAPES]
    return markdown(head, ([", ".join(names), *line] for line, names in rows.items()))


def anchoring(seeds: int = 8) -> str:
    """Effect of anchoring in pools of 4 × 4, and what a correction leaves of it: means over random policies."""
    per_prompt = GroupAdvantage("prompt")
    named: dict[str, tuple[AdvantageStrategy, float | None]] = {
        "TA-GRPO: pooled, uncorrected": (GroupAdvantage(), None),
        "pools of single prompts, uncorrected": (per_prompt, None),
        "`prompt_correction=2`": (GroupAdvantage(), 2.0),
        "`prompt_correction=10`": (GroupAdvantage(), 10.0),
        "weights of tokens, not truncated": (GroupAdvantage(), 1e300),
    }
    worlds = [(responses, easier) for responses in SHAPES.values() for easier in (0.0, 2.0)]
    head = ["estimator"]
    for name, (responses, easier) in zip([n for n in SHAPES for _ in range(2)], worlds, strict=True):
        rates = torch.stack([
            success_rates(table, responses, correct)
            for table, correct in (drawn(seed, 4, responses, easier=easier) for seed in range(seeds))
        ])  # fmt: skip
        head.append(f"{name}, p {rates[:, 0].mean():.2f} and {rates[:, 1:].mean():.2f}")
    rows = []
    for label, (strategy, cap) in named.items():
        options = UpdateOptions(anchor="original", prompt_correction=cap)
        cells = [anchored(strategy, options, responses, easier, seeds) for responses, easier in worlds]
        rows.append([label, *(f"{share(error)} (×{along:.2f})" for error, along in cells)])
    return markdown(head, rows)


def anchored(
    strategy: AdvantageStrategy, options: UpdateOptions, responses: Responses, easier: float, seeds: int
) -> tuple[float, float]:
    """Mean bias, and mean length of the update along the objective's gradient over that gradient's."""
    loss = PolicyLoss(kl_coef=0.0, aggregation="constant", max_length=1)
    found = []
    for seed in range(seeds):
        table, correct = drawn(seed, 4, responses, easier=easier)
        update = expected_update(table, responses, correct, strategy, loss, 4, options)
        target = objective(Policies(*[table] * 4), responses, correct, Setting(strategy, 4, 4), loss, options)
        found.append([bias(update, target), float((update * target).sum() / target.square().sum())])
    error, along = torch.tensor(found).mean(0).tolist()
    return error, along


def moved(step: float = 0.6, seeds: int = 8) -> str:
    """Bias where the policy has moved along its own update since the responses were sampled, or since the old one."""
    clip = {"kl_coef": 0.0, "aggregation": "constant", "max_length": 1}
    free = PolicyLoss(clip_low=1.0, clip_high=1e9, **clip)
    named: dict[str, tuple[PolicyLoss, float | None]] = {
        "stale by one update, weights up to 1": (free, 1.0),
        "stale by one update, weights up to 2 (`staleness_cap=2`)": (free, 2.0),
        "stale by one update, weights not truncated": (free, 1e300),
        "second mini-batch, no clip": (free, None),
        "second mini-batch, GRPO's clip (0.2, 0.2)": (PolicyLoss(**clip), None),
        "second mini-batch, DAPO's clip (0.2, 0.28)": (PolicyLoss(clip_high=0.28, **clip), None),
        "second mini-batch, CISPO (1, 0.28)": (PolicyLoss(1.0, 0.28, objective="cispo", **clip), None),
    }
    setting, head, columns = Setting(GroupAdvantage(), 1, 8), ["estimator"], []
    for name, responses in SHAPES.items():
        found, divergences = torch.zeros(len(named)), []
        for seed in range(seeds):
            table, correct = drawn(seed, 1, responses)
            update = expected_update(table, responses, correct, setting.strategy, free, 8, OWN)
            new = table + step * update / update.norm()
            before, after = (probabilities(policy, responses) for policy in (table, new))
            divergences.append(float((before * (before / after).log()).sum()))
            for row, (loss, cap) in enumerate(named.values()):
                ages = Policies(new, table if cap is None else new, table, table)
                options = UpdateOptions(anchor="own", staleness_cap=cap or 2.0)
                update = expected_update(ages, responses, correct, setting.strategy, loss, 8, options)
                found[row] += bias(update, objective(ages, responses, correct, setting, loss, OWN)) / seeds
        head.append(f"{name}, moved by {sum(divergences) / seeds:.3f} nats")
        columns.append([share(value) for value in found.tolist()])
    return markdown(head, zip(named, *columns, strict=True))


def share(value: float) -> str:
    """A relative bias: in percent, or as exact."""
    if value < 1e-10:
        return "exact"
    return f"{100 * value:.0f} %" if value >= 0.1 else f"{100 * value:.2g} %"


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column is text."""
    return "\n".join(table(head, rows, "---:"))


def main() -> None:
    """Write the tables and figures."""
    torch.set_num_threads(1)
    methods = experiments()
    shown = {
        "weights": weights({name: methods[name] for name in SHOWN}),
        "pools": pools(*SHOWN_POOLS),
        "anchoring": anchoring(),
    }
    for name, made in shown.items():
        write_section(DOCUMENT, name, made)
    full = {
        "weights": weights(methods),
        "left out": left_out(methods),
        "pools": pools(),
        "estimators": estimators(methods),
        "moved": moved(),
    }
    for name, made in full.items():
        write_section(ALL, name, made)
    save(
        plot_weights({name: experiment.setting for name, experiment in methods.items()}),
        ROOT / "docs/objectives.png",
    )
    save(plot_pooling(), ROOT / "docs/pooling.png")


if __name__ == "__main__":
    main()
