"""Pass@k, Cover@τ, majority vote and answer diversity of each evaluation split, with intervals over questions."""

import json
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from ..distributed import gather_objects, rank
from ..metrics.evaluation import Record, Splits, averages, count_batch, merge_counts, summarise
from ..metrics.functional import cover_at_tau
from ..runs.files import write_json
from ..runs.identity import digest
from ..runs.scalars import log_scalars
from ..types import Fields
from .shared import current_iteration, delete_later, write_evaluation

SCALARS = ("majority", "wrong_answers", "length", "truncated")


class PassAtKEvaluator(Callback):
    """Counts correct responses per question in validation and test, and reports at the end of the stage.

    Logs for each split, as means over its questions,
    - `pass@k/<split>/<k>`: unbiased estimate of pass@k; at k = 1 it is the accuracy.
    - `cover@tau/<split>/<tau>`: Cover@τ, the share of the questions to which at least a share τ of the n responses is
      correct (arXiv 2510.08325). As an estimate of the share with a success probability of at least τ it is biased,
      most where many questions are near τ. The bias vanishes as n grows; no estimate from n responses is unbiased.
    - `majority/<split>`: accuracy of the majority among all responses to a question (`majority_vote`).
    - `wrong_answers/<split>`: distinct wrong answers to a question; `length/<split>`: tokens per response;
      `truncated/<split>`: share of truncated responses.
    - `pass@k_average/<group>/<k>`: mean over the splits of a group, each with the same weight;
      `pass@k_by_question/<group>/<k>`: mean over all questions of a group's splits.

    Writes the counts of every question, and pass@k of splits and groups with 95 % t-intervals over questions, to
    `<stage>.json` (`validation`, `test`) and `evaluations/<stage>-<iterations trained>.json`.

    Counts are summed exactly over batches and ranks. When a question id occurs again, its responses are added;
    questions without any response are left out.

    With a `store`, a test that was interrupted can be continued: questions whose responses are all in the store are
    removed from their batch before it is sampled. Batches are stored whole, so that other questions keep their seeds.
    With a store the id of a question must not occur in two batches.

    Args:
        ks: The k of interest; those above the smallest number of samples are left out.
        averages: Name of a group → the splits over which it is averaged; left out where one of them is not evaluated.
        store: Folder for the counts of an interrupted test, for one evaluation of one model; None keeps no counts.
        taus: The τ of interest, 0..1.

    Raises:
        ValueError: a k is less than 1, or none is given; a τ is outside its range; a group has no splits.
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
            raise ValueError(f"Expected averages.{empty[0]} to name test splits, but it names none. Add some.")
        cover_at_tau(torch.zeros(0), taus)  # refuses invalid thresholds before anything is sampled
        self.ks, self.taus = tuple(ks), tuple(taus)
        self.averages = {name: list(splits) for name, splits in (averages or {}).items()}
        self.store = None if store is None else CountStore(store)
        self._records: list[Record] = []
        self._known: Splits = {}
        # Other projects log through Lightning, which would advise, once for each scalar, to reduce all ranks' counts.
        warnings.filterwarnings("ignore", rf"It is recommended to use `self\.log\('({'|'.join(SCALARS)}|\w+@\w+)/")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Delete evaluations of later iterations, and the test of the run that is continued."""
        delete_later(trainer, "evaluations/*.json", current_iteration(trainer) + 1)
        if trainer.is_global_zero:
            (Path(trainer.default_root_dir) / "test.json").unlink(missing_ok=True)

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._records = []

    def on_test_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start from the counts in the store."""
        records = [] if self.store is None else self.store.resume()
        self._known = merge_counts(records)
        self._records = records if rank() == 0 else []

    def on_test_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, *_: Any) -> None:
        """Leave out questions that the store has counted."""
        if known := self._known.get(Fields("batch", batch).split):
            wanted: Counter[int] = Counter()
            for prompt in batch.prompts:
                wanted[prompt.question] += prompt.num_samples
            ids = enumerate(group.id for group in batch.groups)
            keep_questions(batch, [id not in known or known[id]["n"] < wanted[row] for row, id in ids])

    def on_test_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, *_: Any) -> None:
        records = count_batch(batch)
        if self.store is not None and records and trainer.testing:  # validations are not kept
            self.store.append(rank(), records)
        self._records += records

    on_validation_batch_end = on_test_batch_end  # type: ignore[assignment]

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log and write what was counted."""
        if trainer.sanity_checking:
            return
        stage = "test" if trainer.testing else "validation"
        counts = merge_counts(chain(*gather_objects(self._records)))
        report = {name: summarise(questions, self.ks, self.taus) for name, questions in counts.items()}
        found = averages(report, self.averages)
        metrics = _by_k(report, {"pass@k": "pass_at_k", "cover@tau": "cover_at_tau"})
        metrics |= {f"{scalar}/{name}": summary[scalar] for name, summary in report.items() for scalar in SCALARS}
        metrics |= _by_k(found, {"pass@k_average": "pass_at_k", "pass@k_by_question": "by_question"})
        log_scalars(pl_module, metrics)
        write_evaluation(trainer, stage, {"stage": stage}, {"groups": found, "splits": report})

    on_validation_epoch_end = on_test_epoch_end


