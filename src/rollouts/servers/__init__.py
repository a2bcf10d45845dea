"""Removable: an engine that samples on vLLM servers, and the flags of such a server."""
