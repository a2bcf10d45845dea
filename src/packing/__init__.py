"""Responses without padding, each prompt encoded once: packed forwards of any causal language model."""
