"""The policy under a Lightning strategy: precision, compiling, FSDP2, sharded checkpoints, gradient sync."""

from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, SingleDeviceStrategy, Strategy
from torch.distributed.checkpoint import state_dict, state_dict_loader, state_dict_saver
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from ...distributed import rank
from ...files import begin_folder, disk_full_explained, partial_path, removed_on_error
from ...packing.policy import CausalPolicy
from ...runs.checkpoints import REST, check_metadata, check_states, commit_folder
from ..policy.sharding import compile_layers, receive, shard

ComputeType = Literal["auto", "bfloat16", "float32"]


class FullyShardedStrategy(ModelParallelStrategy):
    """FSDP2 over all ranks of all nodes; with `replicas`, over the ranks of each copy of the model (HSDP).

    With `data_parallel_size="auto"`, `ModelParallelStrategy` shards over as many ranks as there are *nodes*,
    so that ranks silently train apart. This strategy shards over all ranks.

    Args:
        cpu_offload: Keep shards, gradients and optimizer state in host memory.
        timeout: How long a rank waits for other ranks in a collective before the run ends.
        replicas: Number of copies of the model, each sharded over ranks / replicas consecutive ranks.
    """

    def __init__(
        self, cpu_offload: bool = False, timeout: timedelta = timedelta(minutes=150), replicas: int = 1
    ) -> None:
        # Norms of gradients in host memory are reduced there.
        backend = "cpu:gloo,cuda:nccl" if cpu_offload and torch.cuda.is_available() else None
        super().__init__(tensor_parallel_size=1, process_group_backend=backend, timeout=timeout)
        self.cpu_offload, self.replicas = cpu_offload, replicas
        self.mesh: DeviceMesh

    def model_to_device(self) -> None:
        """Move the module to this rank's device. With `cpu_offload`, move only buffers, as FSDP2 requires."""
        if not self.cpu_offload:
            super().model_to_device()
            return
        assert self.model is not None
        for module in self.model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, buffer.to(self.root_device))

    def setup_environment(self) -> None:
        """Set Lightning's mesh to (world size, 1) and build the mesh of the replicas.

        Lightning has no public option for its own mesh.

        Raises:
            ValueError: if `replicas` does not divide the number of ranks.
        """
        ranks = self.num_nodes * self.num_processes
        if self.replicas < 1 or ranks % self.replicas:
            raise ValueError(
                f"Expected strategy.replicas to divide the {ranks} ranks of this run, but got "
                f"{self.replicas}. Set it to 1, or to the number of nodes (trainer.num_nodes), so that each "
                "holds one copy."
            )
        self._data_parallel_size = ranks
        super().setup_environment()
        self.mesh = self.device_mesh["data_parallel"]
        if self.replicas > 1:
            shape = (self.replicas, ranks // self.replicas)
            self.mesh = init_device_mesh(self.mesh.device_type, shape, mesh_dim_names=("replicate", "shard"))

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:  # noqa: ARG002
        """Write shards into a folder that all nodes share; the folder gets its name once it is complete.

        Raises:
            TypeError: if a state contains an object that a resume would refuse to load; see `check_states`.
        """
        check_states(checkpoint)
        path = Path(self.broadcast(filepath))
        partial = partial_path(path)
        if self.is_global_zero:
            begin_folder(partial)
        self.barrier()
        with removed_on_error(partial), disk_full_explained(path):
            shards = {"state_dict": checkpoint.pop("state_dict")}
            # Settings of the optimizer are no tensors: among the shards they would be bytes that loading
            # unpickles.
            optimizers = checkpoint.pop("optimizer_states")
            shards |= {
                f"optimizer_{i}": {"state": optimizer["state"]} for i, optimizer in enumerate(optimizers)
            }
            state_dict_saver.save(shards, checkpoint_id=partial)
            if self.is_global_zero:
                groups = [optimizer["param_groups"] for optimizer in optimizers]
                torch.save({**checkpoint, "param_groups": groups}, partial / REST)
            self.barrier()
            if self.is_global_zero:
                commit_folder(partial, path)
        self.barrier()

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Load a checkpoint. If it is a folder of shards, its metadata is checked first."""
        path = Path(self.broadcast(checkpoint_path))
        if not path.is_dir():
            return super().load_checkpoint(path, weights_only=True if weights_only is None else weights_only)
        check_metadata(path)
        rest: dict[str, Any] = torch.load(path / REST, weights_only=True)
        groups = rest.pop("param_groups")
        assert self.model is not None
        assert self.lightning_module is not None
        weights = state_dict.get_model_state_dict(self.model)
        state_dict_loader.load({"state_dict": weights}, checkpoint_id=path)
        self.model.load_state_dict(weights, strict=self.lightning_module.strict_loading)
        options = state_dict.StateDictOptions(cpu_offload=True)
        for index, optimizer in enumerate(self.optimizers):
            state = {"state": state_dict.get_optimizer_state_dict(self.model, optimizer)["state"]}
            state_dict_loader.load({f"optimizer_{index}": state}, checkpoint_id=path)
            whole = {**state, "param_groups": groups[index]}
            state_dict.set_optimizer_state_dict(self.model, optimizer, whole, options=options)
        return rest


def reduced_precision(strategy: Strategy, compute_type: ComputeType) -> torch.dtype | None:
    """Return the compute type, or None if it is the type of the parameters.

    `auto` is bfloat16 on GPUs and float32 on other devices.
    """
    if compute_type not in ("auto", "bfloat16", "float32"):
        raise ValueError(
            f"Expected policy.compute_dtype to be auto, bfloat16 or float32, but got {compute_type}."
        )
    reduced = compute_type == "bfloat16" or (compute_type == "auto" and strategy.root_device.type == "cuda")
    return torch.bfloat16 if reduced else None


def check_strategy(strategy: Strategy) -> None:
    """Refuse a strategy that does not support several manual optimizer steps per batch.

    Raises:
        ValueError: if the strategy is not single-device, DDP or `FullyShardedStrategy`.
    """
    if isinstance(strategy, SingleDeviceStrategy | DDPStrategy | FullyShardedStrategy):
        return
    why = "which is not made for several optimizer steps per batch"
    if isinstance(strategy, ModelParallelStrategy):
        why = (
            'whose data_parallel_size="auto" is the number of nodes, so that ranks would silently train apart'
        )
    raise ValueError(
        f"Expected strategy=auto, strategy=ddp or strategy=fsdp2, but got {type(strategy).__name__}, {why}. "
        "Use strategy=fsdp2 to shard the policy."
    )


def values_on_rank_0(strategy: Strategy) -> AbstractContextManager[Any]:
    """Return a context in which only rank 0 makes models with values.

    `prepare` then sends the values to the other ranks.
    """
    sent = isinstance(strategy, FullyShardedStrategy | DDPStrategy) and rank() > 0
    return torch.device("meta") if sent else nullcontext()


def prepare(
    policy: CausalPolicy, strategy: Strategy, compute_type: ComputeType, compiled: bool | None
) -> CausalPolicy:
    """Compile the decoder layers of `policy`, then shard the policy, as strategy and device require.

    The policy is on the CPU, or comes from `values_on_rank_0`. If `compiled` is None, layers are compiled on
    GPUs in bfloat16.

    Raises:
        ValueError: if `compiled` is true and attention can't be compiled, or `check_strategy` refuses the
            strategy.
    """
    check_strategy(strategy)
    dtype = reduced_precision(strategy, compute_type)
    possible = strategy.root_device.type == "cuda" and dtype is not None
    if compiled and not possible:
        raise ValueError(
            "Expected a GPU and policy.compute_dtype=bfloat16 with policy.compile=true, not "
            f"{strategy.root_device} and {compute_type}: elsewhere attention has another graph for every "
            "batch. Set policy.compile=null."
        )
    if possible and compiled is not False:
        compile_layers(policy)
    if isinstance(strategy, FullyShardedStrategy):
        shard(policy, strategy.mesh, dtype, strategy.cpu_offload)
    elif isinstance(strategy, DDPStrategy):
        receive(policy, strategy.root_device)
    return policy


def gradient_sync(strategy: Strategy, last: bool) -> AbstractContextManager[None]:
    """Return a context for a backward; with DDP, gradients are reduced over ranks only if it is the `last`.

    DDP reduces whole gradients once, in the `last` backward of a step. FSDP2 reduces in every backward, since
    unreduced gradients are as large as the whole model. Lightning's `toggle_model(sync_grad=False)` does
    nothing outside DDP.
    """
    if isinstance(strategy, DDPStrategy) and not last:
        return strategy.block_backward_sync()
    return nullcontext()
