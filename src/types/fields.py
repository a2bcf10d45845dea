"""Access to the fields of a batch that is a dataclass, a mapping, or a nesting of both."""

from collections.abc import Mapping, Sequence
from typing import Any

NESTED = frozenset({"rollouts", "groups", "prompts"})
"""Fields of a batch that have fields themselves; values of all other fields are returned unchanged."""


class Fields:
    """View of a batch: `fields.name` is an attribute of an object, or a mapping's value, also in `NESTED`.

    Diagnostics read batches through such views, so that other projects need not use our types. Errors call
    the batch `name`.

    >>> batch = {"groups": [{"id": "7"}], "rollouts": {"text": ["two"]}}
    >>> Fields("batch", batch).groups[0].id, Fields("batch", batch).rollouts.text
    ('7', ['two'])
    >>> Fields("batch", batch).rollouts.answers
    Traceback (most recent call last):
    AttributeError: Expected batch.rollouts to have `answers`, but it has text. ...
    """

    def __init__(self, name: str, value: Any) -> None:
        self._name = name
        self._value = value

    def __getattr__(self, key: str) -> Any:
        if key.startswith("__"):  # asked by copy and pickle
            raise AttributeError(key)
        here = f"{self._name}.{key}"
        try:
            value = self._value[key] if isinstance(self._value, Mapping) else getattr(self._value, key)
        except (KeyError, AttributeError):
            names = self._value if isinstance(self._value, Mapping) else dir(self._value)
            has = ", ".join(sorted(str(name) for name in names if not str(name).startswith("_")))
            raise AttributeError(
                f"Expected {self._name} to have `{key}`, but it has {has or 'nothing'}. "
                "docs/reuse.md has a table of what each callback reads: add it, or leave the callback out."
            ) from None
        if key in NESTED:
            if isinstance(value, Sequence):
                value = [Fields(f"{here}[{row}]", part) for row, part in enumerate(value)]
            else:
                value = Fields(here, value)
            setattr(self, key, value)  # so that many prompts are wrapped only once
        return value
