"""Engines that sample responses, one per file. All implement `tagrpo.types.Engine`."""
