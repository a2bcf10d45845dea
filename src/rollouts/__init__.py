"""From weights and prompts to scored responses."""

from ..types import SamplingConfig
from .engines import EngineError, TransformersEngine, VLLMEngine, VLLMServerEngine

__all__ = ["EngineError", "SamplingConfig", "TransformersEngine", "VLLMEngine", "VLLMServerEngine"]
