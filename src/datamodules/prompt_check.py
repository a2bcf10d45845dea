"""Check the prompt that a template and a tokenizer make of a question, once before a run.

A chat template is a program that comes with the model. A template may leave out the question or the system
prompt, end before the assistant's turn, open thoughts twice, or write today's date; none of this raises an
error by itself.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from difflib import get_close_matches
from inspect import signature
from typing import Any

from jinja2 import Environment, TemplateSyntaxError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from transformers import PreTrainedTokenizerBase

from ..foreign import printable
from ..rewards.response import opening_marks, opens_thoughts
from .control_tokens import PromptEncoder
from .prompts import Fitting, unknown_tokens
from .templates import ChatTemplate, Template

QUESTION = 'Question of the check: is $\\frac{1}{2} < x$ & "y"?'
"""Question with features that templates may change: letter case, and characters that HTML or JSON escapes."""
REPLY = "REPLY-OF-THE-CHECK"
NEXT = "NEXT-TURN-OF-THE-CHECK"
MOST_UNKNOWN = 0.05
"""Largest share of unknown tokens in the prompts of a split."""
MODELS = (
    "model=smollm2_135m reward=plain_answer rollout.sampling.max_new_tokens=128",
    "model=pretrained model.path=owner/name template=chat reward=plain_answer rollout.sampling.max_new_tokens=128",
)
"""Overrides that choose a model of natural language in place of the starter policy."""
_SUPPLIED = {
    "messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "bos_token", "eos_token",
    "unk_token", "pad_token", "sep_token", "cls_token", "mask_token", "raise_exception", "strftime_now", "namespace",
    "range", "dict", "lipsum", "cycler", "joiner",
}  # fmt: skip
"""Variables that transformers and Jinja supply; they are not options that a user sets."""


class _Generation(Extension):
    """Tag `{% generation %}` of transformers, which chat templates put around the assistant's text."""

    tags = {"generation"}  # noqa: RUF012 (as the base class declares it)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def check_prompt(
    template: Template, tokenizer: PreTrainedTokenizerBase, setting: str = "template"
) -> Iterator[str]:
    """Yield a warning for each feature of a rendered prompt that is probably a mistake.

    Args:
        template: The template.
        tokenizer: The policy's tokenizer, with its chat template.
        setting: Name of the template's setting, for messages.

    Raises:
        ValueError: if the prompt lacks the question, the instruction or the beginning of the assistant's
            turn, if the chat template refuses the system prompt, or if the chat template does not know an
            option.
    """
    if isinstance(template, ChatTemplate):
        _check_options(template, tokenizer, setting)
    text = template.render(QUESTION, tokenizer)
    model = tokenizer.name_or_path
    if text.count(QUESTION) != 1:
        raise ValueError(
            f"Expected the question once in the prompt, but it is in it {text.count(QUESTION)} times: "
            f"{text[:300]!r}. Correct {setting}, or the chat template of {model}."
        )
    if not isinstance(template, ChatTemplate):
        return
    if template.instruction.strip() not in text:
        raise ValueError(
            f"Expected {setting}.instruction in the prompt, but the chat template of {model} leaves it out: "
            f"{text[:300]!r}. Put its text into {setting}.system, or set {setting}.instruction=''."
        )
    if template.system and template.system.strip() not in text:
        yield (
            f"Template {template.name}: the chat template of {model} leaves out the system prompt. Put its "
            f"text into {setting}.instruction, and set {setting}.system=null."
        )
    yield from _check_beginning(template, tokenizer, text, setting)
    yield from _check_thoughts(template, tokenizer, text, setting)
    if template.date is None and template.reads_date(tokenizer):
        days = [_dated(template, day).render(QUESTION, tokenizer) for day in ("2001-02-03", "2017-11-28")]
        if days[0] != days[1]:
            yield (
                f"Template {template.name}: the chat template of {model} writes today's date into the "
                "prompt, so that a run that is resumed or evaluated on another day asks other prompts. Set "
                f"{setting}.date={datetime.now():%Y-%m-%d}."
            )


