"""Removable: theory and the embedded tasks: exact objectives, expected updates, exact evaluation."""
