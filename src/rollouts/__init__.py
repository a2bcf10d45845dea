"""Core: from weights and prompts to scored responses."""

from ..types import SamplingConfig
from .engines.base import EngineError, ServerEngine
from .engines.transformers import TransformersEngine
from .engines.vllm import VLLMEngine
from .pipeline import RolloutPipeline

__all__ = [
    "EngineError",
    "RolloutPipeline",
    "SamplingConfig",
    "ServerEngine",
    "TransformersEngine",
    "VLLMEngine",
]
