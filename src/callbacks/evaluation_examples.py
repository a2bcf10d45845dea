"""Some responses to evaluation questions are kept, so that a report can show them."""

import zlib
from itertools import chain
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from ..distributed import gather_objects
from ..files import write_json
from ..types import Fields
from .shared import check_at_least_one, current_iteration, delete_later, reference_texts

SHOWN = 2000
"""Number of characters kept of a response, from its end, where the answer is."""
Example = dict[str, Any]
"""JSON of a question: `split`, `id`, `prompt`, `reference`, `n`, `correct`, and `responses`."""


class EvaluationExamples(Callback):
    """Callback that keeps some responses to some questions of each validation and test.

    Writes `evaluations/examples-<stage>-<iterations trained>.json`: split → question id → example. An example
    has `prompt`, the `reference` answers, the number `n` of responses, the number `correct` of correct
    responses, and `responses`, each with `text`, `answer` and `correct`. Only the last 2,000 characters of a
    response are kept. Every evaluation keeps the same questions.

    Args:
        questions: Number of questions in each split whose responses are kept.
        responses: Number of responses kept for each question; correct and wrong responses alternate.

    Raises:
        ValueError: if `questions` or `responses` is less than 1.
    """

    shapes_learning = False

    def __init__(self, questions: int = 100, responses: int = 4) -> None:
        check_at_least_one("evaluation_examples", questions=questions, responses=responses)
        self.questions = questions
        self.responses = responses
        self._found: list[Example] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Delete the examples that an earlier attempt left of iterations still to come."""
        delete_later(trainer, "evaluations/examples-*.json", current_iteration(trainer) + 1)

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._found = []

    on_test_epoch_start = on_validation_epoch_start

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, *_: Any
    ) -> None:
        """Keep examples of a batch."""
        self._found = self._first(self._found + self._examples(Fields("batch", batch)))

    on_test_batch_end = on_validation_batch_end  # type: ignore[assignment]

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the examples of all ranks."""
        if trainer.sanity_checking:
            return
        parts = gather_objects(self._found)
        splits: dict[str, dict[str, Example]] = {}
        for example in self._first(list(chain(*parts))):
            own = dict(example)
            splits.setdefault(own.pop("split"), {})[own.pop("id")] = own
        if trainer.is_global_zero and splits:
            stage = "test" if trainer.testing else "validation"
            name = f"examples-{stage}-{current_iteration(trainer) + 1:06d}.json"
            write_json(Path(trainer.default_root_dir) / "evaluations" / name, splits)

    on_test_epoch_end = on_validation_epoch_end

    def _first(self, examples: list[Example]) -> list[Example]:
        """Return the first examples of each split, in an order that depends only on the ids of questions."""
        kept: dict[str, list[Example]] = {}
        for example in sorted(examples, key=lambda example: (_place(example["id"]), example["id"])):
            of_split = kept.setdefault(example["split"], [])
            if len(of_split) < self.questions:
                of_split.append(example)
        return list(chain(*kept.values()))

    def _examples(self, batch: Any) -> list[Example]:
        rollouts = batch.rollouts
        found = []
        for row, group in enumerate(batch.groups):
            members = (rollouts.question == row).nonzero()[:, 0].tolist()
            if not members:
                continue
            right = [member for member in members if rollouts.correct[member]]
            wrong = [member for member in members if not rollouts.correct[member]]
            chosen = in_turn(right, wrong)[: self.responses]
            found.append(
                {
                    "split": batch.split,
                    "id": group.id,
                    "prompt": rollouts.prompts[int(rollouts.prompt[members[0]])].text,
                    "reference": reference_texts(group.answer),
                    "n": len(members),
                    "correct": len(right),
                    "responses": [
                        {
                            "text": rollouts.text[member][-SHOWN:],
                            "answer": rollouts.answers[member],
                            "correct": bool(rollouts.correct[member]),
                        }
                        for member in chosen
                    ],
                }
            )
        return found


def in_turn(first: list[int], second: list[int]) -> list[int]:
    """Interleave two lists; the rest of the longer list comes last.

    >>> in_turn([1, 2, 3], [10])
    [1, 10, 2, 3]
    """
    shared = min(len(first), len(second))
    pairs = zip(first[:shared], second[:shared], strict=True)
    return [*chain(*pairs), *first[shared:], *second[shared:]]


def _place(id: str) -> int:
    return zlib.crc32(id.encode("utf-8", "surrogatepass"))
