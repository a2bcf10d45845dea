"""How a question becomes a prompt: in a format string, in the tokenizer's chat template, or in one drawn of several."""

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal, Protocol, get_args

from transformers import PreTrainedTokenizerBase

Draw = Literal["question", "prompt", "response"]


class Template(Protocol):
    """Renders a question as the text of a prompt, which is tokenised without further special tokens."""

    name: str  # recorded with every prompt and response

    def render(self, question: str, tokenizer: PreTrainedTokenizerBase) -> str:
        """The text of the prompt, with special tokens spelled out."""


class PlainTemplate:
    """A format string with one field, `{question}`; by default the question alone.

    Where the tokenizer begins every text with a special token, the prompt begins with it once.

    Args:
        format: The text around the question.
        name: Recorded with every prompt and response.
    """

    def __init__(self, format: str = "{question}", name: str = "plain") -> None:
        if format.count("{question}") != 1:
            raise ValueError(f"Expected template.format to hold {{question}} exactly once, but got {format!r}.")
        self.format, self.name = format, name

    def render(self, question: str, tokenizer: PreTrainedTokenizerBase) -> str:
        """The question within the format string."""
        text = self.format.replace("{question}", question)
        begins = tokenizer.bos_token_id is not None and tokenizer("")["input_ids"][:1] == [tokenizer.bos_token_id]
        bos = str(tokenizer.bos_token) if begins else ""
        return text if text.startswith(bos) else bos + text


class ChatTemplate:
    """The tokenizer's chat template around the question and an instruction.

    Args:
        instruction: Follows the question after a line break; empty for none.
        system: System prompt; None leaves it to the chat template.
        prefill: Beginning of the assistant's turn, which is part of the prompt: the response continues it.
        name: Recorded with every prompt and response.
        options: Further arguments of the chat template, such as `enable_thinking`.
    """

    def __init__(
        self,
        instruction: str = "",
        system: str | None = None,
        prefill: str = "",
        name: str = "chat",
        options: dict[str, Any] | None = None,
    ) -> None:
        self.instruction, self.system, self.prefill, self.name = instruction, system, prefill, name
        self.options = dict(options or {})

    def render(self, question: str, tokenizer: PreTrainedTokenizerBase) -> str:
        """The conversation up to where the response begins; ValueError if the tokenizer has no chat template."""
        if tokenizer.chat_template is None:
            raise ValueError(
                f"Expected a tokenizer with a chat template, but {tokenizer.name_or_path} has none. "
                "Use template=plain for a base model."
            )
        content = f"{question}\n{self.instruction}" if self.instruction else question
        messages = [{"role": "system", "content": self.system}] if self.system is not None else []
        messages.append({"role": "user", "content": content})
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **self.options)
        return f"{text}{self.prefill}"


class PromptAugmentation:
    """Prompt augmentation (arXiv 2602.03190): draws uniformly in which template a prompt is rendered, anew each epoch.

    The draw depends on (seed, epoch, question id) and on nothing else: not on rank, batch or resume.

    A question has N + 1 phrasings, the original and its N rephrasings, with G responses each.

    Args:
        templates: Name → template; the name is recorded with each prompt, and format rewards depend on it.
        draw: `question`: one template for all phrasings of a question (the paper); `prompt`: one for each phrasing;
            `response`: one for each response, so that a phrasing has one prompt for each template that was drawn.
        seed: Seed of the draws.
    """

    def __init__(self, templates: Mapping[str, Template], draw: Draw = "question", seed: int = 0) -> None:
        if not templates:
            raise ValueError("Expected at least one template in template.templates, but got none.")
        if draw not in get_args(Draw):
            raise ValueError(f"Expected template.draw to be question, prompt or response, but got {draw!r}.")
        self.templates, self.draw, self.seed = dict(templates), draw, seed

    def assign(self, question_id: str, epoch: int, num_phrasings: int, num_samples: int) -> list[dict[str, int]]:
        """For each phrasing of a question: template name → responses to sample, in the order of `templates`."""
        # A string seed is hashed with SHA-512, which is the same in every process.
        generator = random.Random(f"{self.seed}/{epoch}/{question_id}")
        names = list(self.templates)
        if self.draw == "question":
            return [{generator.choice(names): num_samples}] * num_phrasings
        if self.draw == "prompt":
            return [{generator.choice(names): num_samples} for _ in range(num_phrasings)]
        drawn = [Counter(generator.choices(names, k=num_samples)) for _ in range(num_phrasings)]
        return [{name: counts[name] for name in names if counts[name]} for counts in drawn]
