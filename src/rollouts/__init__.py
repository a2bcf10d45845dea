"""From weights and prompts to scored responses."""

from ..types import SamplingConfig
from .engines import EngineError, TransformersEngine, VLLMEngine, VLLMServerEngine
from .pipeline import RolloutPipeline

__all__ = ["EngineError", "RolloutPipeline", "SamplingConfig", "TransformersEngine", "VLLMEngine", "VLLMServerEngine"]
