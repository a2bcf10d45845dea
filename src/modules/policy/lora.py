"""Low-rank adapters (LoRA, arXiv 2106.09685) by peft, put into the model in place.

W' = W + (α / r) · B A, with A [r, in] and B [out, r] trained and W frozen. The model keeps its class and its
forward. Engines and exported folders get W' under the name of W; with the adapters off the model is the
reference policy.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

ADAPTER = "default"


@dataclass(frozen=True, kw_only=True)
class LoraSettings:
    """Settings of the adapters that are trained instead of the model's weights."""

    rank: int = 16
    """r: rank of each update."""
    alpha: float = 32.0
    """α: updates are multiplied by α / r."""
    targets: str | Sequence[str] = "all-linear"
    """Names of linear layers, such as `q_proj`; `all-linear` takes all of them but the output head."""
    seed: int = 0
    """Seed of the initial values of A; B begins at zero."""

    def __post_init__(self) -> None:
        if self.rank < 1 or not 0 < self.alpha < math.inf:
            raise ValueError(
                f"Expected lora.rank ≥ 1 and a finite lora.alpha > 0, but got {self.rank} and {self.alpha}."
            )


def add_adapters(model: nn.Module, settings: LoraSettings) -> None:
    """Freeze `model` and insert adapters in place.

    Raises:
        ValueError: if a target is not a linear layer inside the decoder.
    """
    from peft import LoraConfig, inject_adapter_in_model

    targets = settings.targets if isinstance(settings.targets, str) else list(settings.targets)
    # Dropout, which is off, would make the ratio of the first mini-batch differ from one. An α that is a
    # float works.
    options: dict[str, Any] = {"r": settings.rank, "lora_alpha": settings.alpha, "lora_dropout": 0.0}
    config = LoraConfig(**options, target_modules=targets, task_type="CAUSAL_LM")
    with torch.random.fork_rng(devices=[]):  # the same values on every rank, whatever each has drawn before
        torch.manual_seed(settings.seed)
        inject_adapter_in_model(config, model, adapter_name=ADAPTER)
    heads = [model.get_output_embeddings(), model.get_input_embeddings()]  # type: ignore[operator]
    for name, layer in adapted_layers(model):
        if layer in heads or not hasattr(layer.base_layer, "weight") or layer.lora_A.keys() != {ADAPTER}:
            raise ValueError(
                f"Expected lora.targets to name linear layers of the decoder, but `{name}` is "
                f"{type(layer).__name__}. The embeddings and the output head can't be adapted: take it out "
                "of lora.targets."
            )


def adapters_off(model: nn.Module) -> AbstractContextManager[Any]:
    """Return a context in which the adapters of `model` are off."""
    from peft.helpers import rescale_adapter_scale

    # `disable_adapters` changes `requires_grad`, which FSDP2 has copied
    return rescale_adapter_scale(model, 0.0)


def full_tensor(parameter: Tensor) -> Tensor:
    """Return the whole parameter, detached. Collective if the parameter is sharded."""
    parameter = parameter.detach()
    return parameter.full_tensor() if isinstance(parameter, DTensor) else parameter


def merged(layer: Any, weight: Tensor) -> Tensor:
    """Return W + α / r · B A of one of `adapted_layers`, in the type of W. Collective.

    The sum is taken in float32 or wider.
    """
    a = full_tensor(layer.lora_A[ADAPTER].weight)
    b = full_tensor(layer.lora_B[ADAPTER].weight)
    if layer.fan_in_fan_out:  # the weight is stored transposed, and so is B A
        transposed = a.T.contiguous()
        a = b.T.contiguous()
        b = transposed
    wide = torch.promote_types(weight.dtype, torch.float32)
    scale = torch.tensor(layer.scaling[ADAPTER], dtype=torch.float64).to(wide)
    return (weight.to(wide) + b.to(wide) @ a.to(wide) * scale).to(weight.dtype)


def adapted_layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Return the name and layer of each layer that has an adapter."""
    return ((name, module) for name, module in model.named_modules() if hasattr(module, "lora_A"))
