"""Engines that sample responses. One engine, one file; all follow `tagrpo.types.Engine`."""
