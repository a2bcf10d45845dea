"""Theory, off the path of a batch: exact objectives, expected updates, exact evaluation, and the embedded tasks."""
