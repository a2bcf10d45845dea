"""Engines that sample responses. One engine, one file; all follow `base.RolloutEngine`."""

from .base import RolloutEngine, SamplingConfig
from .transformers import TransformersEngine
from .vllm import VLLMEngine

__all__ = ["RolloutEngine", "SamplingConfig", "TransformersEngine", "VLLMEngine"]
