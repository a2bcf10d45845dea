"""Permitted numbers of each numeric setting: one table for all commands.

The first pattern that matches a setting's dotted name is its rule. Classes check their arguments too, for
users who build them in Python; this table also refuses NaN, infinity and null, naming the setting before
anything is imported.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

LARGEST = 2**31 - 1
"""Largest whole number that all libraries accept, as a C int."""
LONGEST = 10.0**9
"""Seconds of the longest time limit, 30 years; system timers accept no more than ten times as much."""


@dataclass(frozen=True, kw_only=True)
class NumberRule:
    """Rule for the numbers that a setting accepts."""

    least: float | None = None
    most: float | None = None
    excluded: bool = False
    """Whether `least` itself is refused."""
    whole: bool = False
    listed: bool = False
    """Whether the setting is a list of such numbers."""
    null: bool = False
    infinite: bool = False
    """Whether plus infinity is accepted."""
    others: bool = False
    """Whether true, false, words, lists and mappings are accepted too; the class or Lightning checks them."""

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        if self.least is not None and self.most not in (None, LARGEST):
            bounds = f" {'above' if self.excluded else 'from'} {self.least:g} to {self.most:.10g}"
        elif self.least is not None:
            bounds = f" above {self.least:g}" if self.excluded else f" of at least {self.least:g}"
        else:
            bounds = ""
        return f"{'a list, each item ' * self.listed}{kind}{bounds}{' or null' * self.null}"

    def takes(self, value: object) -> bool:
        """Return whether the setting accepts this value."""
        if value is None:
            return self.null
        if isinstance(value, list):
            return (self.listed or self.others) and all(
                item is not None and self._takes_number(item) for item in value
            )
        return not self.listed and self._takes_number(value)

    def _takes_number(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return self.others and not _spells_no_number(value)
        if self.whole and not isinstance(value, int):
            return False
        if math.isnan(value) or (math.isinf(value) and not (self.infinite and value > 0)):
            return False
        low = self.least is None or value > self.least or (value == self.least and not self.excluded)
        return low and (self.most is None or value <= self.most)


def _spells_no_number(value: object) -> bool:
    """Return whether a text is `nan` or `inf`, some spellings of which Hydra reads as words."""
    return isinstance(value, str) and value.strip().lower().lstrip("+-.") in ("nan", "inf", "infinity")


def _whole(least: int | None = None, most: int = LARGEST, **more: bool) -> NumberRule:
    return NumberRule(least=least, most=most, whole=True, **more)


def _number(least: float | None = None, most: float | None = None, **more: bool) -> NumberRule:
    return NumberRule(least=least, most=most, **more)


def _above(least: float, most: float | None = None, **more: bool) -> NumberRule:
    return NumberRule(least=least, most=most, excluded=True, **more)


RULES = {
    # The run.
    "seed": _whole(0, 2**32 - 1),
    "*.seed": _whole(0, 2**64 - 1),
    "iterations": _whole(0, null=True),
    "threads": _whole(1, 1024, null=True),
    "diagnose_questions": _whole(1, null=True),
    # The policy and its update.
    "optimizer.lr": _number(0),
    "optimizer.betas": _number(0, 1, listed=True),
    "optimizer.eps": _number(0),
    "optimizer.weight_decay": _number(0),
    "policy.mini_batches": _whole(1),
    "policy.token_budget": _whole(1),
    "policy.schedule_options.*": _number(0, null=True, others=True),
    "policy.warmup": _number(0),
    "policy.max_grad_norm": _above(0, null=True),
    "policy.temperature": _number(0),
    "policy.prompt_correction": _above(0, null=True),
    "policy.staleness_cap": _number(1, infinite=True),
    "policy.skip_grad_norm": _above(0, null=True),
    "policy.max_skipped": _whole(0),
    "lora.rank": _whole(1),
    "lora.alpha": _above(0),
    "model.load.gradient_checkpointing": _number(0, 1, others=True),
    "loss.clip_low": _number(0, null=True),
    "loss.clip_high": _number(0, null=True),
    "loss.dual_clip": _above(1, null=True),
    "loss.max_length": _whole(1, null=True),
    "loss.kl_coef": _number(0),
    "loss.entropy_coef": _number(),  # a negative one lowers the entropy
    "loss.replay_shaping": _above(0),
    "mismatch.cap": _above(0, null=True),
    "mismatch.low": _above(0, null=True),
    "mismatch.high": _above(0, null=True),
    # Advantages and credit.
    "advantage.temperature": _above(0, infinite=True),
    "advantage.k": _whole(1),
    "advantage.*.k": _whole(1),
    "advantage.num_groups": _whole(1, null=True),
    "advantage.epsilon": _number(0),
    "advantage.*.epsilon": _number(0),
    "advantage.fraction": _number(0, 1),
    "advantage.threshold": _number(0, 1),
    "advantage.baseline": _number(others=True),
    "credit.share": _number(0, 1),
    "credit.coef": _number(0),
    # The questions.
    "data.batch_size": _whole(1),
    "data.samples_per_prompt": _whole(1),
    "data.num_rephrasings": _whole(0, null=True),
    "data.evaluation_samples": _whole(1),
    "data.validation_samples": _whole(1, null=True),
    "data.evaluation_batch_size": _whole(1),
    "data.max_prompt_tokens": _whole(1),
    "data.max_evaluation_prompt_tokens": _whole(1, null=True),
    "data.options.*": _number(null=True, others=True),  # of a task that others have made
    "data.*.options.*": _number(null=True, others=True),
    "data.*.within.*": _number(listed=True),
    "data.*load_seconds": _above(0, LONGEST),
    "data.*.size": _whole(1),
    "data.*.num_rephrasings": _whole(0, null=True),
    "data.*.start": _whole(0),
    "data.*.largest_factor": _whole(2),
    "data.*.width": _whole(1),
    "data.*.chunks": _whole(0, listed=True, null=True),
    "data.*.chunk_size": _whole(1),
    "data.curriculum.samples": _whole(1),
    "data.curriculum.visits": _whole(1),
    "data.curriculum.low": _whole(0),
    "data.curriculum.high": _whole(0, null=True),
    "data.curriculum.easy": _number(0, 1),
    "data.curriculum.hard": _number(0, 1),
    "data.curriculum.target": _number(0, 1),
    "data.curriculum.step": _number(0, 1),
    "data.curriculum.least": _number(0, 1),
    "data.curriculum.most": _number(0, 1),
    "data.curriculum.threshold": _number(0, 1),
    "data.curriculum.decay": _number(0, 1),
    # Sampling and rewards.
    "rollout.ahead": _whole(0),
    "rollout.*sampling.temperature": _number(0),
    "rollout.*sampling.top_p": _above(0, 1),
    "rollout.*sampling.top_k": _whole(0),
    "rollout.*sampling.max_new_tokens": _whole(1),
    "rollout.dynamic_sampling.max_draws": _whole(1),
    "rollout.engine.max_rows": _whole(1),
    "rollout.engine.max_model_len": _whole(1, null=True),
    "rollout.engine.gpu_memory_utilization": _above(0, 1),
    "rollout.engine.kv_cache_memory_bytes": _whole(1, 2**63 - 1, null=True),
    "rollout.engine.tensor_parallel_size": _whole(1),
    "rollout.engine.step_seconds": _above(0, LONGEST),
    "rollout.engine.concurrency": _whole(1),
    "rollout.engine.timeout": _above(0, LONGEST / 100),  # ranks wait for several of them
    "rollout.engine.retries": _whole(0),
    "rollout.engine.patience": _above(0, LONGEST / 100),
    "rollout.replay.ratio": _number(0, 1),
    "rollout.replay.start": _number(0, 1),
    "rollout.replay.spread": _above(0),
    "rollout.replay.per_question": _whole(1),
    "rollout.replay.longest": _whole(1),
    "rollout.reformulator.seldom": _number(0, 1, listed=True),
    "rollout.reformulator.useful": _number(0, 1, listed=True),
    "*reward_terms.noise.probability": _number(0, 1),
    "*reward_terms.overlong.max_length": _whole(1),
    "*reward_terms.overlong.cache": _whole(1, null=True),
    "reward.workers": _whole(1, null=True),
    "reward.*workers": _whole(1),
    "reward.weights": _number(listed=True, null=True),
    "reward.correct_above": _number(null=True),
    "reward.*cpu_seconds": _above(0, LONGEST / 100),  # the wall time is ten times as much
    "reward.*load_seconds": _above(0, LONGEST),
    "reward.*memory_bytes": _whole(1, 2**63 - 1),
    "reward.*max_answer_length": _whole(1),
    "reward.*decimal_tolerance": _number(0, 1),
    "reward.digits": _whole(0, null=True),
    # Diagnostics.
    "callbacks.checkpoint.every": _whole(1),
    "callbacks.checkpoint.keep": _whole(1, null=True),
    "callbacks.checkpoint.fractions": _number(0, 1, listed=True),
    "callbacks.embedding_diversity.every": _whole(1),
    "callbacks.embedding_diversity.max_questions": _whole(1, null=True),
    "callbacks.evaluation_examples.questions": _whole(1),
    "callbacks.evaluation_examples.responses": _whole(1),
    "callbacks.first_look.patience": _whole(1),
    "callbacks.progress.seconds": _number(0),
    "callbacks.response_table.every": _whole(1),
    "callbacks.response_table.responses": _whole(1),
    "callbacks.adaptive_entropy.target": _number(0),
    "callbacks.adaptive_entropy.step": _number(0),
    "callbacks.adaptive_entropy.least": _number(0),
    "callbacks.adaptive_entropy.most": _number(0),
    "callbacks.*.ks": _whole(1, listed=True),
    "callbacks.*.taus": _number(0, 1, listed=True),
    "exact_evaluator.ks": _whole(1, listed=True),
    "exact_evaluator.taus": _number(0, 1, listed=True),
    # Where a run is trained, and for how long.
    "trainer.max_steps": _whole(-1),
    "trainer.max_epochs": _whole(-1, null=True),
    "trainer.num_nodes": _whole(1),
    "trainer.devices": _whole(-1, others=True),
    "trainer.limit_*_batches": _number(0, null=True),
    "trainer.val_check_interval": _above(0, null=True, others=True),
    "trainer.check_val_every_n_epoch": _whole(1, null=True),
    "trainer.num_sanity_val_steps": _whole(-1, null=True),
    "trainer.log_every_n_steps": _whole(0, null=True),
    "strategy.replicas": _whole(1),
    "strategy.timeout.minutes": _above(0, LARGEST),
    # tagrpo-compare and tagrpo-rephrase.
    "seeds": _whole(0, 2**32 - 1, listed=True),
    "launcher.timeout_min": _whole(1),
    "launcher.gpus_per_node": _whole(0),
    "launcher.cpus_per_task": _whole(1),
    "launcher.signal_delay_s": _whole(1),
    "workers": _whole(1, null=True),
    "gpus_per_run": _whole(0),
    "limit": _whole(1, null=True),
    # tagrpo-plan.
    "gpus_per_node": _whole(1),
    "gpus_per_server": _whole(1),
    "questions": _whole(1, null=True),
    "gpus.*.rows": _whole(1),
    "gpus.*.*": _above(0),
}
"""Pattern of a setting's dotted name → numbers that the setting accepts, more specific patterns first."""
_OWN = ("tagrpo.", "torch.", "lightning.", "datetime.")
"""Packages of classes to whose settings `RULES` apply."""


