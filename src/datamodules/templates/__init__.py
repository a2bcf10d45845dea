"""Templates that turn a question into a prompt."""

from .augmentation import PromptAugmentation
from .base import ChatTemplate, PlainTemplate, Template

__all__ = ["ChatTemplate", "PlainTemplate", "PromptAugmentation", "Template"]
