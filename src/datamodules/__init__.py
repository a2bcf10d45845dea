"""Core: from questions to batches of prompts, by sources, templates, a renderer and a memory of questions."""
