"""Tables of sampled responses in W&B and TensorBoard."""

from collections.abc import Sequence
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import Logger, TensorBoardLogger, WandbLogger

from ..types import Fields
from .shared import BatchDiagnostic, check_at_least_one, current_iteration

COLUMNS = ("iteration", "question", "rephrasing", "prompt", "response", "answer", "correct", "reward")
SHOWN = 2000  # characters of a prompt or a response: the last ones, where the answer is
NAME = "rollout/responses"


class ResponseTable(BatchDiagnostic):
    """Callback that logs a table of sampled responses as `rollout/responses`, to W&B and TensorBoard.

    A row is a response of rank 0: iteration, question id, rephrasing (0 for the original), prompt, response, answer,
    verdict and reward. The rows are spread evenly over the batch. Texts are cut to their last 2,000 characters. In
    TensorBoard the table is Markdown, under *Text*. Other loggers get no table.

    Args:
        every: Iterations between two tables.
        responses: Number of responses in a table.

    Raises:
        ValueError: if `every` or `responses` is less than 1.
    """

    def __init__(self, every: int = 10, responses: int = 8) -> None:
        check_at_least_one("response_table", every=every, responses=responses)
        self.every = every
        self.responses = responses

    def measure(self, trainer: Trainer, batch: Any, outputs: Any) -> dict[str, float]:
        """Log the table of an iteration; return no scalars."""
        iteration = current_iteration(trainer)
        if trainer.is_global_zero and iteration % self.every == 0:
            rows = response_rows(batch, iteration, self.responses)
            for logger in trainer.loggers:
                log_table(logger, rows, iteration)
        return {}


def response_rows(batch: Fields, iteration: int, count: int) -> list[list[Any]]:
    """Return rows of `COLUMNS` for at most `count` responses, spread evenly over the batch."""
    rollouts = batch.rollouts
    total = len(rollouts.text)
    kept = min(count, total)
    rows = []
    for place in range(kept):
        row = place * total // kept
        question, prompt = int(rollouts.question[row]), int(rollouts.prompt[row])
        rows.append(
            [
                iteration,
                batch.groups[question].id,
                int(rollouts.rephrasing[row]),
                _shown(rollouts.prompts[prompt].text),
                _shown(rollouts.text[row]),
                rollouts.answers[row] and _shown(rollouts.answers[row]),
                bool(rollouts.correct[row]),
                float(rollouts.rewards[row]),
            ]
        )
    return rows


def _shown(text: str) -> str:
    """Return the end of a text, with `?` for characters that UTF-8 cannot encode."""
    return text[-SHOWN:].encode("utf-8", "replace").decode()


def log_table(logger: Logger, rows: Sequence[Sequence[Any]], step: int) -> None:
    """Log rows of `COLUMNS` as a table; do nothing if the logger has no tables."""
    if isinstance(logger, WandbLogger):
        logger.log_table(NAME, columns=list(COLUMNS), data=[list(row) for row in rows], step=step)
    elif isinstance(logger, TensorBoardLogger):
        logger.log_metrics(
            {}, step
        )  # a resumed logger first discards later steps, which would be this table too
        logger.experiment.add_text(NAME, as_markdown(rows), step)


def as_markdown(rows: Sequence[Sequence[Any]]) -> str:
    r"""Return rows of `COLUMNS` as a Markdown table, escaped so that no text ends a cell or begins HTML.

    >>> print(as_markdown([[0, "q1", 0, "1 + 1 = ?", "a | b\n<b>", None, False, 0.0]]).splitlines()[-1])
    | 0 | q1 | 0 | 1 + 1 = ? | a &#124; b<br>&lt;b&gt; | – | no | 0 |
    """
    lines = [COLUMNS, ["---"] * len(COLUMNS), *([_cell(value) for value in row] for row in rows)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    text = str(value)
    for special, shown in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "&#124;"), ("\n", "<br>")):
        text = text.replace(special, shown)
    return text
