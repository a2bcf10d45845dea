"""Rollouts between steps: sync the engine, sample, score, attach. Nothing is learned here."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from ..distributed import max_over_ranks, rank, sum_over_ranks
from ..modules.sharding import full_tensors
from ..rollouts.ahead import Generation, another_follows, check_ahead, timed
from ..rollouts.dynamic_sampling import DynamicSampling, fill_up
from ..rollouts.replay import SuccessReplay
from ..rollouts.scoring import RewardTerm, Scoring, Verifier
from ..rollouts.store import RolloutStore, digest, weights_digest
from ..rollouts.summary import means_of, totals_of
from ..scalars import log_scalars
from ..stages import Stage
from ..types import Completion, Engine, QuestionBatch, Request, Rollouts, SamplingConfig

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

    With `ahead` the engine samples the next batch while the module learns from this one, both beginning with the same
    weights: all training batches but the first are one update behind. `rollout/staleness` is by how many optimizer
    steps, and `PolicyModule` corrects for it. The last hook of a batch waits for the next one's responses; its
    `seconds/wait` is what sampling takes longer than the update. The responses are part of checkpoints: a run goes on
    with them. What dynamic sampling draws is not known ahead; it is sampled at once, by the weights that learn from it.
    A failure is reported when the batch is needed, and a run that goes on after it samples that batch by the weights
    that it has then. Nothing is sampled in vain, unless training ends before `max_steps` and `max_epochs`.

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
        ahead: Sample one batch ahead. Needs an engine that samples beside updates (`TransformersEngine`,
            `VLLMServerEngine`) and a train dataloader with `peek()`; not together with `replay`.

    Attributes:
        failures: Name → responses on this rank of which the verifier reached no verdict (`timeout`, `memory`, …); they
            count as wrong. Their share of a training batch is logged as `rollout/without_verdict`.

    Raises:
        ValueError: `ahead` with an engine or an option that does not allow it.
    """

    stage = Stage.ROLLOUT

    def __init__(
        self,
        engine: Callable[[], Engine],
        verifier: Verifier,
        sampling: SamplingConfig,
        evaluation_sampling: SamplingConfig | None = None,
        reward_terms: Mapping[str, RewardTerm] | None = None,
        dynamic_sampling: DynamicSampling | None = None,
        replay: SuccessReplay | None = None,
        seed: int = 0,
        ahead: bool = False,
    ) -> None:
        if ahead:
            check_ahead(engine, replay)
        self.make_engine = engine
        self.verifier = verifier
        self.sampling = sampling
        self.evaluation_sampling = evaluation_sampling or sampling
        self.reward_terms = dict(reward_terms or {})
        self.dynamic_sampling = dynamic_sampling
        self.replay = replay
        self.seed = seed
        self.ahead = ahead
        self.iteration = 0
        self.ledger: dict[str, int] = {"prompts": 0, "rollouts": 0, "tokens": 0, "updates": 0, "discarded_questions": 0}
        self.failures: Counter[str] = Counter()
        self.store: RolloutStore | None = None
        self._engine: Engine | None = None
        self._synced_at: int | None = None
        self._weights: tuple[int, str] | None = None
        self._next: Generation | None = None

    # ------------------------------------------------------------------ hooks

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Stream the weights anew: a checkpoint changes them without an optimizer step."""
        self._synced_at = self._weights = self._next = None

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
            log_scalars(pl_module, self.replay.observe(batch))
        if self.dynamic_sampling is not None:
            filled, discarded = fill_up(batch, self.dynamic_sampling, partial(self._draw, trainer, pl_module))
            batch.groups, batch.prompts, batch.rollouts = filled.groups, filled.prompts, filled.rollouts
            self.ledger["discarded_questions"] += int(sum_over_ranks({"n": discarded})["n"])
        self.iteration += 1
        totals = sum_over_ranks({**totals_of(batch), "failed": self.failures.total() - failed})
        log_scalars(pl_module, {**means_of(totals), **{f"budget/{k}": float(v) for k, v in self.ledger.items()}})
        if self.ahead:
            log_scalars(pl_module, {"rollout/staleness": totals["staleness"] / totals["rollouts"]})
            self._sample_next(trainer, pl_module, cast(dict[str, float], batch.rollouts.seconds))
        if hasattr(self._engine, "rest"):
            self._engine.rest()  # type: ignore[union-attr]

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the optimizer steps; wait for what is sampled ahead, before validation or a checkpoint needs it."""
        self.ledger["updates"] = trainer.global_step
        if self._next is not None:
            self._next.join(batch.rollouts.seconds)

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

        What an error has left being sampled ahead is dropped.

        Not done between fit and test, which share the engine: starting one costs seconds, and vLLM's shutdown destroys
        the process group that it found.
        """
        if self._engine is not None:
            self._engine.close()
        self._engine = self._synced_at = self._next = None
        if hasattr(self.verifier, "close"):
            self.verifier.close()

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run goes on counting from; the seed of a batch depends on its iteration alone."""
        state: dict[str, Any] = {"iteration": self.iteration, "ledger": dict(self.ledger)}
        if self.replay is not None:
            state["replay"] = self.replay.state_dict()
        if self._next is not None:
            state["ahead"] = self._next.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on counting."""
        self.iteration = state_dict["iteration"]
        self.ledger = dict(state_dict["ledger"])
        if self.replay is not None and "replay" in state_dict:
            self.replay.load_state_dict(state_dict["replay"])
        if self.ahead and "ahead" in state_dict:
            self._next = Generation.from_state(state_dict["ahead"])

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
        generation = self._sampled_ahead(batch, sampling, position)
        if generation is None:
            generation = self._generation(trainer, pl_module, batch, sampling, position, seconds)
        sampled = generation.result(seconds)
        scoring = generation.scoring or self._scoring(trainer, batch, position)
        scoring.batch = batch  # what was sampled ahead was a peek at it
        staleness = trainer.global_step - generation.step
        with timed(seconds, "score"):
            terms = self.reward_terms if position[0] == "fit" else {}
            rollouts = scoring.rollouts(sampled, replayed or {}, terms, seconds, staleness)
        self.failures += scoring.failures
        return rollouts

    def _generation(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: QuestionBatch,
        sampling: SamplingConfig,
        position: tuple[str, int, int],
        seconds: dict[str, float],
        *,
        ahead: bool = False,
    ) -> Generation:
        """The responses to `batch` by the present weights: from the store, or from the engine.

        The engine samples when they are waited for, with `ahead` from now on. Collective.
        """
        request = self._request(batch, sampling, position)
        scoring = self._scoring(trainer, batch, position)
        generation = Generation(digest(request) if ahead else "", trainer.global_step, scoring)
        generation.phase = "wait" if ahead else "generate"
        if scoring.store is not None:
            made_from = digest(self._weights_digest(trainer, pl_module), request)
            generation.completions = scoring.store.completions(scoring.position, made_from)
            if not max_over_ranks(generation.completions is None):  # syncing and sampling need every rank
                return generation
            generation.keep = partial(scoring.store.keep_completions, scoring.position, made_from)
        with timed(seconds, "sync"):
            engine = self._synced_engine(trainer, pl_module)
        if ahead:
            generation.finish = cast(Any, engine).begin(*request, *scoring.deliver)
        else:
            generation.finish = partial(engine.generate, *request, *scoring.deliver)
        return generation

    def _sample_next(self, trainer: Trainer, pl_module: LightningModule, seconds: dict[str, float]) -> None:
        """Let the engine begin with the batch of the next iteration, if there will be one. Collective."""
        if another_follows(trainer, getattr(pl_module, "mini_batches", 1)):
            batch = trainer.train_dataloader.peek()  # type: ignore[union-attr]
            position = ("fit", self.iteration, 0)
            self._next = self._generation(trainer, pl_module, batch, self.sampling, position, seconds, ahead=True)

    def _sampled_ahead(
        self, batch: QuestionBatch, sampling: SamplingConfig, position: tuple[str, int, int]
    ) -> Generation | None:
        """What was sampled ahead for `batch`; None, on every rank, where that was nothing or something else."""
        if not self.ahead or position[0] != "fit" or position[2]:
            return None
        generation, self._next = self._next, None
        fits = generation is not None and generation.asked == digest(self._request(batch, sampling, position))
        if not max_over_ranks(not fits):
            return generation
        if generation is not None:
            rank_zero_warn("Another batch came than was sampled ahead, by other data or options: it is sampled anew.")
        return None

    def _request(self, batch: QuestionBatch, sampling: SamplingConfig, position: tuple[str, int, int]) -> Request:
        return Request(
            prompts=[prompt.token_ids.cpu() for prompt in batch.prompts],
            num_samples=[prompt.num_samples for prompt in batch.prompts],
            sampling=sampling,
            seed=self._seed_of(position),
        )

    def _scoring(self, trainer: Trainer, batch: QuestionBatch, position: tuple[str, int, int]) -> Scoring:
        store = self.store if position[0] == "fit" else None
        tokenizer = trainer.datamodule.tokenizer  # type: ignore[attr-defined]
        return Scoring(self.verifier, batch, tokenizer, store, position[1:])

    def _draw(self, trainer: Trainer, pl_module: LightningModule, draw: int) -> QuestionBatch:
        """A further batch of the same iteration, rolled out."""
        batch: QuestionBatch = trainer.train_dataloader.draw()  # type: ignore[union-attr]
        position = ("fit", self.iteration, draw)
        batch.rollouts = self.roll_out(trainer, pl_module, batch, self.sampling, position)
        self._count(trainer, batch)
        return batch

    def _count(self, trainer: Trainer, batch: QuestionBatch) -> None:
        """Enter what has been sampled into the ledger, whether it is learned from or not, and show it to the data."""
        totals = sum_over_ranks(totals_of(batch))
        for name in ("prompts", "rollouts", "tokens"):
            self.ledger[name] += int(totals[name])
        datamodule = trainer.datamodule  # type: ignore[attr-defined]
        if hasattr(datamodule, "observe"):
            datamodule.observe(batch)

    def _synced_engine(self, trainer: Trainer, pl_module: LightningModule) -> Engine:
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

    def _seed_of(self, position: tuple[str, int, int]) -> int:
        stage, first, second = position
        return hash((self.seed, STAGES.index(stage), first, second, rank())) % 2**60
