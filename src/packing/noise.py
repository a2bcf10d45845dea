"""Dropout, and other noise that a model draws in training mode."""

from collections.abc import Iterator
from typing import Any

from torch import nn

_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


def noise_rates(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, float]]:
    """Yield each rate above 0 of dropout, layer drop or jitter, as (dotted name, module, attribute, rate).

    Rates are read from torch's dropout modules, and from module attributes whose names contain `drop` or
    `jitter`, as in transformers.
    """
    for path, module in model.named_modules():
        for name, value in _rates(module):
            if value > 0:
                yield f"{path}.{name}".lstrip("."), module, name, value


def without_noise(model: Any) -> None:
    """Set all `noise_rates` of a transformers model to 0, also in its configuration.

    Some models read the rates from the configuration.
    """
    for _, module, name, _ in [*noise_rates(model)]:
        setattr(module, name, 0.0)
    for name, value in _named(vars(model.config)):
        if value > 0:
            setattr(model.config, name, 0.0)


def _rates(module: nn.Module) -> Iterator[tuple[str, float]]:
    if isinstance(module, _DROPOUTS):
        yield "p", float(module.p)
    yield from _named(vars(module))


def _named(attributes: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in attributes.items():
        if isinstance(value, float) and ("drop" in name or "jitter" in name):
            yield name, value
