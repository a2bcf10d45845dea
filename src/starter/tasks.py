"""The embedded tasks, as far as their starter policies are concerned."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerFast

from ..datamodules.sources import arithmetic, countdown, shortest_path
from ..datamodules.sources.base import Source
from ..datamodules.sources.generated import SupervisedExample
from ..rewards import CountdownReward, ShortestPathReward
from ..types import EnumeratingVerifier
from .architecture import build_answer_tokenizer, build_tokenizer


class Task(NamedTuple):
    """What a starter policy is made from, by `tagrpo.lab.warmstart`."""

    source: Callable[..., Source]
    """Makes the validation questions."""
    example: Callable[[random.Random], SupervisedExample]
    """Draws a question with a written response."""
    build_tokenizer: Callable[[], PreTrainedTokenizerFast]
    verifier: type[EnumeratingVerifier] | None = None
    """Lists all correct answers, for an exact validation accuracy; None: answers are sampled."""
    settings: Mapping[str, Any] = {}
    """What `WarmstartConfig` is to have other than its defaults."""


TASKS: Mapping[str, Task] = {
    "arithmetic": Task(arithmetic.ArithmeticSource, arithmetic.supervised_example, build_tokenizer),
    # The same, having seen every template of prompt_augmentation_demo.
    "arithmetic_templates": Task(arithmetic.ArithmeticSource, arithmetic.templated_example, build_tokenizer),
    "shortest_path": Task(
        shortest_path.ShortestPathSource,
        shortest_path.supervised_example,
        lambda: build_answer_tokenizer(shortest_path.vocabulary()),
        ShortestPathReward,
        {"chain_steps": 0, "word_steps": 3000, "gate": 0.2},
    ),
    "countdown": Task(
        countdown.CountdownSource,
        countdown.supervised_example,
        lambda: build_answer_tokenizer(countdown.vocabulary()),
        CountdownReward,
        {"chain_steps": 0, "word_steps": 2600, "gate": 0.2},
    ),
}
