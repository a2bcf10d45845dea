"""Rollouts between steps: sync the engine, sample, score, attach. Nothing is learned here."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from ..modules.distributed import max_over_ranks, rank, sum_over_ranks
from ..modules.sharding import full_tensors
from ..rewards.early import EarlyVerdicts
from ..rollouts.base import RolloutEngine, SamplingConfig
from ..rollouts.dynamic_sampling import DynamicSampling, join_batches, take_questions
from ..rollouts.replay import SuccessReplay
from ..rollouts.store import RolloutStore, digest, weights_digest
from ..types import Completion, QuestionBatch, QuestionGroup, Rollouts, Score

Verifier = Callable[[str, Sequence[str]], Score]
RewardTerm = Callable[[Rollouts, Sequence[QuestionGroup]], Tensor]
STAGES = ("fit", "validate", "test")


class RolloutCallback(Callback):
    """Attaches `batch.rollouts` before each training, validation and test batch.

    Works with any module whose batches are `QuestionBatch`-like (`groups`, `prompts`) and whose datamodule has a
    `tokenizer`; its `observe(batch)`, where it has one, is shown every training batch that was sampled. Weights come
    from `module.full_parameters()` where there is such a method, else from `module.named_parameters()`. They are
    streamed at the start of a batch, and only when an optimizer step lies between, or when fit, validation or test
    begins, which may have loaded a checkpoint: right after a resume, and never in vain at the end.

    Logs `rollout/*` (means over all responses of all ranks) and `budget/*` (totals of the run so far), and writes
    `ledger.json` into the run directory when training ends. `store` keeps the rollouts of training batches on disk
    until `checkpointed` is called; `Checkpointer` sets the one and calls the other.

    Args:
        engine: Makes the engine; called at the first batch, on every rank.
        verifier: (response, references) → `Score`; its `judge_batch` is used where it has one, and its `judge_async`
            to judge while the engine still samples.
        sampling: How training responses are drawn.
        evaluation_sampling: How validation and test responses are drawn; None means as in training.
        reward_terms: name → term added to the verdict in training: (rollouts, groups) → [R].
        dynamic_sampling: Replaces questions without gradient in training batches; the ledger counts everything that
            was sampled, and `discarded_questions` what was thrown away. Needs a train dataloader with `draw()`.
        replay: Replays past successes in training batches. Needs a module with `response_entropy`.
        seed: Of all sampling.

    Attributes:
        failures: Name → responses on this rank of which the verifier reached no verdict (`timeout`, `memory`, …); they
            count as wrong. Their share of a training batch is logged as `rollout/without_verdict`.
    """

    def __init__(
        self,
        engine: Callable[[], RolloutEngine],
        verifier: Verifier,
        sampling: SamplingConfig,
        evaluation_sampling: SamplingConfig | None = None,
        reward_terms: Mapping[str, RewardTerm] | None = None,
        dynamic_sampling: DynamicSampling | None = None,
        replay: SuccessReplay | None = None,
        seed: int = 0,
    ) -> None:
        self.make_engine = engine
        self.verifier = verifier
        self.sampling = sampling
        self.evaluation_sampling = evaluation_sampling or sampling
        self.reward_terms = dict(reward_terms or {})
        self.dynamic_sampling = dynamic_sampling
        self.replay = replay
        self.seed = seed
        self.iteration = 0
        self.ledger: dict[str, int] = {"prompts": 0, "rollouts": 0, "tokens": 0, "updates": 0, "discarded_questions": 0}
        self.failures: Counter[str] = Counter()
        self.store: RolloutStore | None = None
        self._engine: RolloutEngine | None = None
        self._synced_at: int | None = None
        self._weights: tuple[int, str] | None = None

    # ------------------------------------------------------------------ hooks

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Stream the weights anew: a checkpoint changes them without an optimizer step."""
        self._synced_at = self._weights = None

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Roll the training batch out, count it, log it."""
        replayed, failed = {}, self.failures.total()
        if self.replay is not None:
            entropy: Any = pl_module.response_entropy
            replayed = self.replay.substitute(batch, self.iteration, entropy)
        position = ("fit", self.iteration, 0)
        batch.rollouts = self.roll_out(trainer, pl_module, batch, self.sampling, position, replayed)
        self._count(trainer, batch)
        if self.replay is not None:
            pl_module.log_dict(self.replay.observe(batch))
        if self.dynamic_sampling is not None:
            filled = self._filled(trainer, pl_module, batch, self.dynamic_sampling)
            batch.groups, batch.prompts, batch.rollouts = filled.groups, filled.prompts, filled.rollouts
        self.iteration += 1
        totals = sum_over_ranks({**_totals(batch), "failed": self.failures.total() - failed})
        pl_module.log_dict({**_means(totals), **{f"budget/{k}": float(v) for k, v in self.ledger.items()}})
        if hasattr(self._engine, "rest"):
            self._engine.rest()  # type: ignore[union-attr]

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the optimizer steps."""
        self.ledger["updates"] = trainer.global_step

    def on_validation_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Roll the validation batch out."""
        position = ("validate", dataloader_idx, batch_idx)
        batch.rollouts = self.roll_out(trainer, pl_module, batch, self.evaluation_sampling, position)

    def on_test_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Roll the test batch out."""
        position = ("test", dataloader_idx, batch_idx)
        batch.rollouts = self.roll_out(trainer, pl_module, batch, self.evaluation_sampling, position)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the budget that the run has used."""
        if trainer.is_global_zero:
            path = Path(trainer.default_root_dir) / "ledger.json"
            path.write_text(json.dumps({**self.ledger, "iterations": self.iteration}, indent=2) + "\n")

    def checkpointed(self) -> None:
        """Forget rollouts on disk: a checkpoint holds all that was learned from them."""
        if self.store is not None:
            self.store.prune(self.iteration)

    def close(self) -> None:
        """Give back the engine and the verifier's workers; both start again when they are needed.

        Not done between fit and test, which share the engine: starting one costs seconds, and vLLM's shutdown destroys
        the process group that it found.
        """
        if self._engine is not None:
            self._engine.close()
        self._engine, self._synced_at = None, None
        if hasattr(self.verifier, "close"):
            self.verifier.close()

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run goes on counting from; the seed of a batch depends on its iteration alone."""
        state: dict[str, Any] = {"iteration": self.iteration, "ledger": dict(self.ledger)}
        return state if self.replay is None else {**state, "replay": self.replay.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on counting."""
        self.iteration = state_dict["iteration"]
        self.ledger = dict(state_dict["ledger"])
        if self.replay is not None and "replay" in state_dict:
            self.replay.load_state_dict(state_dict["replay"])

    # ------------------------------------------------------------------ sync → generate → score

    def roll_out(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: QuestionBatch,
        sampling: SamplingConfig,
        position: tuple[str, int, int],
        replayed: Mapping[int, Completion] | None = None,
    ) -> Rollouts:
        """Responses to the prompts of `batch`, scored.

        Args:
            trainer: Tells how many optimizer steps the policy has made.
            pl_module: Where weights come from.
            batch: Questions and prompts.
            sampling: How to draw.
            position: Stage and two counters that no other batch of the run has.
            replayed: Row of a prompt → a past success that joins its samples.
        """
        seconds: dict[str, float] = {}
        prompts = [prompt.token_ids.cpu() for prompt in batch.prompts]
        counts = [prompt.num_samples for prompt in batch.prompts]
        store = self.store if position[0] == "fit" else None
        made_from, sampled = "", None
        if store is not None:
            weights = self._weights_digest(trainer, pl_module)
            made_from = digest(weights, self._seed_of(position), prompts, counts, sampling)
            sampled = store.completions(position[1:], made_from)
            if max_over_ranks(sampled is None):  # syncing and sampling need every rank
                sampled = None
        tokenizer = trainer.datamodule.tokenizer  # type: ignore[attr-defined]
        early = self._early_verdicts(batch, tokenizer)
        if sampled is None:
            with _timed(seconds, "sync"):
                engine = self._synced_engine(trainer, pl_module)
            with _timed(seconds, "generate"):
                deliver = () if early is None else (early.deliver,)
                sampled = engine.generate(prompts, counts, sampling, self._seed_of(position), *deliver)
            if store is not None:
                store.keep_completions(position[1:], made_from, sampled)
        with _timed(seconds, "score"):
            terms = self.reward_terms if position[0] == "fit" else {}
            return self._scored(batch, sampled, tokenizer, seconds, replayed or {}, terms, position, early)

    def _filled(
        self, trainer: Trainer, pl_module: LightningModule, batch: QuestionBatch, dynamic: DynamicSampling
    ) -> QuestionBatch:
        """A batch of as many questions, those without gradient replaced by ones with, while draws last.

        Every rank draws as often as the one that lacks most, so that loaders and engines stay in step.
        """
        wanted = len(batch.groups)
        batches = [batch]
        informative = [dynamic.informative(_rollouts(batch))]
        for draw in range(1, dynamic.max_draws + 1):
            if not max_over_ranks(wanted - sum(len(rows) for rows in informative)) > 0:
                break
            more = trainer.train_dataloader.draw()  # type: ignore[union-attr]
            more.rollouts = self.roll_out(trainer, pl_module, more, self.sampling, ("fit", self.iteration, draw))
            self._count(trainer, more)
            batches.append(more)
            informative.append(dynamic.informative(more.rollouts))
        chosen, lacking = [], wanted
        for rows in informative:
            chosen.append(rows[:lacking])
            lacking -= len(chosen[-1])
        # Out of draws: the first batch's other questions fill the rest.
        others = torch.tensor([row for row in range(wanted) if row not in informative[0].tolist()], dtype=torch.long)
        chosen[0] = torch.cat([chosen[0], others[:lacking]]).sort().values
        discarded = sum(len(b.groups) for b in batches) - wanted
        self.ledger["discarded_questions"] += int(sum_over_ranks({"n": discarded})["n"])
        # Also those of which nothing is kept: their seconds were spent.
        return join_batches([take_questions(b, rows) for b, rows in zip(batches, chosen, strict=True)])

    def _count(self, trainer: Trainer, batch: QuestionBatch) -> None:
        """Enter what has been sampled into the ledger, whether it is learned from or not, and show it to the data."""
        totals = sum_over_ranks(_totals(batch))
        for name in ("prompts", "rollouts", "tokens"):
            self.ledger[name] += int(totals[name])
        datamodule = trainer.datamodule  # type: ignore[attr-defined]
        if hasattr(datamodule, "observe"):
            datamodule.observe(batch)

    def _synced_engine(self, trainer: Trainer, pl_module: LightningModule) -> RolloutEngine:
        if self._engine is None:
            self._engine = self.make_engine()
        if self._synced_at != trainer.global_step:
            parameters = getattr(pl_module, "full_parameters", lambda: full_tensors(pl_module))()
            self._engine.sync(parameters)
            self._synced_at = trainer.global_step
        return self._engine

    def _weights_digest(self, trainer: Trainer, pl_module: LightningModule) -> str:
        """Of the current policy; taken once between two optimizer steps."""
        if self._weights is None or self._weights[0] != trainer.global_step:
            self._weights = (trainer.global_step, weights_digest(pl_module))
        return self._weights[1]

    def _early_verdicts(self, batch: QuestionBatch, tokenizer: Any) -> EarlyVerdicts | None:
        """Judges responses while others are sampled; None when the verifier can't."""
        if not hasattr(self.verifier, "judge_async"):
            return None
        references = [batch.groups[prompt.question].answer for prompt in batch.prompts]
        return EarlyVerdicts(
            self.verifier.judge_async, partial(tokenizer.batch_decode, skip_special_tokens=True), references
        )

    def _judged(
        self,
        text: list[str],
        references: list[tuple[str, ...]],
        position: tuple[str, int, int],
        known: Sequence[Score | None],
    ) -> list[Score]:
        """[R] verdicts, of which some may be `known`; those of training batches are kept beside the responses."""
        store = self.store if position[0] == "fit" else None
        made_from = digest(text, references, self.verifier) if store is not None else ""
        scores = store.scores(position[1:], made_from) if store is not None else None
        if scores is not None:
            return scores
        rest = [row for row, score in enumerate(known) if score is None]
        pairs = [(text[row], references[row]) for row in rest]
        if hasattr(self.verifier, "judge_batch"):
            judged = list(self.verifier.judge_batch(*map(list, zip(*pairs, strict=True)))) if pairs else []
        else:
            judged = [self.verifier(*pair) for pair in pairs]
        late = dict(zip(rest, judged, strict=True))
        scores = [late[row] if score is None else score for row, score in enumerate(known)]
        if store is not None:
            store.keep_scores(position[1:], made_from, scores)
        return scores

    def _seed_of(self, position: tuple[str, int, int]) -> int:
        stage, first, second = position
        return hash((self.seed, STAGES.index(stage), first, second, rank())) % 2**60

    def _scored(
        self,
        batch: QuestionBatch,
        sampled: list[list[Completion]],
        tokenizer: Any,
        seconds: Mapping[str, float],
        replayed: Mapping[int, Completion],
        reward_terms: Mapping[str, RewardTerm],
        position: tuple[str, int, int],
        early: EarlyVerdicts | None,
    ) -> Rollouts:
        sampled = [[*samples, *([replayed[row]] if row in replayed else [])] for row, samples in enumerate(sampled)]
        completions = list(chain.from_iterable(sampled))
        prompt = torch.repeat_interleave(torch.tensor([len(samples) for samples in sampled], dtype=torch.long))
        question = torch.tensor([p.question for p in batch.prompts], dtype=torch.long)[prompt]
        # A rank may have no question in the last evaluation batch; tokenizers would make one text of nothing.
        ids = [c.token_ids for c in completions]
        text = tokenizer.batch_decode(ids, skip_special_tokens=True) if ids else []
        references = [batch.groups[row].answer for row in question.tolist()]
        known: list[Score | None] = []
        for row, samples in enumerate(sampled):
            judged = early.scores(row) if early else []
            known += [*judged, *[None] * (len(samples) - len(judged))]
        scores = self._judged(text, references, position, known)
        self.failures.update(score.failure for score in scores if score.failure)
        correct = torch.tensor([score.correct for score in scores], dtype=torch.bool)
        fields: dict[str, Any] = {
            "prompts": batch.prompts,
            "prompt": prompt,
            "question": question,
            "variant": torch.tensor([p.variant for p in batch.prompts], dtype=torch.long)[prompt],
            "token_ids": ids,
            "logprobs": [c.logprobs for c in completions],
            "truncated": torch.tensor([c.truncated for c in completions], dtype=torch.bool),
            "text": text,
            "correct": correct,
            "answers": [score.answer for score in scores],
            "seconds": seconds,
            "replayed": torch.tensor(
                [sample is replayed.get(row) for row, samples in enumerate(sampled) for sample in samples],
                dtype=torch.bool,
            ),
        }
        plain = Rollouts(**fields, rewards=correct.float())
        terms = {name: term(plain, batch.groups).float() for name, term in reward_terms.items()}
        return Rollouts(**fields, rewards=sum(terms.values(), start=plain.rewards), reward_terms=terms)


@contextmanager
def _timed(seconds: dict[str, float], phase: str) -> Any:
    start = time.perf_counter()
    yield
    seconds[phase] = time.perf_counter() - start


def _rollouts(batch: QuestionBatch) -> Rollouts:
    assert batch.rollouts is not None
    return batch.rollouts


def _totals(batch: QuestionBatch) -> dict[str, float]:
    """Sums over the responses that one rank has sampled, to be added over ranks and then divided."""
    rollouts = _rollouts(batch)
    sampled = ~rollouts.replayed
    original = (rollouts.variant == 0) & sampled
    return {
        "prompts": len(rollouts.prompts),
        "questions": len(batch.groups),
        "rephrasings": len({(p.question, p.variant) for p in rollouts.prompts if p.variant}),
        "rollouts": float(sampled.sum()),
        "originals": float(original.sum()),
        "tokens": float(rollouts.lengths[sampled].sum()),
        "reward": float(rollouts.rewards[sampled].sum()),
        "correct": float((rollouts.correct & sampled).sum()),
        "correct_original": float((rollouts.correct & original).sum()),
        "truncated": float((rollouts.truncated & sampled).sum()),
        "logprob": sum(float(rollouts.logprobs[row].sum()) for row in sampled.nonzero()[:, 0].tolist()),
        **{f"reward_term/{name}": float(term[sampled].sum()) for name, term in rollouts.reward_terms.items()},
    }


def _means(totals: dict[str, float]) -> dict[str, float]:
    """The scalars to log. `rollout/entropy` is −mean log-prob, unbiased for the entropy per token at temperature 1."""
    count, originals = totals["rollouts"], totals["originals"]
    neighbours = count - originals
    means = {
        "rollout/reward": totals["reward"] / count,
        "rollout/correct": totals["correct"] / count,
        "rollout/length": totals["tokens"] / count,
        "rollout/truncated": totals["truncated"] / count,
        "rollout/without_verdict": totals["failed"] / count,
        "rollout/rephrasings": totals["rephrasings"] / totals["questions"],
        "rollout/entropy": -totals["logprob"] / totals["tokens"],
    }
    if originals:
        means["rollout/correct_original"] = totals["correct_original"] / originals
    if neighbours:
        means["rollout/correct_neighbours"] = (totals["correct"] - totals["correct_original"]) / neighbours
    return means | {f"rollout/{k}": v / count for k, v in totals.items() if k.startswith("reward_term/")}
