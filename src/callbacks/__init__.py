"""Callbacks: rollouts, and one file per diagnostic. Each can be used in another Lightning project."""

from ..scalars import ScalarLog
from ..stages import Stage, in_order
from .answer_diversity import AnswerDiversityMonitor
from .checkpoint import Checkpointer
from .embedding_diversity import EmbeddingDiversityMonitor, sentence_encoder
from .pass_at_k import PassAtKEvaluator
from .recorder import RolloutRecorder
from .rollout import RolloutCallback
from .throughput import ThroughputMonitor
from .variant_success import VariantSuccessMonitor
from .zero_gradient import ZeroGradientMonitor

__all__ = [
    "AnswerDiversityMonitor",
    "Checkpointer",
    "EmbeddingDiversityMonitor",
    "PassAtKEvaluator",
    "RolloutCallback",
    "RolloutRecorder",
    "ScalarLog",
    "Stage",
    "ThroughputMonitor",
    "VariantSuccessMonitor",
    "ZeroGradientMonitor",
    "in_order",
    "sentence_encoder",
]
