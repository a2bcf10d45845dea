"""Pictures of the study: every difference over all settings beside its smallest effect, and courses of training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from .claims import Claim
from .tables import settings_of
from .verdicts import OVERALL, Finding, Verdict

COLORS: Mapping[Verdict, str] = {"reproduces": "tab:green", "refuted": "tab:red", "undecided": "0.55"}
WIDEST = 4.0
"""Differences beyond so many smallest effects are drawn at the edge."""
COURSES = ("grpo", "grpo_long", "grpo_matched", "ta_grpo", "pass_at_k")


def effects(
    claims: Sequence[Claim], findings: Sequence[Sequence[Finding]]
) -> Iterator[tuple[str, float, float, float, Verdict]]:
    """Of each difference over all settings: label, value and interval in smallest effects, > 0 as claimed; verdict."""
    for number, (claim, found) in enumerate(zip(claims, findings, strict=True), start=1):
        unit = claim.sign * claim.smallest
        for finding in found:
            if finding.setting == OVERALL:
                estimate = finding.difference.estimate
                low, high = sorted((estimate.low / unit, estimate.high / unit))
                yield f"{finding.label}  {number}", estimate.value / unit, low, high, finding.verdict


def draw_effects(claims: Sequence[Claim], findings: Sequence[Sequence[Finding]], path: Path) -> None:
    """One line per difference over all settings; dotted is the smallest effect."""
    rows = list(effects(claims, findings))
    figure, axis = plt.subplots(figsize=(9, 0.165 * len(rows) + 1), layout="constrained")
    axis.axvline(0, color="0.3", linewidth=0.8)
    axis.axvline(1, color="0.3", linewidth=0.8, linestyle=":")
    for place, (_, value, low, high, verdict) in zip(range(len(rows), 0, -1), rows, strict=True):
        ends = np.clip([low, high], -WIDEST, WIDEST)
        axis.plot(ends, [place, place], color=COLORS[verdict], linewidth=1.3)
        axis.plot(np.clip(value, -WIDEST, WIDEST), place, "o", color=COLORS[verdict], markersize=3)
    axis.set_yticks(range(len(rows), 0, -1), [label for label, *_ in rows], fontsize=6)
    axis.set_ylim(0, len(rows) + 1)
    axis.set_xlabel("in units of the smallest effect that counts, positive as claimed", fontsize=8)
    axis.tick_params(axis="x", labelsize=7)
    for verdict, color in COLORS.items():
        axis.plot([], [], "o-", color=color, markersize=3, label=verdict)
    axis.legend(fontsize=7, loc="lower right")
    save(figure, path)


def draw_courses(entries: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Pass@1 and pass@32 over training in every setting, means over questions of all splits and over seeds."""
    settings = settings_of(entries)
    size = (2.1 * len(settings), 4)
    figure, axes = plt.subplots(2, len(settings), figsize=size, sharex=True, squeeze=False, layout="constrained")
    for column, (name, setting) in zip(axes.T, settings.items(), strict=True):
        for k, axis in zip((1, 32), column, strict=True):
            for number, method in enumerate(m for m in COURSES if m in setting.methods):
                responses, values = setting.course(method, k)
                axis.plot(responses, 100 * values, marker=".", color=f"C{number}", linewidth=1, label=method)
            if "base" in setting.methods:
                start = setting.pass_at_k("base", k).to_numpy().mean()
                axis.axhline(100 * start, color="0.6", linewidth=0.8, label="base")
            axis.tick_params(labelsize=6)
        column[0].set_title(name, fontsize=8)
        column[1].set_xlabel("responses", fontsize=7)
    for axis, k in zip(axes[:, 0], (1, 32), strict=True):
        axis.set_ylabel(f"pass@{k}, %", fontsize=8)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=7, ncols=len(labels), loc="outside upper center")
    save(figure, path)


def save(figure: Any, path: Path) -> None:
    """Write a figure, the same bytes every time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)
