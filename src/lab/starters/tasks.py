"""The embedded tasks, as far as their starter policies are concerned."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerFast

from ...datamodules.sources.arithmetic import ArithmeticSource
from ...datamodules.sources.base import Source
from ...datamodules.sources.countdown import CountdownSource
from ...datamodules.sources.shortest_path import ShortestPathSource
from ...rewards import CountdownReward, ShortestPathReward
from ...types import EnumeratingVerifier
from . import examples
from .architecture import build_answer_tokenizer, build_tokenizer


class Task(NamedTuple):
    """Source and settings of a starter policy, for `tagrpo.lab.warmstart`."""

    source: Callable[..., Source]
    """Makes the validation questions."""
    example: Callable[[random.Random], examples.SupervisedExample]
    """Draws a question with a written response."""
    build_tokenizer: Callable[[], PreTrainedTokenizerFast]
    verifier: type[EnumeratingVerifier] | None = None
    """Lists all correct answers, for an exact validation accuracy; None: answers are sampled."""
    settings: Mapping[str, Any] = {}
    """Changes to the defaults of `WarmstartConfig`."""


TASKS: Mapping[str, Task] = {
    "arithmetic": Task(ArithmeticSource, examples.arithmetic_example, build_tokenizer),
    # The same, having seen every template of prompt_augmentation_demo.
    "arithmetic_templates": Task(ArithmeticSource, examples.templated_example, build_tokenizer),
    "shortest_path": Task(
        ShortestPathSource,
        examples.shortest_path_example,
        lambda: build_answer_tokenizer(examples.shortest_path_vocabulary()),
        ShortestPathReward,
        {"chain_steps": 0, "word_steps": 3000, "gate": 0.2},
    ),
    "countdown": Task(
        CountdownSource,
        examples.countdown_example,
        lambda: build_answer_tokenizer(examples.countdown_vocabulary()),
        CountdownReward,
        {"chain_steps": 0, "word_steps": 2600, "gate": 0.2},
    ),
}
