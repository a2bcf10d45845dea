"""QuestA (arXiv 2507.13266): questions with the beginning of their solution, which gets shorter later."""
