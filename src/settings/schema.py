"""Types of the top-level settings of each command.

The types of nested settings are declared by the classes that are built from these settings; `typed` checks
them.
"""

from dataclasses import dataclass
from typing import Any, get_type_hints

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from .typed import fits, of_another_type


@dataclass
class Train:
    """Settings of tagrpo-train; `configs/train.yaml` describes each setting."""

    name: str | float
    seed: int
    data_path: str | float | None
    threads: int | None
    iterations: int | None
    test: bool
    export: bool
    averages: dict[str, list[str]]
    resume: str | None
    objective: str | None


@dataclass
class Evaluate(Train):
    """Settings of tagrpo-eval."""

    checkpoint: str | None
    exact: bool
    diagnose: str | None
    diagnose_questions: int | None


@dataclass
class Plan(Train):
    """Settings of tagrpo-plan."""

    gpu: str
    gpus_per_node: int
    gpus_per_server: int
    response_tokens: float | None
    questions: int | None
    gpus: dict[str, dict[str, float]]


@dataclass
class Compare:
    """Settings of tagrpo-compare."""

    launcher: dict[str, Any]
    root: str
    seeds: list[int]
    workers: int | None
    gpus_per_run: int
    scale: str | None
    recipe: str | None
    model: str | None
    overrides: list[str]
    overrides_at_scale: dict[str, list[str]]
    methods: list[str] | dict[str, list[str] | dict[str, Any]] | None


@dataclass
class Verify:
    """Settings of tagrpo-verify."""

    batch: str | None
    iteration: int | None
    questions: int | None
    methods: list[str]
    trainers: dict[str, str | None]
    conventions: str | None
    overrides: list[str]
    model: str | None
    micro_batch_rows: int | None
    dtype: str
    seed: int
    page: str | None
    work: str | None


@dataclass
class Rephrase:
    """Settings of tagrpo-rephrase."""

    command: str
    input: str | None
    output: str | None
    work: str
    limit: int | None
    dry_run: bool
    seed: int
    tokenizer: str | None
    sample: int
    source: dict[str, Any]
    rephraser: dict[str, Any]
    server: dict[str, Any]
    checks: dict[str, dict[str, Any] | None]
    judge: dict[str, Any]


def check_fields(cfg: DictConfig, schema: type) -> None:
    """Check that a command's top-level settings have the types of the fields of `schema`.

    Settings without a value, and settings that refer to such a setting, are left to `check_given`.

    Raises:
        ValueError: if a setting has a wrong type. The message names the setting.
    """
    for name, hint in get_type_hints(schema).items():
        if name not in cfg or OmegaConf.is_missing(cfg, name):
            continue
        try:
            value = cfg[name]
            plain = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
        except OmegaConfBaseException:
            continue
        if not fits(plain, hint):
            raise of_another_type(cfg, name, hint, plain)