@cache
def rule_of(name: str) -> NumberRule | None:
    """Return the rule for a setting, or None if the setting has no rule."""
    return next((rule for pattern, rule in RULES.items() if fnmatchcase(name, pattern)), None)


def check_numbers(cfg: DictConfig) -> None:
    """Check all numeric settings by `RULES`; refuse NaN, infinity, null and words in place of numbers.

    Settings that refer to other settings are checked last, so that the message names the setting to correct.
    If a setting has no rule, or belongs to a user's class, only NaN and infinity are refused.

    Raises:
        ValueError: if a value is refused. The message names the setting.
    """
    for referring in (False, True):
        for name, value, known in _leaves(cfg, referring):
            rule = rule_of(name) if known else None
            if rule is not None and not rule.takes(value):
                shown = "null" if value is None else repr(value)
                too_large = isinstance(value, int) and value > LARGEST
                expected = f"at most {rule.most:.20g}" if too_large else str(rule)
                raise ValueError(f"Expected {name} to be {expected}, but got {shown}. Correct {name}.")
            if rule is None and not _finite(value):
                raise ValueError(f"Expected {name} to be a finite number, but got {value}. Correct {name}.")


def _finite(value: object) -> bool:
    """Return whether all numbers in a value are finite."""
    if isinstance(value, list):
        return all(_finite(item) for item in value)
    return not isinstance(value, float) or math.isfinite(value)


def _leaves(
    node: DictConfig, referring: bool, name: str = "", known: bool = True
) -> Iterator[tuple[str, Any, bool]]:
    """Yield the settings that refer to other settings if `referring` is true, otherwise those that do not.

    Each item is a dotted name, a value, and whether `RULES` apply.
    """
    names = [str(key) for key in node]
    if "_target_" in names:
        written: Any = OmegaConf.to_container(node, resolve=False)
        known = str(written["_target_"]).startswith(_OWN)
    for key in names:
        here = f"{name}.{key}" if name else key
        if OmegaConf.is_missing(node, key):
            continue
        refers = OmegaConf.is_interpolation(node, key)
        rule = rule_of(here) if known else None
        try:
            value = node[key]
            is_part = isinstance(value, DictConfig) and (rule is None or rule.others)
            plain = value
            if OmegaConf.is_config(value) and not is_part:
                plain = OmegaConf.to_container(value, resolve=True)
        except (OmegaConfBaseException, ValueError):  # it refers to a setting that is missing or wrong
            continue
        if is_part:
            if not refers or referring:
                yield from _leaves(value, referring and not refers, here, known)
        elif refers == referring:
            yield here, plain, known
