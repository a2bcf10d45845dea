"""Removable: exact objectives, expected updates, exact evaluation, and the embedded tasks."""
