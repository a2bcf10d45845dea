"""Comparison of settings with the types that a class declares, before the class is built."""

import inspect
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf

_PLAIN: dict[Any, tuple[str, tuple[type, ...]]] = {
    bool: ("true or false", (bool,)),
    int: ("a whole number", (int,)),
    float: ("a number", (int, float)),
    str: ("a text", (str,)),
    type(None): ("null", (type(None),)),
}
"""Type → its name in a message, and the types of values that are of it."""
_LISTS = (list, tuple, Sequence, Iterable)
_MAPPINGS = (dict, Mapping)


def check_declared(cfg: DictConfig) -> None:
    """Refuse settings whose type differs from that of the argument of the class at `_target_`, for the whole tree.

    Numbers, flags, texts, choices, null, and lists of these are compared. For arguments of other types only null is
    refused, unless the type allows it. Arguments without a type take anything.

    Raises:
        ValueError: if a setting is of another type. The message names the setting.
    """
    own = OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"])
    content: Any = OmegaConf.to_container(own, resolve=True, throw_on_missing=False)
    for name, value, hint in _declared(content):
        if not fits(value, hint):
            shown = "null" if value is None else repr(value)
            raise ValueError(f"Expected {name} to be {in_words(hint)}, but got {shown}. Correct {name}.")


def fits(value: object, hint: Any) -> bool:  # noqa: PLR0911  one line per kind of type
    """Return whether a value of a configuration is of the type `hint`.

    >>> fits(1, float), fits(True, int), fits(None, int | None), fits([1, 2], Sequence[int]), fits("x", Literal["y"])
    (True, False, True, True, False)
    """
    origin = get_origin(hint) or hint
    if hint in _PLAIN:
        return isinstance(value, _PLAIN[hint][1]) and (hint is bool or not isinstance(value, bool))
    if origin in (Union, types.UnionType):
        return any(fits(value, one) for one in get_args(hint))
    if origin is Literal:
        return value in get_args(hint)
    if isinstance(value, Mapping) and "_target_" in value:
        return True  # an object, which its own class checks
    if origin in _LISTS:
        return isinstance(value, list) and all(any(fits(item, one) for one in _items(hint)) for item in value)
    if origin in _MAPPINGS:
        return isinstance(value, Mapping)
    return value is not None or hint in (Any, object, inspect.Parameter.empty)


def _items(hint: Any) -> list[Any]:
    """Return the types of the items of a list."""
    return [one for one in get_args(hint) if one is not Ellipsis] or [Any]


def in_words(hint: Any) -> str:
    """Return the name of a type for error messages.

    >>> in_words(int | None), in_words(Literal["own", "original"]), in_words(Sequence[float])
    ('a whole number or null', 'own or original', 'a list, each item a number')
    """
    origin = get_origin(hint) or hint
    if hint in _PLAIN:
        return _PLAIN[hint][0]
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(in_words(one) for one in get_args(hint)))
    if origin is Literal:
        return " or ".join(map(str, get_args(hint)))
    if origin in _LISTS:
        items = " or ".join(dict.fromkeys(in_words(one) for one in _items(hint) if one is not Any))
        return f"a list, each item {items}" if items else "a list"
    if origin in _MAPPINGS:
        return "a mapping"
    return f"settings of a {getattr(hint, '__name__', hint)}"


def _declared(node: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield (dotted name, value, declared type) of all settings of classes below `node`."""
    if isinstance(node, list):
        for place, item in enumerate(node):
            yield from _declared(item, f"{name}.{place}")
    if not isinstance(node, dict):
        return
    hints = _hints(str(node["_target_"])) if isinstance(node.get("_target_"), str) else {}
    for key, value in node.items():
        here = f"{name}.{key}" if name else str(key)
        if key in hints and value != "???":
            yield here, value, hints[key]
        yield from _declared(value, here)


@cache
def _hints(target: str) -> Mapping[str, Any]:
    """Return argument → type of a class or function; empty if it, or one of its types, cannot be found."""
    try:
        made = get_object(target)
        return get_type_hints(made.__init__ if inspect.isclass(made) else made)
    except Exception:  # a class of the user's, whose import fails with its own error when it is built
        return {}