def _by_k(parts: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, float]:
    return {
        f"{metric}/{name}/{k}": estimate["value"]
        for name, part in parts.items()
        for metric, column in columns.items()
        for k, estimate in part.get(column, {}).items()
    }


def keep_questions(batch: Any, keep: Sequence[bool]) -> None:
    """Remove the questions whose `keep` is false from `batch`, in place; the batch must not have rollouts yet."""
    row_of = {row: new for new, row in enumerate(row for row, kept in enumerate(keep) if kept)}
    batch.groups = [batch.groups[row] for row in row_of]
    batch.prompts = [p._replace(question=row_of[p.question]) for p in batch.prompts if p.question in row_of]


class CountStore:
    """Stores the records of `count_batch`, one line with a checksum each, in one folder per identity of an evaluation.

    Each rank appends to `<rank>.counts`; all files are read, so that the number of ranks may change in between.
    """

    identify: Callable[[], Mapping[str, str]] | None = None
    """Returns name → value of everything that the counts depend on. If None, all evaluations share one folder."""

    def __init__(self, folder: str | Path) -> None:
        self.root = self.folder = Path(folder)

    def resume(self) -> list[Record]:
        """The counts so far of the present evaluation. Collective: no rank appends before rank 0 has read for all."""
        first = rank() == 0
        self.folder = self.root / gather_objects(self._name() if first else "")[0]
        return gather_objects(self.read() if first else [])[0]

    def _name(self) -> str:
        """Return the name of the present evaluation's folder, and write the evaluation's identity into it."""
        if self.identify is None:
            return ""
        identity = dict(self.identify())
        name = digest(identity)
        others = [path for path in self.root.glob("*/identity.json") if path.parent.name != name]
        if others and not (self.root / name).exists():
            then = json.loads(max(others, key=lambda path: path.stat().st_mtime).read_text())
            changed = ", ".join(part for part, value in identity.items() if then.get(part) != value)
            rank_zero_info(f"Sampled anew: not the same as in the evaluation before under this name ({changed}).")
        write_json(self.root / name / "identity.json", identity)
        return name

    def read(self) -> list[Record]:
        """All counts so far. Damaged lines are left out: their questions are sampled again."""
        records: list[Record] = []
        for file in sorted(self.folder.glob("*.counts")):
            lines = [line.partition("\t") for line in file.read_text(errors="replace").splitlines() if line]
            intact = [json.loads(text) for seal, _, text in lines if seal == _checksum(text)]
            records += intact
            if damaged := len(lines) - len(intact):
                rank_zero_warn(f"Skipping {damaged} of {len(lines)} lines of {file}: they were cut off or changed.")
        return records

    def append(self, number: int, records: Sequence[Record]) -> None:
        """Append the records of one batch to the file of rank `number`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{number}.counts"
        # The rest of a line that was cut off must not swallow the next one.
        torn = path.exists() and path.stat().st_size and not path.read_bytes().endswith(b"\n")
        texts = [json.dumps(record) for record in records]
        with path.open("a") as file:
            file.write("\n" * bool(torn) + "".join(f"{_checksum(text)}\t{text}\n" for text in texts))


def _checksum(text: str) -> str:
    return f"{zlib.crc32(text.encode('utf-8', 'surrogatepass')):08x}"
