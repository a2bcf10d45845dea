"""Pass@k, Cover@τ, majority vote and answer diversity per evaluation split, with intervals over questions."""

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from ..distributed import gather_objects, rank
from ..metrics.evaluation import QuestionCounts, averages, count_batch, merge_counts, summarise
from ..metrics.functional import cover_at_tau
from ..runs.scalars import log_scalars
from ..types import Fields
from .counts import CountStore, Key
from .shared import current_iteration, delete_later, keep_questions, write_evaluation

SCALARS = ("majority", "wrong_answers", "length", "truncated")


class PassAtKEvaluator(Callback):
    """Callback that counts correct responses per question in validation and test, and reports pass@k.

    Logs for each split, as means over the split's questions:

    - `pass@k/<split>/<k>`: unbiased estimate of pass@k; at k = 1 this is the accuracy.
    - `cover@tau/<split>/<tau>`: Cover@τ, the share of the questions for which at least a share τ of the n
      responses is correct (arXiv 2510.08325). It is a biased estimate of the share of questions with a
      success probability of at least τ. The bias is largest if many questions are near τ, and vanishes as n
      grows; no estimate from n responses is unbiased.
    - `majority/<split>`: accuracy of the majority among all responses to a question (`majority_vote`).
    - `wrong_answers/<split>`: distinct wrong answers to a question; `length/<split>`: tokens per response;
      `truncated/<split>`: share of truncated responses.
    - `pass@k_average/<group>/<k>`: mean over the splits of a group, each with the same weight;
      `pass@k_by_question/<group>/<k>`: mean over all questions of a group's splits.

    Writes the counts of every question, and pass@k of splits and groups with 95 % t-intervals over questions,
    to `<stage>.json` (`validation`, `test`) and `evaluations/<stage>-<iterations trained>.json`.

    Counts are summed exactly over batches and ranks. If a question id occurs again, the responses are added.
    Questions without responses are left out.

    With a `store`, an interrupted test can be continued: questions whose responses are all in the store are
    removed from their batch before sampling. Batches are stored whole, so that the other questions keep their
    seeds. All responses to a question are sampled again if the store has too few of them, or if it has too
    many and an identity. With a store, a question id must not occur in two batches.

    Args:
        ks: Values of k; values above the smallest number of responses to a question are left out.
        averages: Name of a group → splits to average over; a group is left out if one of its splits is not
            evaluated.
        store: Folder for the counts of an interrupted test, for one evaluation of one model; None stores no
            counts.
        taus: Values of τ, from 0 to 1.

    Raises:
        ValueError: if `ks` is empty or contains a number below 1, if a τ is out of range, or if a group has
            no splits.
    """

    shapes_learning = False

    def __init__(
        self,
        ks: Sequence[int] = (1, 2, 4, 8, 16, 32),
        averages: Mapping[str, Sequence[str]] | None = None,
        store: str | Path | None = None,
        taus: Sequence[float] = (),
    ) -> None:
        if not ks or min(ks) < 1:
            raise ValueError(
                f"Expected callbacks.pass_at_k.ks to hold integers of at least 1, but got {list(ks)}. Correct it."
            )
        if empty := [name for name, splits in (averages or {}).items() if not splits]:
            raise ValueError(
                f"Expected averages.{empty[0]} to name test splits, but it names none. Add some."
            )
        cover_at_tau(torch.zeros(0), taus)  # refuses invalid thresholds before anything is sampled
        self.ks, self.taus = tuple(ks), tuple(taus)
        self.averages = {name: list(splits) for name, splits in (averages or {}).items()}
        self.store = None if store is None else CountStore(store)
        self._records: list[QuestionCounts] = []
        self._stored: dict[Key, QuestionCounts] = {}
        self._asked: set[Key] = set()
        # Other projects log through Lightning, which would advise, once for each scalar, to reduce all ranks'
        # counts.
        warnings.filterwarnings(
            "ignore", rf"It is recommended to use `self\.log\('({'|'.join(SCALARS)}|\w+@\w+)/"
        )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Delete `test.json` and the evaluations that an earlier attempt left of iterations still to come."""
        delete_later(trainer, "evaluations/*.json", current_iteration(trainer) + 1)
        if trainer.is_global_zero:
            (Path(trainer.default_root_dir) / "test.json").unlink(missing_ok=True)

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._records = []

    def on_test_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Read the counts from the store."""
        self._records, self._asked = [], set()
        self._stored = {} if self.store is None else self.store.resume()

    def on_test_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, *_: Any) -> None:
        """Take counts of questions from the store, and remove these questions from the batch.

        Raises:
            ValueError: if a store is set and an earlier batch has a question with the same id.
        """
        if self.store is None:
            return
        fields = Fields("batch", batch)
        ids = [group.id for group in fields.groups]
        wanted: Counter[Key] = Counter()
        for prompt in fields.prompts:
            wanted[fields.split, ids[prompt.question]] += prompt.num_samples
        if twice := self._asked & wanted.keys():
            split, id = min(twice)
            raise ValueError(
                "Expected question ids that are unique within a split, since callbacks.pass_at_k.store is "
                f"set, but {id!r} of {split} is in two batches. Give each question an id of its own, or set "
                "store=null."
            )
        self._asked |= wanted.keys()
        stored = {key: self._stored[key] for key in wanted if key in self._stored}
        known = {key: record for key, record in stored.items() if self.store.suffices(record, wanted[key])}
        self._records += known.values()
        keep_questions(batch, [(fields.split, id) not in known for id in ids])

    def on_test_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, *_: Any) -> None:
        records = count_batch(batch)
        if self.store is not None and records and trainer.testing:  # validations are not kept
            self.store.append(rank(), records)
        self._records += records

    on_validation_batch_end = on_test_batch_end  # type: ignore[assignment]

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the results and write them to files."""
        if trainer.sanity_checking:
            return
        stage = "test" if trainer.testing else "validation"
        if trainer.testing and self.store is not None:
            self._tell_of_strangers(self.store)
        counts = merge_counts(chain(*gather_objects(self._records)))
        report = {name: summarise(questions, self.ks, self.taus) for name, questions in counts.items()}
        found = averages(report, self.averages)
        metrics = _by_k(report, {"pass@k": "pass_at_k", "cover@tau": "cover_at_tau"})
        metrics |= {
            f"{scalar}/{name}": summary[scalar] for name, summary in report.items() for scalar in SCALARS
        }
        metrics |= _by_k(found, {"pass@k_average": "pass_at_k", "pass@k_by_question": "by_question"})
        log_scalars(pl_module, metrics)
        write_evaluation(trainer, stage, {"stage": stage}, {"groups": found, "splits": report})

    on_validation_epoch_end = on_test_epoch_end

    def _tell_of_strangers(self, store: CountStore) -> None:
        """Warn if the store has counts of questions that no rank evaluates; these counts are not used."""
        strangers = sorted(self._stored.keys() - set().union(*gather_objects(self._asked)))
        if strangers:
            split, id = strangers[0]
            rank_zero_warn(
                f"Skipping the counts of {len(strangers)} questions in {store.folder} that this evaluation "
                f"does not ask, such as {id!r} of {split!r}."
            )


def _by_k(parts: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, float]:
    return {
        f"{metric}/{name}/{k}": estimate["value"]
        for name, part in parts.items()
        for metric, column in columns.items()
        for k, estimate in part.get(column, {}).items()
    }
