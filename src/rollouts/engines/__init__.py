"""Engines that sample responses. One engine, one file; all follow `tagrpo.types.Engine`."""

from .base import EngineError
from .transformers import TransformersEngine
from .vllm import VLLMEngine
from .vllm_server import VLLMServerEngine

__all__ = ["EngineError", "TransformersEngine", "VLLMEngine", "VLLMServerEngine"]
