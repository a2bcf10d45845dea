import sys
import unicodedata

import pytest

from tagrpo.datamodules.hidden_text import control_marks, hidden_characters


@pytest.mark.parametrize(
    "mark",
    [
        *(
            "<|im_start|>",
            "<|im_end|>",
            "<|endoftext|>",
            "<|eot_id|>",
            "<|begin_of_text|>",
            "<|start_header_id|>",
        ),
        *(
            "<|reserved_special_token_17|>",
            "<|user|>",
            "<|assistant|>",
            "<|end|>",
            "<|channel|>",
            "<|message|>",
        ),
        *(
            "<｜begin▁of▁sentence｜>",
            "<｜User｜>",
            "<｜end▁of▁sentence｜>",
            "</s>",
            "<s>",
            "<unk>",
            "<bos>",
            "<eos>",
        ),
        *("[INST]", "[/INST]", "<<SYS>>", "<</SYS>>", "[SYSTEM_PROMPT]", "[TOOL_CALLS]", "<start_of_turn>"),
        *(
            "<end_of_turn>",
            "<|turn>",
            "<turn|>",
            "<|START_OF_TURN_TOKEN|>",
            "<BOS_TOKEN>",
            "<|start_of_role|>",
        ),
        *(
            "[|assistant|]",
            "[CLS]",
            "[UNUSED_TOKEN_145]",
            "<unused99>",
            "<think>",
            "</tool_call>",
            "<fim_prefix>",
        ),
        *(
            "<|human|>",
            "<|bot|>",
            "<|startofturn|>",
            "<extra_id_0>",
            "<eod>",
            "<end_of_utterance>",
            "<role>",
            "</role>",
        ),
        *("]~b]", "]~!b[", "[e~["),
    ],
)
def test_a_published_control_token_is_found_within_words(mark):
    assert control_marks(f"What is {mark}$1+1${mark}?") == [mark]


@pytest.mark.parametrize(
    "text",
    [
        r"Let $|a|<|b|>c$ and $<|x|>$, $\langle x|y\rangle$, $<|a_1|>$, $<|x_n|>$, $<u|v>$.",
        "Is a<b>c? If x < y > z, what is [x] + [|x|]?",
        "A list [1, 2], a set {s}, an interval [A; B], <br>, <b>bold</b>, <table>.",
        "if i<n: print(a[i]) | sort || true",
    ],
)
def test_mathematics_html_and_code_are_no_control_tokens(text):
    assert control_marks(text) == []


def test_every_mark_is_named_once_in_order():
    assert control_marks("</s><|im_end|></s>") == ["</s>", "<|im_end|>"]


@pytest.mark.parametrize(
    ("character", "name"),
    [
        ("\0", "U+0000 CONTROL CHARACTER"),
        ("\x1b", "U+001B CONTROL CHARACTER"),
        ("\x9b", "U+009B CONTROL CHARACTER"),
        ("\x7f", "U+007F CONTROL CHARACTER"),
        ("\u200b", "U+200B ZERO WIDTH SPACE"),
        ("\u200d", "U+200D ZERO WIDTH JOINER"),
        ("\u202e", "U+202E RIGHT-TO-LEFT OVERRIDE"),
        ("\u2066", "U+2066 LEFT-TO-RIGHT ISOLATE"),
        ("\ufeff", "U+FEFF ZERO WIDTH NO-BREAK SPACE"),
        ("\u00ad", "U+00AD SOFT HYPHEN"),
        ("\u2062", "U+2062 INVISIBLE TIMES"),
        ("\u2028", "U+2028 LINE SEPARATOR"),
        ("\u3164", "U+3164 HANGUL FILLER"),
        ("\u034f", "U+034F COMBINING GRAPHEME JOINER"),
        ("\u17b4", "U+17B4 KHMER VOWEL INHERENT AQ"),
        ("\U000e0041", "U+E0041 TAG LATIN CAPITAL LETTER A"),
        ("\ud800", "U+D800 SURROGATE"),
    ],
)
def test_a_hidden_character_is_named(character, name):
    assert hidden_characters(f"Find {character}x{character}.") == [name]


@pytest.mark.parametrize(
    "text",
    [
        "Löse $x²+1=0$ für x ∈ ℂ.\r\n\tGib „i“ an …",
        "می\u200cخواهم",  # Persian: "I want"
        "क्\u200dष",  # Devanagari
        "👩\u200d🔬 and ❤\ufe0f",
        "求 $x$ 的值。",
        "\u0660\u0661 \u0600\u0661",  # Arabic digits and number sign
        "e\u0301",
    ],
)
def test_text_as_its_readers_write_it_has_nothing_hidden(text):
    assert hidden_characters(text) == []


def test_data_smuggled_in_variation_selectors_is_found():
    assert hidden_characters("😀\U000e0148\U000e0155") == ["U+E0155 VARIATION SELECTOR-102"]


@pytest.mark.parametrize(
    "codes",
    [
        # Beyond the first three planes, characters are invisible or of private use.
        [*range(0x32000), *range(0x32000, sys.maxunicode, 997), *range(0xE0000, 0xE1000)],
        pytest.param(range(sys.maxunicode + 1), marks=pytest.mark.runs),
    ],
    ids=["most", "all"],
)
def test_characters_without_a_glyph_are_found_and_no_others(codes):
    for code in codes:
        character = chr(code)
        name = unicodedata.name(character, "")
        blank = name in BLANK or ("HANGUL" in name and "FILLER" in name)
        invisible = blank or unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")
        drawn = code in DRAWN or character in "\t\n\r"
        assert bool(hidden_characters(f"a{character}a")) == (invisible and not drawn), name


BLANK = {
    "BRAILLE PATTERN BLANK",
    "COMBINING GRAPHEME JOINER",
    "KHMER VOWEL INHERENT AQ",
    "KHMER VOWEL INHERENT AA",
}
DRAWN = {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}
"""Prepended_Concatenation_Mark of Unicode: signs drawn around or over the number that follows."""