def check_words(split: str, fitting: Fitting, tokenizer: PreTrainedTokenizerBase) -> None:
    """Check that the tokenizer knows the words of the prompts of a split.

    Raises:
        ValueError: if more than `MOST_UNKNOWN` of the tokens stand for unknown text; the message has the
            share, three questions as the model reads them, and models that know more words.
    """
    unknown = sum(fitting.unknown_tokens)
    total = sum(fitting.prompt_tokens)
    if unknown <= MOST_UNKNOWN * total:
        return
    examples: list[str] = []
    for group in fitting.kept:
        for text in (group.question, *group.rephrasings):
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            if unknown_tokens(ids, text, tokenizer) and len(examples) < 3:
                read = printable(str(tokenizer.decode(ids)))
                examples.append(f"- {printable(text)[:200]!r} is read as {read[:200]!r}")
    lines = [
        f"Expected a model that knows the words of the questions, but {unknown / total:.1%} of the tokens in "
        f"the prompts of {split} are unknown to {tokenizer.name_or_path} ({tokenizer.unk_token}), more than "
        f"{MOST_UNKNOWN:.0%}:",
        *examples,
        "Choose a model of natural language, for example by one of these lines (reward=plain_answer reads the number "
        "that a response states):",
        *MODELS,
    ]
    raise ValueError("\n".join(lines))


def turn_end(template: Template, tokenizer: PreTrainedTokenizerBase) -> tuple[int, str] | None:
    """Return id and spelling of the control token that ends the assistant's reply; None if there is none.

    The token is found in a rendered conversation. If the last reply of a conversation ends without a token,
    the token that begins the next turn is returned.
    """
    if not isinstance(template, ChatTemplate):
        return None
    control = PromptEncoder(tokenizer).control
    user = template.messages(QUESTION)
    reply = {"role": "assistant", "content": REPLY}
    for messages in ([*user, reply], [*user, reply, {"role": "user", "content": NEXT}]):
        text = _rendered(template, messages, tokenizer)
        _, found, after = text.rpartition(REPLY)
        after = after.lstrip()
        if found and after:
            ends = [(id, token) for id, token in control.items() if after.startswith(token)]
            return max(ends, key=lambda end: len(end[1]), default=None)
    return None


def check_turn_end(
    template: Template, tokenizer: PreTrainedTokenizerBase, stop_ids: Sequence[int]
) -> Iterator[str]:
    """Yield a warning if the control token that ends the assistant's turn is not one of `stop_ids`.

    Args:
        template: The template.
        tokenizer: The policy's tokenizer.
        stop_ids: Ids at which the engine ends a response.
    """
    end = turn_end(template, tokenizer)
    if end is None or end[0] in stop_ids:
        return
    id, token = end
    stops = ", ".join(f"{tokenizer.convert_ids_to_tokens(stop)} ({stop})" for stop in stop_ids)
    yield (
        f"Template {template.name}: the assistant's turn ends with {token} ({id}), but the engine ends "
        f"responses at {stops} alone: a chat model's run on to the length limit. Add {id} to eos_token_id in "
        f"generation_config.json of {tokenizer.name_or_path}."
    )


def _check_options(template: ChatTemplate, tokenizer: PreTrainedTokenizerBase, setting: str) -> None:
    """Check that the chat template reads all options that are set."""
    own = template.source(tokenizer)
    environment = Environment(extensions=[_Generation, loopcontrols])
    try:
        read = meta.find_undeclared_variables(environment.parse(own))
    except TemplateSyntaxError as error:
        raise ValueError(
            f"Expected {setting} to have a chat template in Jinja, but that of {tokenizer.name_or_path} "
            f"cannot be read (line {error.lineno}: {error.message}). Correct chat_template.jinja beside the "
            "tokenizer."
        ) from error
    known = read | set(signature(tokenizer.apply_chat_template).parameters) | {"strftime_now"}
    for name in template.options:
        if name not in known:
            options = sorted(read - _SUPPLIED)
            near = get_close_matches(name, options, n=1)
            raise ValueError(
                f"Expected {setting}.options to be read by the chat template of {tokenizer.name_or_path}, "
                f"but it does not read {name}. It reads {', '.join(options) or 'no options'}."
                + (f" Perhaps {near[0]} is meant." if near else f" Take out {setting}.options.{name}.")
            )


