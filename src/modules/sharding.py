"""FSDP2: the plan, the strategy, and full tensors from shards.

Gradients are averaged over ranks by FSDP2 and DDP alike; losses are therefore scaled by the world size (see
`PolicyModule`), so that they add up to the loss of the global batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor

from ..checkpoints import begin_folder, check_metadata, commit_folder
from ..files import disk_full_explained, partial_path, removed_on_error
from .lora import adapted_layers, is_adapter, merged_weight


class FullyShardedStrategy(ModelParallelStrategy):
    """FSDP2 over all ranks of all nodes.

    `ModelParallelStrategy` turns `data_parallel_size="auto"` into the number of *nodes*, so that ranks silently
    train apart; here it is the world size. Use it as `trainer.strategy`.
    """

    def __init__(self, save_distributed_checkpoint: bool = True, process_group_backend: str | None = None) -> None:
        super().__init__(
            tensor_parallel_size=1,
            save_distributed_checkpoint=save_distributed_checkpoint,
            process_group_backend=process_group_backend,
        )

    def setup_environment(self) -> None:
        """Fix the mesh to (world size, 1) before Lightning builds it."""
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Write shards into a folder beside `filepath`, which gets its name when all ranks have written theirs.

        On several nodes the folder must be on a file system that they share.
        """
        if not self._save_distributed_checkpoint:
            super().save_checkpoint(checkpoint, filepath, storage_options)
            return
        path = Path(self.broadcast(filepath))
        partial = partial_path(path)
        if self.is_global_zero:
            begin_folder(partial)
        self.barrier()
        with removed_on_error(partial), disk_full_explained(path):
            super().save_checkpoint(checkpoint, partial, storage_options)
            self.barrier()
            if self.is_global_zero:
                commit_folder(partial, path)
        self.barrier()

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Load a folder of shards, once its metadata is known to be harmless."""
        if Path(checkpoint_path).is_dir():
            check_metadata(Path(checkpoint_path))
        return super().load_checkpoint(checkpoint_path, weights_only=True if weights_only is None else weights_only)


def shard(module: nn.Module, mesh: DeviceMesh, compute_dtype: torch.dtype | None, cpu_offload: bool = False) -> None:
    """Shard `module` in place with FSDP2, one group per decoder layer and one for the rest.

    Args:
        module: `CausalPolicy` around a Hugging Face model; its forward must be the only way in.
        mesh: One-dimensional data-parallel mesh over all ranks.
        compute_dtype: Type of the gathered parameters (bfloat16 on GPUs); shards stay in their own type and
            gradients are reduced in float32. None computes in the type of the shards.
        cpu_offload: Keep shards, gradients and optimizer state in host memory.

    Raises:
        ValueError: no repeated decoder layers are found.
    """
    layers = decoder_layers(module)
    mixed = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32)
    offload = CPUOffloadPolicy() if cpu_offload else OffloadPolicy()
    for layer in layers:
        fully_shard(layer, mesh=mesh, mp_policy=mixed, offload_policy=offload)
    fully_shard(module, mesh=mesh, mp_policy=mixed, offload_policy=offload)


def decoder_layers(module: nn.Module) -> list[nn.Module]:
    """The longest `ModuleList` inside `module`: the decoder layers of every causal LM in transformers.

    Raises:
        ValueError: there is none.
    """
    lists = [m for m in module.modules() if isinstance(m, nn.ModuleList)]
    if not lists:
        raise ValueError(
            f"Expected a model with a ModuleList of decoder layers to shard, but {type(module).__name__} has none. "
            "Train it with trainer.strategy=auto or ddp."
        )
    return max((list(modules) for modules in lists), key=len)


def gradient_sync(module: nn.Module, strategy: Strategy, enabled: bool) -> AbstractContextManager:
    """Reduce gradients over ranks in the backwards inside this context, or keep them local.

    Lightning's `toggle_model(sync_grad=False)` does nothing outside DDP, hence this function.
    """
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(enabled)
    elif isinstance(strategy, DDPStrategy) and not enabled:
        return strategy.block_backward_sync()
    return nullcontext()


def full_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield `(name, full tensor)` of every parameter, one at a time, detached; tied parameters once.

    Adapters are merged into the weights that they belong to, and names are those of the model without adapters.
    Collective under FSDP2: every rank must exhaust it.
    """
    adapted = {f"{name}.base_layer.weight": layer for name, layer in adapted_layers(model)}
    for name, parameter in model.named_parameters():
        if not is_adapter(name):
            tensor = merged_weight(adapted[name], _full) if name in adapted else _full(parameter)
            yield name.replace(".base_layer.", "."), tensor


def _full(parameter: Tensor) -> Tensor:
    tensor = parameter.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
