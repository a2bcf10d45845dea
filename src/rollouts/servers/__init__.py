"""Removable: an engine that samples on vLLM servers, and the token that guards them."""
