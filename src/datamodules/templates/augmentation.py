"""Prompt augmentation (arXiv 2602.03190): each question gets a newly drawn template in every epoch."""

import random
from collections import Counter
from collections.abc import Mapping
from typing import Literal

from .base import Template


class PromptAugmentation:
    """Sampler that draws the template of each prompt uniformly.

    The draw depends on (seed, epoch, question id) alone: not on rank, batch or resume.

    A question has N + 1 phrasings, the original and its N rephrasings, with G responses each.

    Args:
        templates: Name → template; the name is recorded with each prompt, and format rewards depend on it.
        draw: `question`: one template for all phrasings of a question (as in the paper); `prompt`: one for
            each phrasing; `response`: one for each response, so that a phrasing has one prompt for each
            template that was drawn.
        seed: Seed for drawing templates.
    """

    def __init__(
        self,
        templates: Mapping[str, Template],
        draw: Literal["question", "prompt", "response"] = "question",
        seed: int = 0,
    ) -> None:
        if not templates:
            raise ValueError("Expected at least one template in template.templates, but got none.")
        if draw not in ("question", "prompt", "response"):
            raise ValueError(f"Expected template.draw to be question, prompt or response, but got {draw!r}.")
        self.templates = dict(templates)
        self.draw = draw
        self.seed = seed

    def assign(
        self, question_id: str, epoch: int, num_phrasings: int, num_samples: int
    ) -> list[dict[str, int]]:
        """Return the number of responses to sample in each template, for each phrasing of a question.

        Templates are named in the order of `templates`; templates without responses are left out.
        """
        # A string seed is hashed with SHA-512, which is the same in every process.
        generator = random.Random(f"{self.seed}/{epoch}/{question_id}")
        names = list(self.templates)
        if self.draw == "question":
            return [{generator.choice(names): num_samples}] * num_phrasings
        if self.draw == "prompt":
            return [{generator.choice(names): num_samples} for _ in range(num_phrasings)]
        drawn = [Counter(generator.choices(names, k=num_samples)) for _ in range(num_phrasings)]
        return [{name: counts[name] for name in names if counts[name]} for counts in drawn]
