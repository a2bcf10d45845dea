"""From weights and prompts to scored responses."""

from ..types import SamplingConfig
from .engines.base import EngineError
from .engines.transformers import TransformersEngine
from .engines.vllm import VLLMEngine
from .engines.vllm_server import VLLMServerEngine
from .pipeline import RolloutPipeline

__all__ = ["EngineError", "RolloutPipeline", "SamplingConfig", "TransformersEngine", "VLLMEngine", "VLLMServerEngine"]
