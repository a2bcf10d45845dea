"""From questions to batches: sources, templates, neighbours, and the data module that serves them."""
