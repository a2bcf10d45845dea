"""Templates: plain format strings, and the chat template of the policy's tokenizer."""

from typing import Any, Protocol

from transformers import PreTrainedTokenizerBase


class Template(Protocol):
    """Renders a question as the text of a prompt, which is tokenised without further special tokens."""

    name: str
    """Recorded with every prompt and response."""

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
        """The conversation up to where the response begins.

        Raises:
            ValueError: the tokenizer has no chat template.
        """
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
