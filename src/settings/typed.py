"""Compare settings with a class's declared arguments, by name and type, before the class is built."""

import inspect
import re
import types
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf

_PLAIN: dict[Any, tuple[str, tuple[type, ...]]] = {
    bool: ("true or false", (bool,)),
    int: ("a whole number", (int,)),
    float: ("a number", (int, float)),
    str: ("a text", (str,)),
    Path: ("a path", (str,)),
    type(None): ("null", (type(None),)),
}
"""Type → its name in messages, and the Python types of its values."""
_OF_HYDRA: Mapping[str, Any] = {
    "_target_": str,
    "_partial_": bool,
    "_convert_": str,
    "_recursive_": bool,
    "_args_": list,
}
"""Key of a part that Hydra reads itself → type."""
_LISTS = (list, tuple, Sequence, Collection, Iterable)
_MAPPINGS = (dict, Mapping)
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")
"""Pattern of a value that refers to one other setting."""


def check_declared(cfg: DictConfig) -> None:
    """Check that the class at each `_target_` in the tree accepts its settings, by name and type.

    Numbers, flags, texts, choices, null, and lists of these are compared. An argument whose type is a class
    of this package accepts settings with a `_target_`. For arguments of other types only null is refused,
    unless the type allows null. Arguments without a type accept anything.

    Raises:
        ValueError: if a setting has a wrong type, or is not an argument. The message names the setting.
    """
    own = OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"])
    content: Any = OmegaConf.to_container(own, resolve=True, throw_on_missing=False)
    parts = list(_parts(content))
    for part, settings in parts:
        known = _arguments(settings["_target_"])
        if known is None:
            continue
        unknown = [key for key in settings if key not in known and key not in _OF_HYDRA]
        if unknown:
            setting = written_at(cfg, f"{part}.{unknown[0]}".removeprefix("."))
            kind = settings["_target_"].rpartition(".")[2]
            raise ValueError(
                f"Expected {setting} to be an argument of {kind}, but it takes "
                f"{', '.join(sorted(known)) or 'none'}. Correct it, or leave it out with ~{setting}."
            )
    for part, settings in parts:
        hints = {**_hints(settings["_target_"]), **_OF_HYDRA}
        for key, value in settings.items():
            if key in hints and value != "???" and not fits(value, hints[key]):
                raise of_another_type(cfg, f"{part}.{key}".removeprefix("."), hints[key], value)


def of_another_type(cfg: DictConfig, name: str, hint: Any, value: object) -> ValueError:
    """Return the error of a setting `name` whose `value` is not of the type `hint`.

    The error names the setting where the value was written. If the value is a mapping, the error names the
    wrong member.
    """
    for kind in get_args(hint) if get_origin(hint) in (Union, types.UnionType) else [hint]:
        if get_origin(kind) in _MAPPINGS and isinstance(value, Mapping):
            member = get_args(kind)[1]
            for key, each in value.items():
                if not fits(each, member):
                    return of_another_type(cfg, f"{name}.{key}", member, each)
    setting = written_at(cfg, name)
    shown = "null" if value is None else repr(value)
    return ValueError(f"Expected {setting} to be {in_words(hint)}, but got {shown}. Correct {setting}.")


def written_at(cfg: DictConfig, name: str) -> str:
    """Return the setting where the value of `name` is written, such as `model.path` for `model.load.path`.

    The two settings differ if a value refers to another setting.

    >>> written_at(OmegaConf.create({"a": 1, "b": {"c": "${a}"}, "d": "${b}"}), "d.c")
    'a'
    """
    parts = name.split(".")
    node: Any = cfg
    for place, key in enumerate(parts):
        if not isinstance(node, DictConfig) or key not in node:
            return name
        if OmegaConf.is_interpolation(node, key):
            written: Any = OmegaConf.to_container(node, resolve=False)
            other = _REFERENCE.fullmatch(str(written[key]))
            return written_at(cfg, ".".join([other[1], *parts[place + 1 :]])) if other else name
        node = node[key]
    return name


def fits(value: object, hint: Any) -> bool:  # noqa: PLR0911  one line per kind of type
    """Return whether a configuration value has the type `hint`.

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
        return True  # an object, which the object's class checks
    if inspect.isclass(origin) and origin.__module__.startswith("tagrpo."):
        return False
    if origin in _LISTS:
        return isinstance(value, list) and all(any(fits(item, one) for one in _items(hint)) for item in value)
    if origin in _MAPPINGS:
        kind = get_args(hint)[1] if get_args(hint) else Any
        return isinstance(value, Mapping) and all(fits(each, kind) for each in value.values())
    return value is not None or hint in (Any, object, inspect.Parameter.empty)


def _items(hint: Any) -> list[Any]:
    """Return the types of a list's items."""
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
        kind = get_args(hint)[1] if get_args(hint) else Any
        return "a mapping" if kind is Any else f"a mapping, each value {in_words(kind)}"
    return f"the settings of a {getattr(hint, '__name__', hint)}, with a _target_"


def _parts(node: Any, name: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the dotted name and the settings of each part, which has a `_target_`, at any depth."""
    if isinstance(node, dict):
        if isinstance(node.get("_target_"), str):
            yield name, node
        children = list(node.items())
    else:
        children = list(enumerate(node)) if isinstance(node, list) else []
    for key, value in children:
        yield from _parts(value, f"{name}.{key}" if name else str(key))


@cache
def _arguments(target: str) -> frozenset[str] | None:
    """Return the names of a class's arguments; None if it accepts any names, or if they are unknown."""
    try:
        parameters = inspect.signature(get_object(target)).parameters.values()
    except Exception:  # a user's class, whose import error is raised when the class is built
        return None
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
        return None
    return frozenset(each.name for each in parameters if each.kind is not inspect.Parameter.POSITIONAL_ONLY)


@cache
def _hints(target: str) -> Mapping[str, Any]:
    """Return argument → type of a class or function, without types that can't be found.

    Return an empty mapping if the class or function can't be found.
    """
    try:
        made = get_object(target)
        function: Any = made.__init__ if inspect.isclass(made) else made
        written = dict(inspect.get_annotations(function))
    except Exception:  # a user's class, whose import error is raised when the class is built
        return {}
    hints: dict[str, Any] = {}
    for name, hint in written.items():
        try:
            one = types.SimpleNamespace(__annotations__={name: hint})
            hints |= get_type_hints(one, globalns=getattr(function, "__globals__", {}))
        except Exception:  # a type that is imported for type checkers alone; the others are still known
            continue
    return hints