def _check_beginning(
    template: ChatTemplate, tokenizer: PreTrainedTokenizerBase, text: str, setting: str
) -> Iterator[str]:
    """Check that the prompt ends where the assistant's turn begins; yield warnings.

    Raises:
        ValueError: if the prompt ends before the beginning of the assistant's turn.
    """
    messages = template.messages(QUESTION)
    ended = template.apply(messages, tokenizer, generation_prompt=False)
    begun = template.apply(messages, tokenizer)
    model = tokenizer.name_or_path
    whole = _rendered(template, [*messages, {"role": "assistant", "content": REPLY}], tokenizer)
    before, found, _ = whole.rpartition(REPLY)
    if ended != begun:
        if found and begun.startswith(ended) and before.startswith(ended):
            added = begun.removeprefix(ended)
            own = before.removeprefix(ended)
            if not _begin_alike(added, own):
                yield (
                    f"Template {template.name}: the generation prompt of {model} is {added!r}, but the "
                    f"assistant's turn begins with {own!r} in a conversation. Look whether the chat template "
                    "is the model's own."
                )
        return
    # Without a generation prompt, the end of the user's turn may be where the assistant begins, as after
    # [/INST].
    if found and text.startswith(before.rstrip()):
        return
    if not found or not before.startswith(ended.rstrip()):
        yield (
            f"Template {template.name}: the chat template of {model} adds no generation prompt. Look whether "
            f"the assistant's turn begins where the prompt ends: {text[-80:]!r}. If not, write its beginning "
            f"into {setting}.prefill."
        )
        return
    missing = before.removeprefix(ended if before.startswith(ended) else ended.rstrip())
    if missing.strip():
        raise ValueError(
            f"Expected the prompt to end where the assistant's turn begins, but the chat template of {model} adds no "
            f"generation prompt. Set {setting}.prefill, line breaks included:\n"
            f'{setting}.prefill="{missing}{template.prefill}"'
        )


def _begin_alike(one: str, other: str) -> bool:
    """Check whether one text begins with the other, ignoring whitespace.

    One of the texts may have thoughts after the role.
    """
    one = "".join(one.split())
    other = "".join(other.split())
    return one.startswith(other) or other.startswith(one)


def _check_thoughts(
    template: ChatTemplate, tokenizer: PreTrainedTokenizerBase, text: str, setting: str
) -> Iterator[str]:
    """Yield a warning if the beginning of the assistant's turn opens thoughts more than once."""
    turn = text.rpartition(QUESTION)[2]
    if template.instruction.strip():
        turn = turn.rpartition(template.instruction.strip())[2]
    opened = opening_marks(turn)
    own = template.apply(template.messages(QUESTION), tokenizer)
    if len(opened) > 1 or (opens_thoughts(own) and opening_marks(template.prefill)):
        marks = ", ".join(dict.fromkeys(opened or opening_marks(template.prefill)))
        yield (
            f"Template {template.name}: the prompt opens thoughts more than once ({marks}), since the chat "
            f"template of {tokenizer.name_or_path} opens them already: {turn[-80:]!r}. Set "
            f"{setting}.prefill=''."
        )


def _rendered(
    template: ChatTemplate, messages: list[dict[str, str]], tokenizer: PreTrainedTokenizerBase
) -> str:
    """Render a conversation without a generation prompt; empty if the chat template refuses it."""
    try:
        return template.apply(messages, tokenizer, generation_prompt=False)
    except Exception:  # chat templates are foreign programs: they raise what they like
        return ""


def _dated(template: ChatTemplate, day: str) -> ChatTemplate:
    options: dict[str, Any] = template.options
    return ChatTemplate(template.instruction, template.system, template.prefill, template.name, options, day)
