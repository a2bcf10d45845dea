"""QuestA (arXiv 2507.13266): a question with the beginning of its solution, later with less of it."""
