"""Compiled and sharded decoder layers: FSDP2 in plain torch, weights from rank 0, full tensors from shards.

Gradients are averaged over ranks by FSDP2 and DDP alike; losses are therefore scaled by the world size (see
`PolicyUpdate`), so that they add up to the loss of the global batch.
"""

from collections.abc import Callable, Iterator
from itertools import chain, zip_longest
from typing import Any

import torch
import torch.distributed as dist
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

from ...distributed import rank, world_size
from ...packing.head import GRAPHS
from ...packing.policy import CausalPolicy
from .lora import adapted_layers, full_tensor, merged


def shard(
    module: nn.Module, mesh: DeviceMesh, compute_dtype: torch.dtype | None, cpu_offload: bool = False
) -> None:
    """Shard `module` in place with FSDP2, one group per decoder layer and one for the rest. Collective.

    Each group gets its values from rank 0 (`receive`) just before the group is sharded: no other rank ever
    has the whole module in memory.

    Args:
        module: `CausalPolicy` around a Hugging Face model. Call only the module itself, never a submodule.
        mesh: Data-parallel mesh over all ranks. With one dimension, all ranks share one copy of the module;
            with two, the dimensions are copies, and shards of each copy.
        compute_dtype: Type of the gathered parameters (bfloat16 on GPUs); shards stay in their own type and
            gradients are reduced in float32. None computes in the type of the shards.
        cpu_offload: Keep shards, gradients and optimizer state in host memory.

    Raises:
        ValueError: if there are no repeated decoder layers.
    """
    # Inputs are not cast: FSDP2 would copy the packed batch for every layer, and each copy build its own
    # layout.
    mixed = MixedPrecisionPolicy(
        param_dtype=compute_dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    offload = CPUOffloadPolicy(pin_memory=torch.cuda.is_available()) if cpu_offload else OffloadPolicy()
    for group in (*decoder_layers(module), module):
        receive(group, torch.device(mesh.device_type))
        fully_shard(group, mesh=mesh, mp_policy=mixed, offload_policy=offload)


def receive(module: nn.Module, device: torch.device) -> None:
    """Fill the meta tensors of `module` with the values of rank 0, one by one, on `device`. Collective.

    Tensors with values keep their values, and shards (`DTensor`) are skipped. Tied parameters stay tied.

    Raises:
        ValueError: if the parameters or buffers differ from those of rank 0.
    """
    if world_size() == 1:
        return
    named = chain(module.named_parameters(), module.named_buffers())
    tensors = {name: tensor for name, tensor in named if not isinstance(tensor, DTensor)}
    check_layout([(name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in tensors.items()])
    for tensor in tensors.values():
        if rank() == 0:
            whole = tensor.detach().to(device).contiguous()
        else:
            whole = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
        dist.broadcast(whole, src=0)
        if tensor.is_meta:  # filled by a new tensor, as the broadcast may still hold `whole`
            trained = isinstance(tensor, nn.Parameter)
            torch.utils.swap_tensors(
                tensor, nn.Parameter(whole, tensor.requires_grad) if trained else whole.detach()
            )


def check_layout(own: list[tuple[str, tuple[int, ...], str]]) -> None:
    """Raise a ValueError if names, shapes or types differ from rank 0's, which would misplace values.

    Collective.
    """
    expected = [own]
    dist.broadcast_object_list(expected, src=0)
    if expected[0] != own:
        ours, theirs = next(pair for pair in zip_longest(own, expected[0]) if pair[0] != pair[1])
        raise ValueError(
            f"Expected rank {rank()} to make the model that rank 0 has loaded from model.path, but it has "
            f"{ours} for {theirs}. Use the same config.json and the same release of transformers on all "
            "nodes."
        )


def decoder_layers(module: nn.Module) -> list[nn.Module]:
    """Return the decoder layers of `module`: its longest `ModuleList`.

    Raises:
        ValueError: if `module` has no `ModuleList`.
    """
    lists = [list(m) for m in module.modules() if isinstance(m, nn.ModuleList)]
    if not lists:
        raise ValueError(
            f"Expected a model with a ModuleList of decoder layers to shard, but {type(module).__name__} has "
            "none. Train it with strategy=auto or strategy=ddp."
        )
    return max(lists, key=len)


def compile_layers(policy: CausalPolicy, backend: str | Callable[..., Any] = "inductor") -> None:
    """Compile each decoder layer as a whole, in place, before the policy is sharded; a graph break raises.

    All layers share their graphs, which work for all lengths. Attention must be `sparse_attention`, since
    attention on a CPU has another graph for every batch.
    """
    if not policy.shares_prefix:
        return
    for layer in decoder_layers(policy):
        layer.forward = torch.compile(layer.forward, fullgraph=True, dynamic=True, backend=backend, **GRAPHS)
    policy.compiled = True


def reshard(root: nn.Module) -> None:
    """Turn the parameters of every FSDP2 module in `root` into shards of the master weights again."""
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def full_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield `(name, full tensor)` of every parameter, detached; tied parameters once.

    Adapters are merged into the weights that they belong to, and names are those of the model without
    adapters. Collective under FSDP2: every rank must exhaust the iterator. Under FSDP2, also `reshard` the
    root first: after a forward without gradient, its parameters are in the compute type.
    """
    layers = {f"{name}.weight": layer for name, layer in adapted_layers(model)}
    for whole_name, parameter in model.named_parameters():
        if not {"lora_A", "lora_B"} & set(whole_name.split(".")):
            name = whole_name.replace(".base_layer.", ".")
            tensor = full_tensor(parameter)
            yield name, merged(layers[name], tensor) if name in layers else tensor
