"""Decoder layers compiled and sharded: FSDP2 in plain torch, and full tensors from shards.

Gradients are averaged over ranks by FSDP2 and DDP alike; losses are therefore scaled by the world size (see
`PolicyUpdate`), so that they add up to the loss of the global batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from ...packing.head import GRAPHS
from ...packing.policy import CausalPolicy
from .lora import adapted_layers, adapter_parameters, is_adapter, merged

BUCKET = 2**27
"""Numbers of parameters that are gathered at one time: 512 MiB of float32 on each rank."""


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
    # Inputs are not cast: FSDP2 would copy the packed batch for every layer, and each build its attention layout anew.
    mixed = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    offload = CPUOffloadPolicy(pin_memory=torch.cuda.is_available()) if cpu_offload else OffloadPolicy()
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


def compile_layers(policy: CausalPolicy, backend: str | Callable[..., Any] = "inductor") -> None:
    """Compile each decoder layer as a whole, in place; call it before the policy is sharded.

    All layers share their graphs, which hold for any lengths. Attention must be `sparse_attention`: that of a CPU
    has another graph for every batch. What would break a graph raises.
    """
    if not policy.shares_prefix:
        return
    for layer in decoder_layers(policy):
        layer.forward = torch.compile(layer.forward, fullgraph=True, dynamic=True, backend=backend, **GRAPHS)
    policy.compiled = True


def reshard(root: nn.Module) -> None:
    """Have the parameters of every FSDP2 module inside `root` be shards of the master weights; else do nothing."""
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def full_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield `(name, full tensor)` of every parameter, detached; tied parameters once.

    Adapters are merged into the weights that they belong to, and names are those of the model without adapters.
    Collective under FSDP2: every rank must exhaust it. There, `reshard` the root first: after a forward without
    gradient it holds its parameters in the type that it computes in. Shards are gathered `BUCKET` numbers at a time.
    """
    layers = {f"{name}.base_layer.weight": layer for name, layer in adapted_layers(model)}
    wanted = [(name, parameter) for name, parameter in model.named_parameters() if not is_adapter(name)]
    for bucket in _buckets(wanted):
        adapted = {name: adapter_parameters(layers[name]) for name, _ in bucket if name in layers}
        both = [parameter for pair in adapted.values() for parameter in pair]
        gathered = _gathered([parameter.detach() for _, parameter in bucket] + [p.detach() for p in both])
        adapters = iter(gathered[len(bucket) :])
        for (name, _), tensor in zip(bucket, gathered, strict=False):
            if name in adapted:
                tensor = merged(layers[name], tensor, next(adapters), next(adapters))  # noqa: PLW2901
            yield name.replace(".base_layer.", "."), tensor


def _buckets(named: Sequence[tuple[str, Tensor]]) -> Iterator[list[tuple[str, Tensor]]]:
    """Cut parameters, in their order, into runs of at most `BUCKET` numbers, or of one larger parameter."""
    bucket: list[tuple[str, Tensor]] = []
    size = 0
    for name, parameter in named:
        size += parameter.numel()
        if bucket and size > BUCKET:
            yield bucket
            bucket, size = [], parameter.numel()
        bucket.append((name, parameter))
    yield bucket


def _gathered(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The full tensors, of all shards of one type in one collective."""
    full = list(tensors)
    sharded = [(row, t) for row, t in enumerate(tensors) if isinstance(t, DTensor)]
    for dtype in dict.fromkeys(t.dtype for _, t in sharded):
        rows = [row for row, t in sharded if t.dtype == dtype]
        mesh = tensors[rows[0]].device_mesh  # type: ignore[attr-defined]
        # FSDP2 cuts the first dimension into equal parts, of which the last ranks may have less or nothing.
        sizes = [-(-tensors[row].shape[0] // mesh.size()) * tensors[row][:1].numel() for row in rows]
        own = torch.cat([_padded(tensors[row].to_local(), size) for row, size in zip(rows, sizes, strict=True)])  # type: ignore[attr-defined]
        everyone = own.new_empty(mesh.size() * len(own))
        dist.all_gather_into_tensor(everyone, own, group=mesh.get_group())
        for row, columns in zip(rows, everyone.view(mesh.size(), -1).split(sizes, dim=1), strict=True):
            shape = tensors[row].shape
            full[row] = columns.flatten()[: shape.numel()].view(shape)
    return full


def _padded(shard: Tensor, size: int) -> Tensor:
    flat = shard.flatten()
    return flat if len(flat) == size else torch.cat([flat, flat.new_zeros(size - len(flat))])
