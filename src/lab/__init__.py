"""Theory beside the way of a batch: exact objectives, expected updates, starters of the exact tasks."""
