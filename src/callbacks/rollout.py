"""Connection of `RolloutPipeline` with a Lightning trainer: hooks, logging, and the trainer's state."""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from ..datamodules.memory import Chooser, QuestionMemory
from ..files import write_json
from ..modules.policy.sharding import full_tensors
from ..rollouts.pipeline import RolloutPipeline
from ..rollouts.scoring import Decoder
from ..runs.scalars import Stage, log_scalars
from ..types import SampledPolicy, require
from .shared import another_follows, updates_of


class RolloutCallback(Callback):
    """Callback that sets `batch.rollouts` before each training, validation and test batch; logs statistics.

    Works with any module whose batches have the fields `groups` and `prompts` of a `QuestionBatch`, and whose
    data module has a `tokenizer`; `SampledPolicy` and `Chooser` name optional attributes. Writes
    `ledger.json` into the run directory when training ends.

    Some options of the pipeline need more from the project:

    - `dynamic_sampling`: a train dataloader with `draw()`. If `trainer.max_epochs` is set, also a data module
      with `iterations_per_epoch`; the run then has as many iterations as these epochs have without draws.
    - `replay`: a train dataloader with `serve_by(chance)` and a module that is a `SampledPolicy`.
    - `ahead`: a train dataloader with `peek(count)`.
    - `reformulator`: a data module with `reformulated(groups)`.

    Args:
        pipeline: Function of `decode` and `weights` that makes the pipeline: `partial(RolloutPipeline,
            engine, verifier, …)`.
        policy: Name of the submodule that engines sample from, such as `model`, if the module is not a
            `SampledPolicy`. None uses the only trainable Hugging Face model in the module, or the whole
            module if there is none.
    """

    stage = Stage.ROLLOUT
    shapes_learning = True

    def __init__(self, pipeline: Callable[..., RolloutPipeline], policy: str | None = None) -> None:
        self._decoder = Decoder()
        self.pipeline = pipeline(decode=self._decoder, weights=partial(weights_of, policy=policy))

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Create the memory of questions if it is needed, and mark the engine's weights as stale.

        Raises:
            TypeError: if `replay` is used and the module is not a `SampledPolicy`. Replay needs the entropy
                of responses from it.
            ValueError: if `ahead` is above 1 with a curriculum that reads earlier results.
        """
        if self.pipeline.replay is not None:
            require(pl_module, SampledPolicy, "the module, with rollout.replay,")
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        self._decoder.tokenizer = data.tokenizer
        looks_back = isinstance(pl_module, SampledPolicy) and pl_module.needs_history
        chooses = isinstance(data, Chooser) and data.needs_memory
        if chooses and self.pipeline.ahead > 1:
            raise ValueError(
                f"Expected rollout.ahead of at most 1 with data.curriculum, but got {self.pipeline.ahead}: "
                "which questions follow depends on the batches before them. Lower rollout.ahead, or set "
                "curriculum=none."
            )
        if self.pipeline.memory is None and (looks_back or chooses):
            self.pipeline.memory = QuestionMemory()
        if self.pipeline.memory is not None and isinstance(data, Chooser):
            data.memory = self.pipeline.memory
        self.pipeline.weights_replaced()
        if stage == "fit" and self.pipeline.dynamic_sampling is not None and (trainer.max_epochs or 0) > 0:
            # Training and its schedule end after the steps of these epochs, however many batches are drawn.
            loop: Any = trainer.fit_loop
            steps = loop.max_epochs * data.iterations_per_epoch * updates_of(pl_module)
            loop.epoch_loop.max_steps = steps if loop.max_steps < 0 else min(loop.max_steps, steps)
            loop.max_epochs = -1

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop serving questions that replay has retired."""
        memory = None if self.pipeline.replay is None else self.pipeline.replay.memory
        if memory is not None:
            loader: Any = trainer.train_dataloader
            loader.serve_by(lambda id: 0.0 if memory[id].solved_in_full else 1.0)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Roll out the training batch and log its scalars; with `ahead`, start sampling later batches."""
        loader: Any = trainer.train_dataloader
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        options: dict[str, Any] = {"observe": data.observe} if isinstance(data, Chooser) else {}
        if self.pipeline.dynamic_sampling is not None:
            options["draw"] = loader.draw
        if self.pipeline.reformulator is not None:
            options["reformulated"] = data.reformulated
        learned = self.pipeline.roll_out(batch, pl_module, trainer.global_step, **options)
        # Lightning hands this very object to the module and to other callbacks.
        batch.groups, batch.prompts, batch.rollouts = learned.groups, learned.prompts, learned.rollouts
        log_scalars(pl_module, self.pipeline.scalars)
        begun, ahead = len(self.pipeline.following), self.pipeline.ahead
        numbers = range(begun + 1, begun + ahead + 1) if begun < ahead else ()
        if count := sum(another_follows(trainer, updates_of(pl_module), number) for number in numbers):
            following = loader.peek(begun + count)[begun:]
            self.pipeline.sample_next(following, pl_module, trainer.global_step, batch.rollouts.seconds)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, *_: Any) -> None:
        """Wait for the responses to the next batch, and to later batches that the same weights sample.

        With `ahead=1`, nothing is being sampled when a validation or a checkpoint follows.
        """
        self.pipeline.following.wait(batch.rollouts.seconds)

    def on_validation_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        position = ("test" if trainer.testing else "validate", dataloader_idx, batch_idx)
        batch.rollouts = self.pipeline.evaluate(batch, pl_module, trainer.global_step, position).rollouts

    on_test_batch_start = on_validation_batch_start

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the budget that the run has used to `ledger.json`."""
        if trainer.is_global_zero:
            budget = {
                **self.pipeline.ledger,
                "updates": trainer.global_step,
                "iterations": self.pipeline.iteration,
            }
            write_json(Path(trainer.default_root_dir) / "ledger.json", budget)

    def state_dict(self) -> dict[str, Any]:
        return self.pipeline.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.pipeline.load_state_dict(state_dict)


def weights_of(module: nn.Module, policy: str | None = None) -> Iterable[tuple[str, Tensor]]:
    """Return names and full tensors of the policy's parameters, without any prefix of the module. Collective.

    `policy` is the argument of `RolloutCallback`.

    Raises:
        AttributeError: if there is no submodule `policy`.
        ValueError: if `policy` is None and several models are trained.
    """
    if isinstance(module, SampledPolicy):
        return module.full_parameters()
    if policy is not None:
        return full_tensors(module.get_submodule(policy))
    from transformers import PreTrainedModel

    models: list[str] = []
    for name, part in module.named_modules():  # the outer ones come first
        inside = any(not outer or name.startswith(f"{outer}.") for outer in models)
        if (
            isinstance(part, PreTrainedModel)
            and not inside
            and any(p.requires_grad for p in part.parameters())
        ):
            models.append(name)
    if len(models) > 1:
        raise ValueError(
            f"Expected one trainable Hugging Face model in {type(module).__name__}, but it has "
            f"{', '.join(models)}. Say which one is sampled: RolloutCallback(…, policy={models[0]!r})."
        )
    return full_tensors(module.get_submodule(models[0] if models else ""))
