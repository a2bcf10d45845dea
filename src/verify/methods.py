"""The methods that are compared: experiments of this package, and what trainers are told of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from omegaconf import DictConfig, OmegaConf

from ..settings.config import check_settings, compose_run
from ..settings.methods import configs
from ..settings.typed import check_declared

COMMON: dict[str, dict[str, float]] = {
    "clip_cov": {"share": 1.0, "low": 0.2, "high": 5.0},
    "kl_cov": {"share": 0.1},
}
"""Experiment → settings of its credit in the comparison: every candidate of Clip-Cov is drawn, since draws differ, and both
methods act on a small batch."""
DIFFERENT: dict[tuple[str, str], str] = {
    ("verl", "pass_at_k"): (
        "another method of a like name: grpo_passk gives the best response the best minus the second-best reward "
        "(arXiv 2503.19595)"
    ),
    (
        "skyrl",
        "clip_cov",
    ): "its bounds meet covariances of advantages that are divided by the number of tokens",
    ("skyrl", "kl_cov"): "its penalty is a sum over tokens, not divided as the policy term is",
}
"""(trainer, method) → why a method of a like name is another, whatever the conventions."""
COMPARED = ("advantage", "loss", "credit", "policy")
"""Parts of the settings that conventions are looked for in."""


@dataclass(frozen=True)
class Convention:
    """A setting by which a trainer's conventions differ from ours."""

    setting: str
    ours: object
    theirs: object

    def __str__(self) -> str:
        """Return the setting as it is written on the command line."""
        value = (
            "null"
            if self.theirs is None
            else str(self.theirs).lower()
            if isinstance(self.theirs, bool)
            else self.theirs
        )
        return f"{self.setting}={value}"


def composed(method: str, conventions: str, overrides: Sequence[str] = ()) -> DictConfig:
    """Return the settings of a method under the conventions of a trainer; composed once.

    Raises:
        ValueError: if a setting is wrong; the message names the setting.
    """
    return _composed(method, conventions, tuple(overrides))


@cache
def _composed(method: str, conventions: str, overrides: tuple[str, ...]) -> DictConfig:
    chosen = conventions
    if (configs() / "conventions" / conventions / f"{method}.yaml").is_file():
        chosen = f"{conventions}/{method}"
    credit = [f"credit.{name}={value}" for name, value in COMMON.get(method, {}).items()]
    given = [f"experiment={method}", f"conventions={chosen}", *credit, *overrides]
    cfg = compose_run(".", given)
    check_settings(cfg)
    check_declared(cfg)
    return cfg


def conventions_between(ours: DictConfig, theirs: DictConfig) -> list[Convention]:
    """Return the settings by which two compositions of one method differ, in the parts `COMPARED`."""
    before, after = _flat(ours), _flat(theirs)
    names = [name for name in {**before, **after} if before.get(name, _ABSENT) != after.get(name, _ABSENT)]
    return [Convention(name, before.get(name), after.get(name)) for name in names]


_ABSENT = object()


def _flat(cfg: DictConfig) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def add(name: str, content: Any) -> None:
        if isinstance(content, Mapping):
            for key, value in content.items():
                add(f"{name}.{key}", value)
        else:
            found[name] = content

    for part in COMPARED:
        add(part, OmegaConf.to_container(cfg[part], resolve=True) if cfg.get(part) is not None else None)
    found.setdefault("advantage.epsilon", 1e-6)
    return found


def switched(ours: DictConfig, conventions: Sequence[Convention]) -> DictConfig:
    """Return a copy of settings with some conventions of another trainer."""
    copied = OmegaConf.create(OmegaConf.to_container(ours, resolve=True))
    assert isinstance(copied, DictConfig)
    for convention in conventions:
        OmegaConf.update(copied, convention.setting, convention.theirs, force_add=True)
    return copied


def told(cfg: DictConfig) -> dict[str, Any]:
    """Return what trainers are told of a method: hyperparameters, not conventions."""
    loss = cfg.loss
    settings: dict[str, Any] = {
        "clip_low": loss.clip_low,
        "clip_high": loss.clip_high,
        "kl_coefficient": float(loss.kl_coef),
        "entropy_coefficient": float(loss.entropy_coef),
    }
    credit = cfg.get("credit") or {}
    names = {"share": "share", "low": "low", "high": "high", "coef": "coefficient"}
    return settings | {theirs: float(credit[ours]) for ours, theirs in names.items() if ours in credit}
