"""From questions to batches of prompts: sources, templates, and the data module that serves them."""
