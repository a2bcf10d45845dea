"""Scalars of a training iteration on their way into Lightning's log: cheaply, and not beyond their iteration.

The one place that knows Lightning's inside: the collection of results that `LightningModule.log` fills. Its public way
costs a third of a millisecond per scalar and iteration, most of it in moving every metric to the device where it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer


def log_scalars(module: LightningModule, values: Mapping[str, float]) -> None:
    """What `module.log_dict(values)` does in a hook around a training batch or in a training step, much cheaper.

    A scalar that the hook has logged before gets its new value and nothing else; those that are new to the collection
    take the public way, and so does all that a hook logs first in an epoch, where Lightning begins anew. Loggers,
    `trainer.callback_metrics` and `log_every_n_steps` see no difference.

    Args:
        module: In the hands of a `Trainer`.
        values: Name → value.
    """
    trainer: Any = module.trainer
    results, hook = trainer._results, module._current_fx_name
    known: Mapping[str, float] = {}
    if results is not None and not trainer._logger_connector.should_reset_tensors(hook):
        known = {name: value for name, value in values.items() if f"{hook}.{name}" in results}
    tensors = torch.tensor(list(known.values()), dtype=torch.float32, device=module.device)
    for name, tensor in zip(known, tensors.unbind(), strict=True):
        results.update_metrics(f"{hook}.{name}", tensor, batch_size=1)
    if fresh := {name: value for name, value in values.items() if name not in known}:
        module.log_dict(fresh)


def forget_logged(trainer: Trainer) -> None:
    """Drop what earlier iterations logged: Lightning logs it again with each later one until the epoch ends.

    A run that goes on after them knows nothing of it. What is gathered over an epoch stays.
    """
    results: Any = trainer.fit_loop.epoch_loop._results
    for result in results.values():
        if not result.meta.on_epoch:
            result.has_reset = True  # passed over until it is logged again; a new one would cost more than its value
