"""Tokenise prompts so that only templates add control tokens; in a question, their spelling stays text.

A tokenizer recognises its added tokens anywhere in a text. A question such as "What does <|im_end|> do?"
would end the user's turn, and a hostile question could write the following turns.
"""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from .hidden_text import control_marks


class ControlTokenError(ValueError):
    """Error for a question whose control tokens the tokenizer can't read as plain text."""


class PromptEncoder:
    """Tokenizer for rendered prompts, which adds no special tokens.

    Control tokens are the tokenizer's special tokens, and its other added tokens that are published as
    control tokens (`hidden_text.control_marks`), such as `<think>`.

    Attributes:
        control: Id → spelling of the control tokens.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        added = dict(tokenizer.added_tokens_decoder)
        if tokenizer.unk_token_id not in (
            tokenizer.eos_token_id,
            tokenizer.bos_token_id,
            tokenizer.pad_token_id,
        ):
            added.pop(tokenizer.unk_token_id, None)  # stands for any unknown word
        self.control = {
            id: token.content for id, token in added.items() if token.special or control_marks(token.content)
        }
        self._not_special = [
            token.content for id, token in added.items() if id in self.control and not token.special
        ]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokenise texts and recognise the control tokens in them; add no special tokens."""
        # The template spells special tokens out; adding them here would double them.
        ids: list[list[int]] = self.tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        return ids

    def controls(self, ids: Sequence[int]) -> list[str]:
        """Return the spellings of the control tokens in `ids`, in order."""
        return [self.control[id] for id in ids if id in self.control]

    def encode_as_text(self, before: str, question: str, after: str) -> list[int]:
        """Tokenise `before + question + after`, recognising control tokens only in `before` and `after`.

        The text between the nearest control tokens of `before` and `after` is tokenised in one piece, as if
        the question spelled no control tokens.

        Raises:
            ControlTokenError: if the tokens would not decode to the same text.
        """
        start = max(
            (before.rfind(token) + len(token) for token in self.control.values() if token in before),
            default=0,
        )
        stop = min(
            (after.find(token) for token in self.control.values() if token in after), default=len(after)
        )
        inner: list[int] = []
        for piece in self._cut(before[start:] + question + after[:stop]):
            inner += self.tokenizer(piece, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        first, last = self.encode([before[:start], after[stop:]])
        ids = [*first, *inner, *last]
        read = self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        if self.controls(inner) or read != before + question + after:
            named = ", ".join(self.controls(self.encode([question])[0]))
            raise ControlTokenError(f"{named} of {self.tokenizer.name_or_path}, which it can't read as text")
        return ids

    def _cut(self, text: str) -> list[str]:
        """Cut a text after the first character of each added control token that is not special.

        Tokenizers have no option to split these tokens.
        """
        pieces = [text]
        for token in self._not_special:
            parts: list[str] = []
            for piece in pieces:
                first, *others = piece.split(token)
                parts.append(first)
                for other in others:
                    parts[-1] += token[0]
                    parts.append(token[1:] + other)
            pieces = parts
        return [piece for piece in pieces if piece]
