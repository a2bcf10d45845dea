"""Callbacks: rollouts, and one file per diagnostic. Each can be used in another Lightning project."""

from .embedding_diversity import EmbeddingDiversityMonitor, sentence_encoder
from .pass_at_k import PassAtKEvaluator
from .recorder import RolloutRecorder
from .rollout import RolloutCallback
from .throughput import ThroughputMonitor
from .zero_gradient import ZeroGradientMonitor

__all__ = [
    "EmbeddingDiversityMonitor",
    "PassAtKEvaluator",
    "RolloutCallback",
    "RolloutRecorder",
    "ThroughputMonitor",
    "ZeroGradientMonitor",
    "sentence_encoder",
]
