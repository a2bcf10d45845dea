"""Engines that sample responses. One engine, one file; all follow `base.RolloutEngine`."""

from .base import EngineError, RolloutEngine, SamplingConfig
from .continuous import ContinuousBatchingEngine
from .transformers import TransformersEngine
from .vllm import VLLMEngine
from .vllm_server import VLLMServerEngine

__all__ = [
    "ContinuousBatchingEngine",
    "EngineError",
    "RolloutEngine",
    "SamplingConfig",
    "TransformersEngine",
    "VLLMEngine",
    "VLLMServerEngine",
]
