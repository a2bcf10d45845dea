"""Removable: an engine that samples on servers, and the command that starts such a server."""
