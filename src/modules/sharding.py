"""FSDP2 in plain torch: the sharding plan, and full tensors from shards.

Gradients are averaged over ranks by FSDP2 and DDP alike; losses are therefore scaled by the world size (see
`PolicyUpdate`), so that they add up to the loss of the global batch.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from .lora import adapted_layers, is_adapter, merged_weight


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


def reshard(root: nn.Module) -> None:
    """Have the parameters of every FSDP2 module inside `root` be shards of the master weights; else do nothing."""
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def full_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield `(name, full tensor)` of every parameter, one at a time, detached; tied parameters once.

    Adapters are merged into the weights that they belong to, and names are those of the model without adapters.
    Collective under FSDP2: every rank must exhaust it. There, `reshard` the root first: after a forward without
    gradient it holds its parameters in the type that it computes in.
    """
    adapted = {f"{name}.base_layer.weight": layer for name, layer in adapted_layers(model)}
    for name, parameter in model.named_parameters():
        if not is_adapter(name):
            tensor = merged_weight(adapted[name], _full) if name in adapted else _full(parameter)
            yield name.replace(".base_layer.", "."), tensor


def _full(parameter: Tensor) -> Tensor:
    tensor = parameter.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
