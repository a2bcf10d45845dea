"""FSDP2 under Lightning: the mesh, checkpoints as folders of shards, and when gradients are reduced."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from torch import nn
from torch.distributed.fsdp import FSDPModule

from ..checkpoints import begin_folder, check_metadata, commit_folder
from ..files import disk_full_explained, partial_path, removed_on_error


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


def gradient_sync(module: nn.Module, strategy: Strategy, enabled: bool) -> AbstractContextManager:
    """Reduce gradients over ranks in the backwards inside this context, or keep them local.

    Lightning's `toggle_model(sync_grad=False)` does nothing outside DDP, hence this function.
    """
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(enabled)
    elif isinstance(strategy, DDPStrategy) and not enabled:
        return strategy.block_backward_sync()
    return nullcontext()
