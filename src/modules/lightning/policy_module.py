"""Lightning module of the policy: model, optimizer, learning-rate schedule, and the update on each batch."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ...digests import bit_sums, json_digest
from ...packing.policy import CausalPolicy
from ...runs.scalars import log_scalars
from ...types import AdvantageStrategy, Loss, Prompt, QuestionBatch, TokenCredit
from ...types.checks import found
from ..mismatch import MismatchCorrection
from ..policy.flop import UsefulFlop
from ..policy.logprobs import PromptedResponses, Scorer
from ..policy.lora import adapted_layers
from ..policy.model import resolve_model_path, save_model
from ..policy.schedule import MakeOptimizer, learning_rate_schedule, try_optimizer
from ..policy.sharding import full_tensors, reshard
from ..update import PolicyUpdate, UpdateOptions, check_parts
from .strategy import (
    ComputeType,
    FullyShardedStrategy,
    gradient_sync,
    prepare,
    reduced_precision,
    values_on_rank_0,
)


@dataclass(frozen=True, kw_only=True)
class PolicyOptions(UpdateOptions):
    """Training options of a policy: update, size of forwards, schedule and compute type."""

    token_budget: int = 16384
    """Tokens per forward on one rank; see `Scorer`."""
    schedule: str = "cosine"
    """Learning-rate schedule by its name in transformers: `cosine`, `linear`, `constant_with_warmup`, …"""
    schedule_options: Mapping[str, Any] | None = None
    """Further arguments of the schedule, such as `{min_lr_rate: 0.1}` for `cosine_with_min_lr`.

    None if there are no further arguments."""
    warmup: float | int = 0.1
    """Length of the warm-up: a share of all optimizer steps if below 1, otherwise a number of steps.

    The schedule `constant` has no warm-up."""
    temperature: float = 1.0
    """Sampling temperature, at which log-probs are computed too."""
    compute_dtype: ComputeType = "auto"
    """Compute type: `bfloat16`, `float32`, or `auto`, which is bfloat16 on GPUs and float32 on other devices.

    Master weights stay float32."""
    compile: bool | None = None
    """Whether to compile the decoder layers; None compiles them on GPUs in bfloat16."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.token_budget < 1:
            raise ValueError(f"Expected policy.token_budget to be at least 1, but got {self.token_budget}.")
        if not self.temperature > 0:
            raise ValueError(f"Expected policy.temperature to be above 0, but got {self.temperature}.")
        if self.warmup < 0 or (self.warmup >= 1 and not isinstance(self.warmup, int)):
            raise ValueError(
                "Expected policy.warmup to be a share of all optimizer steps from 0 to below 1, or a whole "
                f"number of them such as 10, but got {self.warmup}."
            )


