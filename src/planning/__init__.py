"""Does a run fit, and what will it cost? Answered without weights, without GPUs, before it starts."""
