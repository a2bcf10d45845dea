"""Reward functions: the arguments that a function takes, and the check of the values that it returns."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import pkgutil
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence, Set
from concurrent.futures import Future
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from ..types import LARGEST_REWARD, as_number
from ..types.checks import found

SETTING = "reward.target"
"""Setting that names the reward functions."""
OF_TRAINER = ("trainer_state", "log_extra", "log_metric")
"""Arguments that are not columns: `trainer_state.global_step`, and two functions that do nothing."""
OF_QUESTION = ("answer", "question", "id")
"""Columns of every question, in addition to the columns of its row."""
PATIENCE = 5.0
"""Time limit, in seconds, for cancelled asynchronous functions to clean up."""
RewardFunction = Callable[..., Any]
"""Function with TRL's signature, also an asynchronous one."""
Values = list[float | None]
"""Reward of each response; None if the function does not apply to it."""


class CheckedFunction:
    """Wrapper that calls a reward function with the arguments in its signature and checks its values.

    Args:
        target: The function or its name; see `named`.
        columns: Argument → column that the argument gets.

    Attributes:
        name: Name of the function in messages, with its module.
        is_async: Whether to call the function by `awaited`, not by `values`.

    Raises:
        ValueError: if the name is not found.
        TypeError: if `target` can't be called with keyword arguments.
    """

    def __init__(self, target: str | RewardFunction, columns: dict[str, str]) -> None:
        function: Any = named(target) if isinstance(target, str) else target
        self.name = target if isinstance(target, str) else _name_of(function)
        self._function = function
        self._columns = columns
        self._check_kind()
        bare = function.func if isinstance(function, partial) else function
        self.is_async = inspect.iscoroutinefunction(bare) or inspect.iscoroutinefunction(
            getattr(bare, "__call__", None)  # noqa: B004  of an object
        )
        self._takes_all = True
        self._takes: list[str] = []
        self._needs: list[str] = []
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):  # a function in C without a signature
            return
        self._takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters)
        for each in parameters:
            if each.kind is each.POSITIONAL_ONLY and each.default is each.empty:
                raise TypeError(
                    f"Expected {self.name} ({SETTING}) to take keyword arguments, but {each.name} is "
                    "positional-only. Remove the / from its signature."
                )
            if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY):
                self._takes.append(each.name)
                if each.default is each.empty:
                    self._needs.append(each.name)

    def _check_kind(self) -> None:
        """Raise a TypeError if the target is a class, a model or not callable."""
        expected = f"Expected {self.name} ({SETTING}) to be a function fn(prompts, completions, **columns)"
        if inspect.isclass(self._function):
            raise TypeError(
                f"{expected}, but it is a class. Make an object of it: '{SETTING}={{_target_: {self.name}}}'."
            )
        if isinstance(self._function, nn.Module):
            raise TypeError(f"{expected}, but it is a model. Name a function that calls the model.")
        if not callable(self._function):
            raise TypeError(f"{expected}, but got {found(self._function)}. Name a function.")

    def check_columns(self, there: Iterable[str]) -> None:
        """Check that `there` has the columns that the function needs.

        Raises:
            ValueError: if a column is missing; the message lists the columns in `there`.
        """
        known = [name for name in dict.fromkeys(there) if name not in ("prompt", "completion")]
        for name in self._needs:
            column = self._columns.get(name, name)
            if column not in known:
                columns = [each for each in known if each not in OF_TRAINER]
                other = [*get_close_matches(column, columns, 1, cutoff=0.8), *OF_QUESTION][0]
                raise ValueError(
                    f"Expected a column {column!r}, which {self.name} ({SETTING}) needs, but there are "
                    f"{', '.join(columns)}. Name the column that the argument gets, such as "
                    f"'reward.columns={{{name}: {other}}}', or give the argument a default."
                )
        for name, column in self._columns.items():
            if column not in known:
                raise ValueError(
                    f"Expected reward.columns.{name} to name a column, but got {column!r}, and there are "
                    f"{', '.join(known)}. Correct reward.columns.{name}."
                )

    def arguments(self, columns: Mapping[str, list[Any]], extra: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keyword arguments of a call. Lists are copies, so that the function may change them."""
        self.check_columns([*columns, *extra])
        given: dict[str, Any] = {name: list(column) for name, column in columns.items()}
        for name, column in self._columns.items():
            given[name] = list(columns[column])
        given |= extra
        if self._takes_all:
            return given
        return {name: value for name, value in given.items() if name in self._takes}

    def values(self, arguments: dict[str, Any], ids: Sequence[str]) -> Values:
        """Call the function, and check the values that it returns."""
        try:
            returned = _as_list(self._function(**arguments))
        except (Exception, SystemExit) as error:  # of any kind: the error lacks the question
            raise self._failed(error, ids) from error
        return self._checked(returned, ids)

    async def awaited(self, arguments: dict[str, Any], ids: Sequence[str]) -> Values:
        """Call an asynchronous function, and check the values that it returns."""
        try:
            returned = _as_list(await self._function(**arguments))
        except (Exception, SystemExit) as error:  # as above; a SystemExit would end the loop
            raise self._failed(error, ids) from error
        return self._checked(returned, ids)

    def _failed(self, error: BaseException, ids: Sequence[str]) -> RuntimeError:
        frames = list(traceback.extract_tb(error.__traceback__))
        file = getattr(sys.modules.get(_module_of(self._function)), "__file__", None)
        own = [frame for frame in frames if frame.filename == file]
        place = (own or frames)[-1]
        # The error of the function is the cause, and has the traceback.
        return RuntimeError(
            f"Expected {self.name} ({SETTING}) to return a reward for each of {len(ids)} responses to "
            f"{_questions(ids)}, but it raised {type(error).__name__}: {error} ({place.filename}, line "
            f"{place.lineno}). Correct the function, and return None where it does not apply."
        )

    def _checked(self, returned: Any, ids: Sequence[str]) -> Values:
        expected = f"Expected {self.name} ({SETTING}) to return"
        if not isinstance(returned, list):
            raise TypeError(
                f"{expected} a list with a number or None for each of {len(ids)} responses, but got "
                f"{found(returned)} for {_questions(ids)}."
            )
        if len(returned) != len(ids):
            raise ValueError(
                f"{expected} {len(ids)} rewards, one for each response, but got {len(returned)} for "
                f"{_questions(ids)}."
            )
        values: Values = []
        for row, value in enumerate(returned):
            number = None if value is None else as_number(value)
            if number is None and value is not None:
                raise TypeError(
                    f"{expected} numbers and None, but got {found(value)} for {place_of(row, ids)}."
                )
            if number is not None and not abs(number) <= LARGEST_REWARD:
                raise FloatingPointError(
                    f"{expected} numbers of at most {LARGEST_REWARD:g} in absolute value, but got {number} for "
                    f"{place_of(row, ids)}. Return None if the function does not apply to a response."
                )
            values.append(number)
        return values


class EventLoop:
    """Event loop in a thread, in which asynchronous functions run concurrently."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rewards", daemon=True)
        self._thread.start()

    def start(self, coroutine: Coroutine[Any, Any, Values]) -> Future[Values]:
        """Run a coroutine in the loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def close(self) -> None:
        """Cancel the running functions and end the thread, unless a function blocks the thread."""
        try:
            asyncio.run_coroutine_threadsafe(self._cancel(), self._loop).result(PATIENCE)
        except TimeoutError:
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _cancel(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


def named(name: str) -> Any:
    """Import the object with a dotted name such as `my_rewards.fn`, also from the current directory.

    Raises:
        ValueError: if the module or the name is not found, or the module raises an error.
    """
    top = name.partition(".")[0].partition(":")[0]
    is_here = Path(f"{top}.py").is_file() or Path(top).is_dir()
    if is_here and top.isidentifier() and importlib.util.find_spec(top) is None:
        sys.path.append(str(Path.cwd()))  # last, so that it hides no installed package
        importlib.invalidate_caches()
    try:
        return pkgutil.resolve_name(name)
    except Exception as error:  # of a user's module: it may raise anything
        kind = "" if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: "
        file = getattr(sys.modules.get(top), "__file__", None)
        hidden = is_here and file is not None and Path.cwd() not in Path(file).parents
        remedy = f"Rename ./{top}, which the module in {file} hides" if hidden else f"Correct {SETTING}"
        raise ValueError(
            f"Expected {SETTING} to name functions, such as my_rewards.fn for `fn` in my_rewards.py, but "
            f"{name!r} can't be imported: {kind}{error}. {remedy}; the module must be in the current "
            "directory, in a folder of PYTHONPATH, or installed."
        ) from error


def module_of(name: str) -> str:
    """Return the module part of a dotted name that `named` can import.

    >>> module_of("json.decoder.JSONDecoder.decode")
    'json.decoder'
    """
    parts = name.replace(":", ".").split(".")
    while len(parts) > 1 and ".".join(parts) not in sys.modules:
        parts.pop()
    return ".".join(parts)


def _module_of(function: Any) -> str:
    """Return the name of the module that defines a function or, for an object, its class."""
    bare = function.func if isinstance(function, partial) else function
    return str(getattr(bare, "__module__", ""))


def _name_of(function: Any) -> str:
    """Return the name of a function for messages, with its module."""
    bare = function.func if isinstance(function, partial) else function
    name = getattr(bare, "__qualname__", None) or getattr(bare, "__name__", type(bare).__name__)
    return f"{_module_of(function)}.{name}".removeprefix(".")


def _as_list(returned: Any) -> Any:
    """Convert an ordered collection to a list; return anything else unchanged, for the error message."""
    if isinstance(returned, Tensor | np.ndarray):
        return returned.tolist() if returned.ndim == 1 else returned
    ordered = isinstance(returned, Iterable) and not isinstance(returned, str | bytes | Mapping | Set)
    return list(returned) if ordered else returned


def place_of(row: int, ids: Sequence[str]) -> str:
    """Return a response's row and question, for messages; `ids` are the questions of all rows."""
    return f"response {row} to question {ids[row]!r}"


def _questions(ids: Sequence[str]) -> str:
    shown = list(dict.fromkeys(ids))
    kind = "question" if len(shown) == 1 else "questions"
    return f"{kind} {', '.join(map(repr, shown[:3]))}{', …' if len(shown) > 3 else ''}"
