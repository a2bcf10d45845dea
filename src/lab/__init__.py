"""Theory beside the way of a batch: exact objectives, expected updates, the embedded tasks, exact evaluation."""
