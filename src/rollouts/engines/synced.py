"""The engine of a run: made on first use, checked, synced when the policy has changed, closed at the end."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...digests import bit_sums
from ...distributed import gather_objects
from ...types import Engine, require
from ..cache import digest_of

NamedWeights = Callable[[nn.Module], Iterable[tuple[str, Tensor]]]
"""Policy → names and full tensors for an engine, adapters merged. Collective."""


def own_parameters(policy: nn.Module) -> Iterable[tuple[str, Tensor]]:
    """Return the parameters of a policy that is neither sharded nor adapted, under their own names."""
    return ((name, parameter.detach()) for name, parameter in policy.named_parameters())


class SyncedEngine:
    """Engine that is made on first use, and gets `weights` only when they have changed.

    An engine is refused as soon as its class is known, at the latest when it is made, if it lacks a part of
    `Engine`, or if `asynchronous` is set and it can't sample while the policy is updated.
    """

    def __init__(self, make: Callable[[], Engine], weights: NamedWeights, asynchronous: bool) -> None:
        self.make = make
        self.weights = weights
        self.asynchronous = asynchronous
        self._engine: Engine | None = None
        self._synced_at: int | None = None
        self._digest: tuple[int, str] | None = None
        made = make.func if isinstance(make, partial) else make
        if isinstance(made, type):
            self._check(made)

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

    def weights_digest(self, policy: nn.Module, step: int) -> str:
        """Return a bit-exact digest of all ranks' weights after `step` optimizer steps. Collective."""
        if self._digest is None or self._digest[0] != step:
            self._digest = step, digest_of(gather_objects(bit_sums(policy)))
        return self._digest[1]

    def weights_replaced(self) -> None:
        """Mark the engine as stale, for example after a checkpoint was loaded; the next `at` syncs it."""
        self._synced_at = self._digest = None

    def sleep(self) -> None:
        """Release the engine's memory until it is needed again, if there is an engine."""
        if self._engine is not None:
            self._engine.sleep()

    def close(self) -> None:
        """Close the engine; the next call of `at` makes another."""
        if self._engine is not None:
            self._engine.close()
        self._engine = self._synced_at = None
