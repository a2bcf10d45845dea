"""The plan: what the papers claim, as paired differences that were written down before the runs.

A claim is a difference ours − theirs in one quantity, with its sign and the smallest effect that counts (`verdicts.py`
has the rules). Quantities are fractions unless said otherwise; pass@k is taken over the questions of all three test
splits.
Methods are those of `configs/compare/`. `GROUPS` says which grid a claim is tested on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from .tables import Part, Setting
from .verdicts import Hypothesis, Tables

Pairs = Mapping[str, Callable[[Setting], pd.DataFrame]]
"""label → [seeds, questions] of ours − theirs in a setting."""
POINTS = 0.02
"""Two percentage points: the smallest difference in pass@k that counts."""
FREQUENCY = 0.05
"""The same of how often all rewards are equal, or no gradient is left: the papers tell of tens of points."""
DISTANCE = 0.02
"""The same of mean pairwise cosine distances."""
NATS = 0.02
"""The same of entropy per token."""


@dataclass(frozen=True, kw_only=True)
class Claim(Hypothesis):
    """One sentence that the study can reproduce or refute."""

    statement: str
    source: str
    pairs: Pairs
    in_points: bool = True
    """Whether differences are shown in percentage points."""

    def tables(self, settings: Mapping[str, Setting]) -> Tables:
        """Of every setting in which its methods have run and its quantity was measured."""
        found: dict[str, dict[str, pd.DataFrame]] = {label: {} for label in self.pairs}
        for label, of in self.pairs.items():
            for name, setting in settings.items():
                try:
                    found[label][name] = of(setting)
                except KeyError:  # not run, or not measured there
                    continue
        return found


def between(label: str, pairs: Iterable[tuple[str, str]], of: Callable[[Setting, str], pd.DataFrame]) -> Pairs:
    """The difference ours − theirs in what `of` gives of a method."""

    def difference(ours: str, theirs: str) -> Callable[[Setting], pd.DataFrame]:
        return lambda setting: paired(of(setting, ours), of(setting, theirs))

    return {f"{label}, {ours} − {theirs}": difference(ours, theirs) for ours, theirs in pairs}


def passes(k: int, *pairs: tuple[str, str], split: str | None = None) -> Pairs:
    """Pass@k of ours − theirs."""
    where = f" on {split}" if split else ""
    return between(f"pass@{k}{where}", pairs, lambda setting, method: setting.pass_at_k(method, k, split))


def gains(k: int, *pairs: tuple[str, str]) -> Pairs:
    """How much larger the difference is in pass@k than in pass@1."""
    label = f"gain in pass@{k} − gain in pass@1"
    return between(label, pairs, lambda setting, method: setting.pass_at_k(method, k) - setting.pass_at_k(method, 1))


def equal_seconds(k: int, *pairs: tuple[str, str]) -> Pairs:
    """Pass@k after as many seconds of training as the shorter of two runs took."""

    def of(ours: str, theirs: str) -> Callable[[Setting], pd.DataFrame]:
        def table(setting: Setting) -> pd.DataFrame:
            one, other = setting.seconds(ours), setting.seconds(theirs)
            budget = {seed: min(one[seed], other[seed]) for seed in one.keys() & other.keys()}
            return paired(setting.at_seconds(ours, k, budget), setting.at_seconds(theirs, k, budget))

        return table

    return {f"pass@{k} after equal seconds, {ours} − {theirs}": of(ours, theirs) for ours, theirs in pairs}


def in_second_half(k: int, *pairs: tuple[str, str]) -> Pairs:
    """By how much pass@k rises in the second half of training."""

    def rise(setting: Setting, method: str) -> pd.DataFrame:
        return setting.at_share(method, k, 1.0) - setting.at_share(method, k, 0.5)

    return between(f"rise of pass@{k} in the second half", pairs, rise)


def scalars(name: str, *pairs: tuple[str, str], part: Part = "all", factor: float = 1.0) -> Pairs:
    """A scalar of training, ours − theirs."""
    return between(f"{name} ({part})", pairs, lambda setting, method: factor * setting.series(method, name, part))


def within(one: str, other: str, *methods: str, part: Part = "all", factor: float = 1.0) -> Pairs:
    """Two scalars of the same run."""

    def of(method: str) -> Callable[[Setting], pd.DataFrame]:
        return lambda s: factor * paired(s.series(method, one, part), s.series(method, other, part))

    return {f"{one} − {other} ({part}), {method}": of(method) for method in methods}


def over_training(name: str, *methods: str, factor: float = 1.0) -> Pairs:
    """The last quarter of training minus the first."""

    def of(method: str) -> Callable[[Setting], pd.DataFrame]:
        return lambda s: factor * paired(s.series(method, name, "last"), s.series(method, name, "first"))

    return {f"{name}, last − first quarter, {method}": of(method) for method in methods}


def supports(change: str, k: int, *pairs: tuple[str, str]) -> Pairs:
    """Support gained or lost, ours − theirs."""
    label = f"{change} at {k} samples"
    return between(label, pairs, lambda setting, method: setting.support(method, change, k))


def over_questions(name: str, *methods: str) -> Pairs:
    """A difference that was measured on training questions (`questions.distances`)."""

    def of(method: str) -> Callable[[Setting], pd.DataFrame]:
        return lambda setting: setting.on_questions(method, name)

    return {f"{name}, {method}": of(method) for method in methods}


def paired(ours: pd.DataFrame, theirs: pd.DataFrame) -> pd.DataFrame:
    """Ours − theirs at the seeds that both have.

    Raises:
        KeyError: they have fewer than two seeds in common.
    """
    seeds = ours.index.intersection(theirs.index)
    if len(seeds) < 2:
        raise KeyError("Expected two seeds in common.")
    return ours.loc[seeds] - theirs.loc[seeds]


WITHOUT = "zero_gradient/without_gradient"
ORIGINAL, REPHRASED, MATCHED = (f"uniform_reward/{name}" for name in ("original", "rephrasings", "rephrasings_matched"))
TO_GRPO = (("ta_grpo", "grpo"), ("ta_grpo", "grpo_matched"))

TA_GRPO: Sequence[Claim] = (
    Claim(
        statement="TA-GRPO leaves fewer questions without gradient than GRPO, with as many samples too.",
        source="TA-GRPO, §5.2",
        pairs=scalars(WITHOUT, *TO_GRPO, factor=0.01),
        sign=-1,
        smallest=FREQUENCY,
    ),
    Claim(
        statement="… and still does in the last quarter of training.",
        source="TA-GRPO, Fig. 3",
        pairs=scalars(WITHOUT, *TO_GRPO, part="last", factor=0.01),
        sign=-1,
        smallest=FREQUENCY,
    ),
    Claim(
        statement="Rewards of all responses to the rephrasings are less often equal than those to the original.",
        source="TA-GRPO, Fig. 3, before and after training",
        pairs=within(REPHRASED, ORIGINAL, "questions_before", "questions_after_ta_grpo", factor=0.01),
        sign=-1,
        smallest=FREQUENCY,
    ),
    Claim(
        statement="… and still when as many responses to the rephrasings are taken as there are to the original.",
        source="ours; Fig. 3 compares 24 with 8",
        pairs=within(MATCHED, ORIGINAL, "questions_before", "questions_after_ta_grpo", factor=0.01),
        sign=-1,
        smallest=FREQUENCY,
    ),
    Claim(
        statement="Under GRPO, questions without gradient become more frequent as training goes on.",
        source="TA-GRPO, Fig. 3",
        pairs=over_training(WITHOUT, "grpo", factor=0.01),
        smallest=FREQUENCY,
    ),
    Claim(
        statement="Expected and counted questions without gradient differ by little.",
        source="TA-GRPO v1, its theorem on the probability of no gradient",
        pairs={
            **within("uniform_reward/pool", "uniform_reward/pool_expected", "ta_grpo", factor=0.01),
            **within("uniform_reward/pool_expected", "uniform_reward/pool", "ta_grpo", factor=0.01),
        },
        smallest=POINTS,
        little=True,
    ),
    Claim(
        statement="Rephrasings of a question differ in difficulty (a check: these tasks are made so).",
        source="TA-GRPO, §5.2",
        pairs={
            "variance of the success rate between the prompts of a question, ta_grpo": lambda setting: setting.series(
                "ta_grpo", "rephrasing/difficulty_variance"
            )
        },
        smallest=0.01,
        in_points=False,
    ),
    Claim(
        statement="Before training, responses to rephrasings are more diverse than responses to the original.",
        source="TA-GRPO, Fig. 4",
        pairs=over_questions("questions/all/distance_difference", "questions_before"),
        smallest=DISTANCE,
        in_points=False,
    ),
    Claim(
        statement="… and after it, by GRPO and by TA-GRPO.",
        source="TA-GRPO, Fig. 4",
        pairs=over_questions("questions/all/distance_difference", "questions_after_grpo", "questions_after_ta_grpo"),
        smallest=DISTANCE,
        in_points=False,
    ),
    Claim(
        statement="… and also among correct responses, and among wrong ones.",
        source="ours; correct responses are alike",
        pairs={
            **over_questions("questions/correct/distance_difference", "questions_before"),
            **over_questions("questions/wrong/distance_difference", "questions_before"),
        },
        smallest=DISTANCE,
        in_points=False,
    ),
    Claim(
        statement="TA-GRPO raises pass@32 over GRPO, with as many samples too.",
        source="TA-GRPO, Table 1 and Fig. 6",
        pairs=passes(32, *TO_GRPO),
        smallest=POINTS,
    ),
    Claim(
        statement="… on questions as they were trained.",
        source="TA-GRPO, Table 1 (in-distribution)",
        pairs=passes(32, *TO_GRPO, split="test_id"),
        smallest=POINTS,
    ),
    Claim(
        statement="… on larger problems than were trained.",
        source="TA-GRPO, Table 1 (out-of-distribution)",
        pairs=passes(32, *TO_GRPO, split="test_size"),
        smallest=POINTS,
    ),
    Claim(
        statement="… after equally many responses (GRPO with four times the updates).",
        source="ours",
        pairs=passes(32, ("ta_grpo", "grpo_long")),
        smallest=POINTS,
    ),
    Claim(
        statement="… after equally many seconds.",
        source="ours",
        pairs=equal_seconds(32, ("ta_grpo", "grpo_matched"), ("ta_grpo", "grpo_long")),
        smallest=POINTS,
    ),
    Claim(
        statement="TA-GRPO raises pass@1 over GRPO, with as many samples too.",
        source="TA-GRPO, Table 1",
        pairs=passes(1, *TO_GRPO),
        smallest=POINTS,
    ),
    Claim(
        statement="The gain of TA-GRPO over GRPO is larger in pass@32 than in pass@1.",
        source="TA-GRPO, §5.3",
        pairs=gains(32, ("ta_grpo", "grpo")),
        smallest=POINTS,
    ),
    Claim(
        statement="Dynamic sampling adds little to the pass@32 of GRPO.",
        source="TA-GRPO, Table 1",
        pairs=passes(32, ("grpo_ds", "grpo")),
        smallest=POINTS,
        little=True,
    ),
    Claim(
        statement="TA-GRPO raises pass@32 over GRPO with dynamic sampling.",
        source="TA-GRPO, Table 1",
        pairs=passes(32, ("ta_grpo", "grpo_ds")),
        smallest=POINTS,
    ),
    Claim(
        statement="GRPO needs more than 2.5 times the questions to come as far as TA-GRPO in pass@32.",
        source="TA-GRPO, Fig. 7",
        pairs=passes(32, ("ta_grpo", "grpo_data")),
        smallest=POINTS,
    ),
    Claim(
        statement="TA-GRPO has a higher pass@32 than TA-GRPO*, which neither pools nor anchors.",
        source="TA-GRPO, Appendix C",
        pairs=passes(32, ("ta_grpo", "exposure")),
        smallest=POINTS,
    ),
    Claim(
        statement="Pooling contributes, whatever is anchored.",
        source="TA-GRPO, Appendix C, taken apart",
        pairs=passes(32, ("ta_grpo", "anchored"), ("pooled", "exposure")),
        smallest=POINTS,
    ),
    Claim(
        statement="Anchoring contributes, whatever is pooled.",
        source="TA-GRPO, §4, taken apart",
        pairs=passes(32, ("ta_grpo", "pooled"), ("anchored", "exposure")),
        smallest=POINTS,
    ),
    Claim(
        statement="Correcting for the change of prompt raises pass@32 over TA-GRPO.",
        source="ours",
        pairs=passes(32, ("ta_grpo_corrected", "ta_grpo")),
        smallest=POINTS,
    ),
    Claim(
        statement="With random rewards, TA-GRPO raises pass@32 over the untrained policy by little.",
        source="a control; arXiv 2506.10947 found gains",
        pairs=passes(32, ("ta_grpo_random", "base")),
        smallest=POINTS,
        little=True,
    ),
)

OURS: Sequence[Claim] = (
    Claim(
        statement="On phrasings never trained, the untrained policy has a higher pass@32 than every trained one.",
        source="ours, from the first edition",
        pairs=passes(
            32,
            ("base", "grpo"),
            ("base", "grpo_matched"),
            ("base", "ta_grpo"),
            ("base", "pass_at_k"),
            split="test_phrasing",
        ),
        smallest=POINTS,
    ),
    Claim(
        statement="Training only on what still adds to pass@k (the overtraining gate) keeps it.",
        source="ours, from the first edition",
        pairs=passes(32, ("gate", "grpo_matched_few"), split="test_phrasing"),
        smallest=POINTS,
    ),
    Claim(
        statement="The gate loses less support at 100 samples than GRPO on the same questions.",
        source="ours",
        pairs=supports("support_lost", 100, ("gate", "grpo_matched_few")),
        sign=-1,
        smallest=POINTS,
    ),
)
"""Tested on the same grid as those of TA-GRPO."""

PASS_AT_K: Sequence[Claim] = (
    Claim(
        statement="Pass@k training raises pass@k at its own k over Pass@1 training.",
        source="Pass@k training, §2 (k = 8)",
        pairs=passes(8, ("pass_at_k", "pass_at_1")),
        smallest=POINTS,
    ),
    Claim(
        statement="… and at k = 32.",
        source="Pass@k training, Fig. 1",
        pairs=passes(32, ("pass_at_k", "pass_at_1")),
        smallest=POINTS,
    ),
    Claim(
        statement="… on larger problems than were trained.",
        source="Pass@k training, Table 1 (out of domain)",
        pairs=passes(8, ("pass_at_k", "pass_at_1"), split="test_size"),
        smallest=POINTS,
    ),
    Claim(
        statement="Pass@k training lowers pass@1 by little against Pass@1 training.",
        source="Pass@k training, §3.1",
        pairs=passes(1, ("pass_at_1", "pass_at_k")),
        smallest=POINTS,
        little=True,
    ),
    Claim(
        statement="Bootstrap sampling raises pass@k over disjoint groups.",
        source="Pass@k training, Fig. 4",
        pairs=passes(8, ("bootstrap", "full")),
        smallest=POINTS,
    ),
    Claim(
        statement="The analytic estimator raises pass@k over bootstrap sampling.",
        source="Pass@k training, Fig. 5",
        pairs=passes(8, ("pass_at_k", "bootstrap")),
        smallest=POINTS,
    ),
    Claim(
        statement="Pass@k training followed by Pass@1 training raises pass@1 over Pass@1 training of the same length.",
        source="Pass@k training, Table 5",
        pairs=passes(1, ("pass_at_k_then_1", "pass_at_1_twice")),
        smallest=POINTS,
    ),
    Claim(
        statement="Under Pass@1 training entropy falls.",
        source="Pass@k training, Fig. 7b",
        pairs=over_training("rollout/entropy", "pass_at_1"),
        sign=-1,
        smallest=NATS,
        in_points=False,
    ),
    Claim(
        statement="Pass@k training ends with more entropy than Pass@1 training.",
        source="Pass@k training, Fig. 7b",
        pairs=scalars("rollout/entropy", ("pass_at_k", "pass_at_1"), part="last"),
        smallest=NATS,
        in_points=False,
    ),
    Claim(
        statement="Pass@k training ends with more different wrong answers than Pass@1 training.",
        source="Pass@k training, Fig. 7a",
        pairs=scalars("answer_diversity/distinct_wrong_share", ("pass_at_k", "pass_at_1"), part="last"),
        smallest=POINTS,
    ),
    Claim(
        statement="Pass@k training raises pass@k over Pass@1 training with noisy rewards.",
        source="Pass@k training, Fig. 6a",
        pairs=passes(8, ("pass_at_k", "noisy_rewards")),
        smallest=POINTS,
    ),
    Claim(
        statement="Pass@k training raises pass@k over Pass@1 training with an entropy bonus.",
        source="Pass@k training, Fig. 6b",
        pairs=passes(8, ("pass_at_k", "entropy_bonus")),
        smallest=POINTS,
    ),
)

PROMPT_AUGMENTATION: Sequence[Claim] = (
    Claim(
        statement="Prompt augmentation raises pass@1 over its control.",
        source="prompt augmentation, Table 2",
        pairs=passes(1, ("prompt_augmentation", "control")),
        smallest=POINTS,
    ),
    Claim(
        statement="Rewards for the templates' formats raise pass@1.",
        source="prompt augmentation, its third question",
        pairs=passes(1, ("prompt_augmentation", "without_format")),
        smallest=POINTS,
    ),
    Claim(
        statement="In the second half of a long training, pass@1 rises more with templates than without.",
        source="prompt augmentation, its second question: longer training, where others collapse",
        pairs=in_second_half(1, ("prompt_augmentation", "control")),
        smallest=POINTS,
    ),
    Claim(
        statement="At the end of a long training, entropy is higher with templates than without.",
        source="prompt augmentation, its second question",
        pairs=scalars("rollout/entropy", ("prompt_augmentation", "control"), part="last"),
        smallest=NATS,
        in_points=False,
    ),
    Claim(
        statement="Responses differ more with templates than without.",
        source="prompt augmentation, its first question",
        pairs=scalars("embedding_distance/pool", ("prompt_augmentation", "control")),
        smallest=DISTANCE,
        in_points=False,
    ),
)

K_AND_LR: Sequence[Claim] = (
    Claim(
        statement="Pass@k training raises pass@8 over Pass@1 training whatever its k.",
        source="Pass@k training, Fig. 8",
        pairs=passes(8, ("k2", "k1"), ("k8", "k1"), ("k16", "k1")),
        smallest=POINTS,
    ),
    Claim(
        statement="With a large k, a higher learning rate raises pass@8.",
        source="Pass@k training, Fig. 8",
        pairs=passes(8, ("k16_high", "k16")),
        smallest=POINTS,
    ),
)

REPHRASINGS: Sequence[Claim] = (
    Claim(
        statement="Three rephrasings rather than one raise pass@32.",
        source="ours",
        pairs=passes(32, ("n3", "n1")),
        smallest=POINTS,
    ),
    Claim(
        statement="Half of the rephrasings asking something else lowers pass@32.",
        source="ours",
        pairs=passes(32, ("wrong_50", "n3")),
        sign=-1,
        smallest=POINTS,
    ),
)

GROUPS: Mapping[str, Sequence[Claim]] = {
    "factors": (*TA_GRPO, *OURS),
    "pass_at_k": PASS_AT_K,
    "k_and_lr": K_AND_LR,
    "rephrasings": REPHRASINGS,
    "prompt_augmentation": PROMPT_AUGMENTATION,
}
"""Grid → the claims that are tested on it, in the order of the page."""
