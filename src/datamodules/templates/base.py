"""Templates: plain format strings, and the chat template of the policy's tokenizer."""

from contextlib import suppress
from datetime import datetime
from typing import Any, Protocol

from transformers import PreTrainedTokenizerBase


class Template(Protocol):
    """Renderer of a question as a prompt's text, which is tokenised without further special tokens."""

    name: str
    """Name that is recorded with every prompt and response."""

    def render(self, question: str, tokenizer: PreTrainedTokenizerBase) -> str:
        """Return the text of the prompt, with special tokens spelled out."""


class PlainTemplate:
    """Format string with one field, `{question}`; by default, the string is this field alone.

    If the tokenizer begins every text with a special token, the prompt begins with that token once.

    Args:
        format: The text around the question.
        name: Recorded with every prompt and response.

    """

    def __init__(self, format: str = "{question}", name: str = "plain") -> None:
        if format.count("{question}") != 1:
            raise ValueError(
                f"Expected template.format to hold {{question}} exactly once, but got {format!r}."
            )
        self.format = format
        self.name = name

    def render(self, question: str, tokenizer: PreTrainedTokenizerBase) -> str:
        """Return the format string with the question filled in."""
        text = self.format.replace("{question}", question)
        begins = tokenizer.bos_token_id is not None and tokenizer("")["input_ids"][:1] == [
            tokenizer.bos_token_id
        ]
        bos = str(tokenizer.bos_token) if begins else ""
        return text if text.startswith(bos) else bos + text


class ChatTemplate:
    """Chat template of the tokenizer, around the question and an instruction.

    Args:
        instruction: Text after the question and a line break; empty for no instruction.
        system: System prompt; None uses the chat template's default.
        prefill: Beginning of the assistant's turn. It is part of the prompt, and the response continues it.
        name: Recorded with every prompt and response.
        options: Further arguments of the chat template, such as `enable_thinking`.
        date: Today's date for chat templates, as year-month-day. Some templates write it into the system
            prompt, and a prompt that changes every day can't be continued or compared. None uses the day of
            the run.
    """

    def __init__(
        self,
        instruction: str = "",
        system: str | None = None,
        prefill: str = "",
        name: str = "chat",
        options: dict[str, Any] | None = None,
        date: str | None = "2024-07-26",
    ) -> None:
        self.instruction = instruction
        self.system = system
        self.prefill = prefill
        self.name = name
        self.options = dict(options or {})
        self.date = date
        try:
            self._day = None if date is None else datetime.fromisoformat(date)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"Expected template.date to be a day such as 2024-07-26, or null, but got {date!r}."
            ) from error

    def render(self, question: str, tokenizer: PreTrainedTokenizerBase) -> str:
        """Return the conversation up to the beginning of the response.

        Raises:
            ValueError: if the tokenizer has no chat template, or if the template refuses the question or the
                system prompt.
        """
        messages = self.messages(question)
        try:
            return f"{self.apply(messages, tokenizer)}{self.prefill}"
        except Exception as error:  # chat templates are foreign programs: they raise what they like
            raise ValueError(self._refusal(messages, tokenizer, error)) from error

    def messages(self, question: str) -> list[dict[str, str]]:
        """Return the turns before the assistant's turn."""
        content = f"{question}\n{self.instruction}" if self.instruction else question
        messages = [{"role": "system", "content": self.system}] if self.system is not None else []
        return [*messages, {"role": "user", "content": content}]

    def apply(
        self,
        messages: list[dict[str, str]],
        tokenizer: PreTrainedTokenizerBase,
        generation_prompt: bool = True,
    ) -> str:
        """Render a conversation with the chat template.

        If `generation_prompt` is true, the beginning of the assistant's turn is added.

        Raises:
            Exception: whatever the chat template raises.
        """
        options = dict(self.options)
        if self._day is not None and self.reads_date(tokenizer):
            options.setdefault("strftime_now", self._day.strftime)
        text = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=generation_prompt, **options
        )
        return str(text)

    def source(self, tokenizer: PreTrainedTokenizerBase) -> str:
        """Return the Jinja text of the chat template that is used.

        Raises:
            ValueError: if the tokenizer has no chat template.
        """
        if tokenizer.chat_template is None and "chat_template" not in self.options:
            raise ValueError(
                f"Expected a tokenizer with a chat template, but {tokenizer.name_or_path} has none. "
                "Use template=plain for a base model."
            )
        return tokenizer.get_chat_template(self.options.get("chat_template"), self.options.get("tools"))

    def reads_date(self, tokenizer: PreTrainedTokenizerBase) -> bool:
        """Check whether the chat template calls the function that gives today's date in transformers."""
        return "strftime_now" in self.source(tokenizer)

    def _refusal(
        self, messages: list[dict[str, str]], tokenizer: PreTrainedTokenizerBase, error: Exception
    ) -> str:
        model = tokenizer.name_or_path
        self.source(tokenizer)
        if self.system is not None:
            with suppress(Exception):  # as above
                self.apply(messages[1:], tokenizer)
                return (
                    "Expected a chat template with system prompts, since template.system is set, but that "
                    f"of {model} refuses them: {error}. Put the text into template.instruction and set "
                    "template.system=null, or choose a template without a system prompt, as template=boxed."
                )
        return (
            f"Expected the chat template of {model} to render a question, but {type(error).__name__}: "
            f"{error}. Correct template.options, or use template=plain."
        )
