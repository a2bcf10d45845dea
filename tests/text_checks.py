"""The checks of the text, as `configs/rephrase.yaml` has them."""

from __future__ import annotations

from hydra import compose, initialize_config_module
from hydra.utils import instantiate

with initialize_config_module("tagrpo.configs", version_base="1.3"):
    TEXT_CHECKS = {name: instantiate(check) for name, check in compose("rephrase").checks.items()}
