"""The embedded tasks: sources and verifiers, one file or folder each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def question_data(
    options: Mapping[str, Any],  # noqa: ARG001
    task: str | None = None,  # noqa: ARG001
    environment: str | None = None,  # noqa: ARG001
    python: str | None = None,  # noqa: ARG001
    **settings: Any,
) -> Any:
    """A data module of `settings`. To the others, the sources and the verifier refer.

    Args:
        options: Settings of the generator or taskset, such as `{max_terms: 3}` or `{split: test}`.
        task: A generator of reasoning-gym, see docs/reasoning_gym.md.
        environment: A taskset of verifiers that is installed, such as `gsm8k-v1`.
        python: The interpreter in which `verifiers` and the taskset are installed; null: this one.
        settings: Of `QuestionDataModule`.
    """
    from ...datamodules.questions import QuestionDataModule

    return QuestionDataModule(**settings)
