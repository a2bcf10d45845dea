"""The engine of a run: made on first use, checked, synced when the policy has changed, closed at the end."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...distributed import own_part
from ...types import Completion, Deliver, Engine, Finish, Request, Seconds, require
from .base import check_completions, check_responses
from .cached import engine_class

NamedWeights = Callable[[nn.Module], Iterable[tuple[str, Tensor]]]
"""Policy → names and full tensors for an engine, adapters merged. Collective."""


def own_parameters(policy: nn.Module) -> Iterable[tuple[str, Tensor]]:
    """Return the parameters of a policy that is neither sharded nor adapted, under their own names."""
    return ((name, parameter.detach()) for name, parameter in policy.named_parameters())


class SyncedEngine:
    """Engine that is made on first use, and gets `weights` only when they have changed.

    An engine is refused if it lacks a part of `Engine`, or if `asynchronous` is set and the engine can't
    sample while the policy is updated. The engine is checked as soon as its class is known, at the latest
    when the engine is made.
    """

    def __init__(self, make: Callable[[], Engine], weights: NamedWeights, asynchronous: bool) -> None:
        self.make = make
        self.weights = weights
        self.asynchronous = asynchronous
        self._engine: Engine | None = None
        self._synced_at: int | None = None
        kind = engine_class(make)
        if kind is not None:
            self._check(kind)

    def _check(self, engine: Any) -> None:
        require(engine, Engine, "rollout.engine")
        if self.asynchronous and not engine.asynchronous:
            name = engine.__name__ if isinstance(engine, type) else type(engine).__name__
            raise ValueError(
                f"Expected an engine that samples while the policy is updated with rollout.ahead, but {name} "
                "shares the trainer's device or random state. Use rollout=vllm_server, whose servers have "
                "devices of their own, or rollout=transformers, or set rollout.ahead=0."
            )

    def at(self, policy: nn.Module, step: int) -> Engine:
        """Return the engine with the weights of `policy` after `step` optimizer steps. Collective."""
        if self._engine is None:
            # in a validation: weights that are made there could not be replaced
            with torch.inference_mode(False):
                engine = self.make()
            self._check(engine)
            self._engine = engine
        if self._synced_at != step:
            self._engine.sync(self.weights(policy))
            self._synced_at = step
        return self._engine

    def start(
        self,
        request: Request,
        deliver: Deliver,
        policy: nn.Module,
        step: int,
        seconds: Seconds,
        ahead: bool = False,
    ) -> Finish:
        """Sync the engine, and return a function that returns the checked responses. Collective.

        The responses are [P] of [num_samples[p]].

        Args:
            request: The request to the engine.
            deliver: Function that gets the checked responses to each prompt; see `Engine.generate`.
            policy: Policy whose weights sample.
            step: Number of optimizer steps that the policy has made.
            seconds: Seconds to which the time of the sync is added.
            ahead: Whether the engine starts sampling now, in the background. If false, the returned function
                samples.

        The returned function is collective, and raises the errors of the engine and of `check_responses`. If
        log-probs are not finite, the message says whether the weights of `policy` are finite.
        """
        with seconds.measure("sync"):
            engine = self.at(policy, step)

        def deliver_checked(prompt: int, completions: list[Completion]) -> None:
            (checked,) = check_completions([completions], engine)
            deliver(prompt, checked)

        if ahead:
            finish = engine.generate_async(request, deliver_checked)
        else:
            finish = partial(engine.generate, request, deliver_checked)

        def checked() -> list[list[Completion]]:
            try:
                return check_responses(finish(), request, engine)
            except FloatingPointError as error:
                raise FloatingPointError(f"{error} {reason_of_overflow(policy)}") from error

        return checked

    def weights_replaced(self) -> None:
        """Mark the engine as stale, for example after a checkpoint was loaded; the next `at` syncs it."""
        self._synced_at = None

    def sleep(self) -> None:
        """Release the engine's memory until the engine is needed again, if there is an engine."""
        if self._engine is not None:
            self._engine.sleep()

    def close(self) -> None:
        """Close the engine; the next call of `at` makes another engine."""
        if self._engine is not None:
            self._engine.close()
        self._engine = self._synced_at = None


def reason_of_overflow(policy: nn.Module) -> str:
    """Return why an engine with the weights of `policy` gives log-probs that are not finite, in sentences."""
    parts = {name: own_part(parameter) for name, parameter in policy.named_parameters()}
    names = [name for name, part in parts.items() if not bool(part.isfinite().all())]
    reason = "Its parameters are finite: it overflows in rollout.engine.dtype"
    if names:
        reason = f"{len(names)} of its {len(parts)} parameters hold NaN or infinity, such as {names[0]}"
    return f"{reason}. Check model.path, the checkpoint, and how they were trained."
