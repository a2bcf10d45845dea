"""Sources of questions, templates, and the data module that serves batches of prompts."""
