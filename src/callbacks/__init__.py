"""Shell: callbacks for rollouts and diagnostics. Each can be used in another Lightning project.

docs/reuse.md lists what each callback reads from a batch and from the output of the training step.
"""

from ..runs.scalars import ScalarLog, Stage, in_order
from .checkpoint import Checkpointer
from .diversity import AnswerDiversityMonitor, EmbeddingDiversityMonitor, sentence_encoder
from .evaluation_examples import EvaluationExamples
from .first_look import FirstLook
from .pass_at_k import PassAtKEvaluator
from .progress import IterationProgress
from .recorder import RolloutRecorder
from .rephrasing_success import RephrasingSuccessMonitor
from .response_table import ResponseTable
from .rollout import RolloutCallback
from .throughput import ThroughputMonitor
from .training_signal import TrainingSignal
from .zero_gradient import ZeroGradientMonitor

__all__ = [
    "AnswerDiversityMonitor", "Checkpointer", "EmbeddingDiversityMonitor", "EvaluationExamples", "FirstLook",
    "IterationProgress", "PassAtKEvaluator", "RephrasingSuccessMonitor", "ResponseTable", "RolloutCallback",
    "RolloutRecorder", "ScalarLog", "Stage", "ThroughputMonitor", "TrainingSignal", "ZeroGradientMonitor", "in_order",
    "sentence_encoder",
]  # fmt: skip
