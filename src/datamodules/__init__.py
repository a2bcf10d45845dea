"""Core: from questions to batches of prompts: sources, templates, the renderer, the memory of questions."""
