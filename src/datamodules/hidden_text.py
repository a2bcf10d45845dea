"""Detection of text that readers can't see, or that tokenizers may read as control tokens."""

import re
import unicodedata

_ZERO_WIDTH_JOINERS = "\u200c\u200d"
_VISIBLE_FORMATS = {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}
"""Signs before Arabic, Syriac and Kaithi numbers: format characters in Unicode, but visible in fonts."""
_FILLERS = {0x115F, 0x1160, 0x3164, 0xFFA0, 0x2800, 0x034F, 0x17B4, 0x17B5}
"""Hangul, Braille and Khmer characters that are drawn as nothing, and the combining grapheme joiner."""
_NOT_ASCII_TEXT = re.compile(r"[^\t\n\r -~]")
_VIRAMA = 9  # canonical combining class

_NAMES = (
    "assistant|audio|begin|bos|bot|call|channel|chatbot|constrain|content|context|developer|document"
    "|end|endoftext|endofprompt|endofturn|eod|eom|eos|eot|file|human|image|input|instruction|mask"
    "|message|model|observation|output|pad|prompt|response|return|sep|start|startoftext|startofturn"
    "|sys|system|text|think|thinking|tool|tools|turn|unk|user|video|vision"
)
_CONTROL_MARK = re.compile(
    "|".join(
        (
            rf"</?\|/?(?:{_NAMES})/?\|>",  # <|endoftext|>, <|user|>, <|end|>
            # <|im_start|>, <|eot_id|>, <|reserved_special_token_3|>
            r"<\|(?:[a-z]{2,}[a-z0-9]*(?:_[a-z0-9]+)+)\|>",
            r"<\|(?:turn|tool|tool_call|tool_response|channel|think|image|audio)>",  # Gemma 4 opens: <|turn>
            r"<(?:turn|tool|tool_call|tool_response|channel|think|image|audio)\|>",  # … and closes: <turn|>
            r"<｜[^｜<>\n]{1,40}｜>",  # DeepSeek, with wide bars: <｜User｜>
            r"\[\|/?[a-z]{3,}\|\]",  # EXAONE: [|assistant|]
            r"\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|THINK|ARGS|PREFIX|SUFFIX)\]",
            r"\[(?:BOS|EOS|EOT|CLS|SEP|PAD|MASK|UNK|gMASK|UNUSED_TOKEN_\d+|control_\d+)\]",
            r"<</?SYS>>",
            r"</?s>|<(?:unk|pad|bos|eos|mask|cls|sep|eop|sop|eot|eod|eoa|eoh)>|</?role>",
            r"\[e~\[|\]~!?b[\[\]]",  # MiniMax
            r"<(?:BOS|EOS|PAD|UNK|CLS|SEP|MASK|EOP)_TOKEN>",
            r"</?(?:start|end)_of_(?:turn|image|audio|text|message|role|sentence|utterance)>",
            r"</?(?:think|tool_call|tool_response|tool|tools)>",
            r"<(?:fim_(?:prefix|middle|suffix|pad)|file_sep|repo_name|gh_stars)>",
            r"<\|?(?:unused|reserved|extra|extra_id)_?\d+\|?>",
            r"</?seed:[a-z_]+>",
        )
    ),
    re.IGNORECASE,
)


def hidden_characters(text: str) -> list[str]:
    r"""Name the characters that are invisible or that steer a display, each once, in order of appearance.

    These are control characters except tab and line breaks; bidirectional marks; zero-width, tag and other
    format characters; blank fillers; surrogates; line and paragraph separators; and variation selectors that
    follow no visible character. Joiners count as visible if a script or an emoji needs them: after a virama,
    as in RFC 5892; after an Arabic letter; after a symbol.

    >>> hidden_characters("Find\u200b $x$.\0")
    ['U+200B ZERO WIDTH SPACE', 'U+0000 CONTROL CHARACTER']
    >>> hidden_characters("Find\t$x$.\r\n")
    []
    """
    found: dict[str, None] = {}
    for match in _NOT_ASCII_TEXT.finditer(text):
        before = text[match.start() - 1] if match.start() else ""
        if _is_hidden(match[0], before):
            found[_name(match[0])] = None
    return list(found)


def control_marks(text: str) -> list[str]:
    """Return the published control tokens that a text spells, each once, in order of appearance.

    These are the control tokens of published tokenizers and chat templates, whatever tokenizer is in use.
    Absolute values and inner products, such as `<|x|>`, do not count.

    >>> control_marks("Say <|im_end|> and </s>, then [INST].")
    ['<|im_end|>', '</s>', '[INST]']
    >>> control_marks("Is |a|<|b|>c or a<b>c?")
    []
    """
    if not any(bracket in text for bracket in "<[]"):
        return []
    return list(dict.fromkeys(match[0] for match in _CONTROL_MARK.finditer(text)))


def _is_hidden(character: str, before: str) -> bool:
    if not _NOT_ASCII_TEXT.match(character):
        return False
    if character in _ZERO_WIDTH_JOINERS:
        return not _needs_joiner(before)
    if _is_variation_selector(character):
        return not before or before.isspace() or _is_variation_selector(before) or _is_hidden(before, "")
    kind = unicodedata.category(character)
    unseen = kind in ("Cc", "Cf", "Cs", "Zl", "Zp") or ord(character) in _FILLERS
    return unseen and ord(character) not in _VISIBLE_FORMATS


def _needs_joiner(before: str) -> bool:
    """Check whether a joiner after the character `before` changes the drawn text."""
    if not before:
        return False
    if unicodedata.combining(before) == _VIRAMA or unicodedata.bidirectional(before) == "AL":
        return True
    return unicodedata.category(before) in ("So", "Sk") or before == "\ufe0f"


def _is_variation_selector(character: str) -> bool:
    return "\ufe00" <= character <= "\ufe0f" or "\U000e0100" <= character <= "\U000e01ef"


def _name(character: str) -> str:
    name = unicodedata.name(character, "")
    if not name:
        name = "SURROGATE" if unicodedata.category(character) == "Cs" else "CONTROL CHARACTER"
    return f"U+{ord(character):04X} {name}"
