"""Embedded tasks: sources and verifiers, one file or folder each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def question_data(
    options: Mapping[str, Any],  # noqa: ARG001
    task: str | None = None,  # noqa: ARG001
    environment: str | None = None,  # noqa: ARG001
    python: str | None = None,  # noqa: ARG001
    load_seconds: float = 600.0,  # noqa: ARG001
    variables: Sequence[str] = (),  # noqa: ARG001
    **settings: Any,
) -> Any:
    """Build a data module from `settings`, whose sources and verifiers refer to the other arguments.

    Args:
        options: Settings of the generator or taskset, such as `{max_terms: 3}` or `{split: test}`.
        task: A generator of reasoning-gym, see docs/reasoning_gym.md.
        environment: A taskset of verifiers that is installed, such as `gsm8k-v1`.
        python: The interpreter in which `verifiers` and the taskset are installed; null: this one.
        load_seconds: Seconds in which a taskset loads its tasks, each process that scores starts, and a
            generator of reasoning-gym makes an item.
        variables: Names of environment variables that a taskset gets, such as `[HF_HOME]`. It gets PATH,
            HOME, LANG, TMPDIR, PYTHONPATH and numbers of threads in any case, and no other: keys stay here.
        settings: Of `QuestionDataModule`.
    """
    from ...datamodules.lightning.questions import QuestionDataModule

    return QuestionDataModule(**settings)
