"""Theory, apart from training: exact objectives, expected updates, exact evaluation, embedded tasks."""