class PolicyModule(LightningModule):
    """Lightning module of a causal language model that is trained with an advantage strategy and a loss.

    A training step takes the `groups` and `rollouts` of one batch and makes several optimizer steps by hand
    (see `update.py`).

    Args:
        load_model: Function that returns the policy on the CPU, called when the trainer configures the model.
            Under FSDP2 and DDP only rank 0 needs the values; other ranks call it under
            `torch.device("meta")`.
        model_path: Folder or hub name of the policy; checked at once, so that a wrong path fails early.
        optimizer: Parameters → optimizer; tried at once on two small parameters.
        options: Training options of the policy.
        advantage, loss, credit, mismatch: See `PolicyUpdate`.

    Attributes:
        loaded: Digest of the weights that `load_model` returned, before a checkpoint replaces them.

    Raises:
        FileNotFoundError: if `model_path` is neither a model's folder nor of the form of a hub name.
        TypeError: see `PolicyUpdate`.
        ValueError: if the optimizer or the schedule refuses its settings; see also `PolicyUpdate`.
    """

    def __init__(
        self,
        load_model: Callable[[], PreTrainedModel],
        model_path: str,
        advantage: AdvantageStrategy,
        loss: Loss,
        optimizer: MakeOptimizer,
        options: PolicyOptions,
        *,
        credit: TokenCredit | None = None,
        mismatch: MismatchCorrection | None = None,
    ) -> None:
        super().__init__()
        check_parts(advantage, loss, credit, mismatch)
        try_optimizer(optimizer, options.schedule, options.warmup, options.schedule_options)
        self.model_path = resolve_model_path(model_path)
        self.automatic_optimization = False
        self.load_model, self.make_optimizer = load_model, optimizer
        self.advantage, self.loss, self.credit, self.mismatch = advantage, loss, credit, mismatch
        self.options = options
        self.loaded: str | None = None
        self.policy: CausalPolicy
        self.reference: CausalPolicy | None
        self.update: PolicyUpdate | None = None
        self._skipped_in_a_row = 0

    @property
    def mini_batches(self) -> int:
        """Optimizer steps per batch of rollouts."""
        return self.options.mini_batches

    @property
    def needs_history(self) -> bool:
        """Whether the advantage strategy or the credit reads earlier results on the questions."""
        return self.advantage.needs_history or (self.credit is not None and self.credit.needs_history)

    def configure_model(self) -> None:
        """Load the policy and, for a KL term, a frozen reference.

        With LoRA, the reference is the policy with its adapters off.
        """
        if not hasattr(self, "policy"):
            model = self._load()
            known: Any = None
            if model.device.type != "meta":
                known = (json_digest(bit_sums(model)), model.generation_config)
            self.loaded, model.generation_config = self.trainer.strategy.broadcast(known)
            # Training mode switches gradient checkpointing on; dropout is off (see load_causal_lm).
            self.policy, self.reference = self._prepared(model).train(), None
        second_copy = self.loss.kl_coef and not any(adapted_layers(self.policy))
        if second_copy and self.reference is None and self.trainer.training:
            reference = self._prepared(self._load_again()).eval().requires_grad_(False)
            # Kept out of the module tree: the reference is neither trained nor checkpointed.
            object.__setattr__(self, "reference", reference)

    def _load(self) -> PreTrainedModel:
        self._random_state = torch.get_rng_state()
        with values_on_rank_0(self.trainer.strategy):
            model = self.load_model()
        if not isinstance(model, nn.Module):
            raise TypeError(f"Expected model.load to return a causal language model, but got {found(model)}.")
        return model

    def _load_again(self) -> PreTrainedModel:
        """Load the initial weights again, also if the loader draws them at random."""
        with torch.random.fork_rng(devices=[]), values_on_rank_0(self.trainer.strategy):
            torch.set_rng_state(self._random_state)
            model = self.load_model()
        if model.device.type != "meta" and json_digest(bit_sums(model)) != self.loaded:
            raise ValueError(
                "Expected model.load to return the same weights each time, because its second model is the "
                "KL reference, but they differ. Write the weights to a folder and set model.path, or set "
                "loss.kl_coef=0."
            )
        return model

    def _prepared(self, model: PreTrainedModel) -> CausalPolicy:
        policy = CausalPolicy(model, temperature=self.options.temperature)
        return prepare(policy, self.trainer.strategy, self.options.compute_dtype, self.options.compile)

    def configure_optimizers(self) -> Any:
        """Return the optimizer, and a schedule over optimizer steps that the update advances itself."""
        optimizer = self.make_optimizer(p for p in self.policy.parameters() if p.requires_grad)
        self._learning_rates = [group["lr"] for group in optimizer.param_groups]
        options = self.options
        scheduler = learning_rate_schedule(
            options.schedule, optimizer, options.warmup, self.total_updates, options.schedule_options
        )
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    @property
    def total_updates(self) -> int:
        """Optimizer steps of the run: `trainer.max_steps`, or epochs × iterations × mini-batches if fewer."""
        limits = [self.trainer.max_steps] if self.trainer.max_steps > 0 else []
        if self.trainer.max_epochs and self.trainer.max_epochs > 0:
            # Lightning's estimated_stepping_batches would reload the loader and lose its state (its issue
            # 20550).
            iterations: int = self.trainer.datamodule.iterations_per_epoch  # type: ignore[attr-defined]
            limits.append(self.trainer.max_epochs * iterations * self.mini_batches)
        if not limits:
            raise ValueError(
                "Expected trainer.max_steps (optimizer steps) or trainer.max_epochs to be positive, because "
                "the learning-rate schedule needs an end, but neither is. Set one of the two."
            )
        return min(limits)

    def on_train_start(self) -> None:
        """Build the update, now that policy, optimizer and schedule are on their devices."""
        if self.reference is not None and not isinstance(self.trainer.strategy, FullyShardedStrategy):
            self.reference.to(self.device)  # shards are placed by FSDP2 itself
        scheduler = self.lr_schedulers()
        self.update = PolicyUpdate(
            self.make_scorer(),
            self.advantage,
            self.loss,
            self.optimizers(),  # type: ignore[arg-type]
            self.options,
            credit=self.credit,
            mismatch=self.mismatch,
            scheduler=scheduler,
            backward=self.manual_backward,
            gradient_sync=partial(gradient_sync, self.trainer.strategy),
            useful_flop=UsefulFlop(self.policy).of,
        )
        self.update.skipped_in_a_row = self._skipped_in_a_row
        # Continue with the learning rate and the schedule of the settings, not with those of the checkpoint.
        assert isinstance(scheduler, LambdaLR)
        scheduler.base_lrs = list(self._learning_rates)
        groups = scheduler.optimizer.param_groups
        for group, base, factor in zip(groups, scheduler.base_lrs, scheduler.lr_lambdas, strict=True):
            group["initial_lr"], group["lr"] = base, base * factor(scheduler.last_epoch)

    def training_step(self, batch: QuestionBatch, batch_idx: int) -> dict[str, Any]:  # noqa: ARG002
        """Learn from the rollouts of one batch, log metrics, and return `UpdateResult.outputs`."""
        if batch.rollouts is None:
            raise ValueError(
                "Expected batch.rollouts before the training step, but it is None. Add RolloutCallback."
            )
        assert self.update is not None
        progress = min(self.trainer.global_step / self.total_updates, 1.0)
        result = self.update(batch.rollouts, len(batch.groups), progress)
        log_scalars(self, result.metrics())
        return result.outputs()

    def validation_step(self, batch: QuestionBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Do nothing: the rollout callback samples, and metric callbacks read the rollouts."""

    test_step = validation_step

    def full_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Return an iterator over `(Hugging Face name, full tensor)` of each parameter.

        Collective: every rank must exhaust the iterator.
        """
        reshard(self.policy)
        return full_tensors(self.policy.model)

    def make_scorer(self) -> Scorer:
        """Return a scorer of the current policy, on the policy's device and in its training precision."""
        strategy, budget = self.trainer.strategy, self.options.token_budget
        # FSDP2 has its own mixed precision, and brings offloaded parameters to the device.
        sharded, device = isinstance(strategy, FullyShardedStrategy), strategy.root_device
        dtype = None if sharded else reduced_precision(strategy, self.options.compute_dtype)
        return Scorer(self.policy, self.reference, token_budget=budget, device=device, autocast_dtype=dtype)

    def response_entropy(self, prompts: Sequence[Prompt], responses: Sequence[Tensor]) -> Tensor:
        """Return the mean entropy per token of each response in nats, [n] float32. Collective.

        The entropy is that of the current policy under the score prompt.
        """
        assert self.update is not None
        scored = [p.anchor_ids if self.options.anchor == "original" else p.token_ids for p in prompts]
        rows = torch.arange(len(scored))
        given = PromptedResponses(prompts=scored, prompt=rows, responses=responses)
        return self.update.scorer.score(given, rows).entropy

    def export(self, folder: str | Path, tokenizer: PreTrainedTokenizerBase) -> None:
        """Write the policy as a Hugging Face folder (safetensors, full tensors). Collective."""
        reshard(self.policy)
        save_model(self.policy.model, tokenizer, folder, write=self.global_rank == 0)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save the digest of the initial weights and the number of optimizer steps skipped in a row."""
        checkpoint["loaded"] = self.loaded
        checkpoint["skipped_in_a_row"] = (
            self.update.skipped_in_a_row if self.update else self._skipped_in_a_row
        )

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the digest of the initial weights and the number of skipped steps.

        Raises:
            ValueError: if the run in the checkpoint began with a model other than this one, which would
                become the KL reference.
        """
        if self.loaded and self.trainer.training and checkpoint.get("loaded", self.loaded) != self.loaded:
            raise ValueError(
                "Expected the model that the run in the checkpoint began with, but the weights at "
                f"{self.model_path} are others. Resume with the model.path that it had; for a run of its own "
                "set another `name`."
            )
        self._skipped_in_a_row = checkpoint.get("skipped_in_a_row", 0)
