"""A setting as an argument of a command."""

import re

WORDS = ("inf", "nan", "null", "true", "false")
"""What Hydra reads as no text, in any case."""


def override(setting: str, value: object) -> str:
    r"""Return an argument that Hydra reads as `value`, a text. A shell needs it quoted (`shlex.quote`).

    >>> override("name", "grpo"), override("root", "runs/a, ü"), override("name", "inf")
    ('name=grpo', 'root="runs/a, ü"', 'name="inf"')
    """
    text = str(value)
    if re.fullmatch(r"[A-Za-z_/.][\w/.:@+-]*", text, re.ASCII) and text.lower() not in WORDS:
        return f"{setting}={text}"

    def escape(match: re.Match[str]) -> str:
        backslashes, quote = match.groups()
        return backslashes * 2 + ('\\"' if quote else "")

    # Hydra reads a backslash as itself unless a quote follows.
    escaped = re.sub(r'(\\*)("|$)', escape, text)
    return f'{setting}="{escaped}"'
