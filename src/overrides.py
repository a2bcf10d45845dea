"""Settings as command-line arguments that Hydra reads."""

import re

WORDS = ("inf", "nan", "null", "true", "false")
"""Words that Hydra does not read as text, in upper or lower case."""


def override(setting: str, value: object) -> str:
    r"""Return a command-line argument by which Hydra sets `setting` to the text `value`.

    In a shell, the argument must be quoted (`shlex.quote`).

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
