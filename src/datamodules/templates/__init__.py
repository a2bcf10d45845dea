"""How a question becomes a prompt."""

from .base import ChatTemplate, PlainTemplate, Template

__all__ = ["ChatTemplate", "PlainTemplate", "Template"]
