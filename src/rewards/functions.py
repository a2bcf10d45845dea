"""Rewards as functions, with the signature of TRL's reward functions.

A function gets the responses to a prompt, and returns a number for each: `fn(prompts, completions, **columns)`.
Differences from TRL's `GRPOTrainer`: a function is called once for each prompt, with all sampled responses to
it, not once for a batch; it gets only the arguments that its signature names; nan is refused, None is not; and
of `trainer_state` it gets `global_step` alone.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import math
import pkgutil
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
from torch import Tensor, nn

from ..types import LARGEST_REWARD, NO_REWARD, Prompt, PromptVerifier, QuestionGroup, Score, as_number
from ..types.checks import found, own_code
from .canonical import Reference, normalize_answer
from .extraction import extract_answer

SETTING = "reward.target"
"""Setting that names the functions."""
OF_TRAINER = ("trainer_state", "log_extra", "log_metric")
"""Arguments that are no columns: `trainer_state.global_step`, and two functions of TRL's that do nothing here."""
OF_PROMPT = ("prompts", "completions", "completion_ids")
"""Arguments that a prompt and its responses give."""
OF_QUESTION = ("answer", "question", "id")
"""Columns of every question, besides those of its row."""
NEVER_COLUMNS = (*OF_PROMPT, *OF_TRAINER, "prompt", "completion")
"""Names in a row that are not passed as columns, as in TRL."""
PATIENCE = 5.0
"""Seconds in which asynchronous functions may clean up when they are cancelled."""
ROUNDING = 1e-9
"""How far a weighted sum of rewards in [0, 1] may be outside by rounding."""

RewardFunction = Callable[..., Any]
"""Function with TRL's signature, also an asynchronous one."""
Values = list[float | None]
"""Reward of each response; None if the function does not apply to it."""


class FunctionReward(PromptVerifier):
    """Verifier that learns from the weighted sum of functions, and counts responses above a threshold as correct.

    A function is called with keyword arguments, each a list with one entry for each of n responses to a prompt:

    - `prompts`: texts; lists of messages if the template makes a conversation.
    - `completions`: responses with their thoughts; lists of one message of the assistant in a conversation.
    - `completion_ids`: lists of token ids.
    - `answer`: the reference answer, a list of texts if the question has several; `question` and `id`.
    - every other column of the question's row. A column that the row lacks, but another row has, is None.

    `trainer_state.global_step` is the number of optimizer steps. Functions get the arguments that they name;
    with `**columns` they get all.

    A function returns n numbers. None means that it does not apply to a response: the sum leaves it out. If no
    function applies, the response counts as wrong (`NO_REWARD`), and its reward is the mean of the others to
    its question. Thus it changes no baseline, and its advantage is zero, as in TRL.

    `Score.reward` is the sum. `Score.correct`, which pass@k counts, is whether the sum is above
    `correct_above`. `Score.answer`, for votes, is the final answer (`extract_answer`).

    Asynchronous functions (`async def`) run while other responses are sampled, all prompts at the same time. With
    `workers` the other functions do, too, in threads.

    Args:
        target: Function, or name such as `my_rewards.fn`; or a list of these. A module may be in the current
            directory.
        weights: Weight of each function; None is 1 for each.
        correct_above: Reward above which a response is correct. None is 0.5, and rewards must be in [0, 1].
        columns: Argument → column that it gets, such as `{"solution": "answer"}`.
        workers: Threads that call functions while other responses are sampled. Above 1, functions must be
            thread-safe. None calls functions after sampling, in this thread.

    Raises:
        ValueError: if a function is not found, or an argument does not fit.
        TypeError: if a target can't be called with keyword arguments.

    >>> def shorter(completions, limit, **columns):
    ...     return [1 - len(text) / most for text, most in zip(completions, limit)]
    >>> FunctionReward(shorter).score(completions=["7", "seven #### 7"], limit=[10, 16])
    [Score(correct=True, answer=None, failure=None, reward=0.9),
     Score(correct=False, answer='7', failure=None, reward=0.25)]
    """

    reads_response = True

    def __init__(
        self,
        target: str | RewardFunction | Sequence[str | RewardFunction],
        weights: Sequence[float] | None = None,
        correct_above: float | None = None,
        columns: Mapping[str, str] | None = None,
        workers: int | None = None,
    ) -> None:
        targets: list[Any] = list(target) if isinstance(target, list | tuple) else [target]
        if not targets:
            raise ValueError(f"Expected {SETTING} to name at least one function, but got []. Name one.")
        if workers is not None and workers < 1:
            raise ValueError(f"Expected reward.workers to be a number of threads or null, but got {workers}.")
        if correct_above is not None and not math.isfinite(correct_above):
            raise ValueError(
                f"Expected reward.correct_above to be a number or null, but got {correct_above}."
            )
        self._functions = [_Function(each, dict(columns or {})) for each in targets]
        self.weights = _checked_weights(weights, [function.name for function in self._functions])
        self._labels = _labels([function.name for function in self._functions])
        self.correct_above = correct_above
        self.workers = workers
        self.in_background = workers is not None or any(function.is_async for function in self._functions)
        self._settings = (target, weights, correct_above, columns, workers)
        self._known: dict[str, None] = {}  # columns of the rows that were checked
        self._threads: ThreadPoolExecutor | None = None
        self._loop: _Loop | None = None
        self._lock = threading.Lock()  # guards the two

    def check_questions(self, groups: Sequence[QuestionGroup]) -> None:
        """Check that the rows of a split have the columns that the functions need.

        Raises:
            ValueError: if no row has one of the columns; the message names function and column.
        """
        there = dict.fromkeys(OF_QUESTION)
        for group in groups:
            there |= dict.fromkeys(group.metadata)
        self._known |= there
        if groups:
            for function in self._functions:
                function.check_columns([*OF_PROMPT, *OF_TRAINER, *there])

    def score_prompt(
        self,
        prompt: Prompt,
        group: QuestionGroup,
        texts: Sequence[str],
        token_ids: Sequence[Tensor],
        step: int,
    ) -> Callable[[], list[Score]]:
        """Start scoring responses to one prompt; see `PromptVerifier`."""
        size = len(texts)
        row: dict[str, Any] = dict.fromkeys(self._known)
        row |= group.metadata
        row |= {"answer": _as_written(group.answer), "question": group.question, "id": group.id}
        columns = {name: [value] * size for name, value in row.items() if name not in NEVER_COLUMNS}
        prompts: list[Any] = [prompt.text] * size
        completions: list[Any] = list(texts)
        if prompt.messages is not None:
            prompts = [[dict(turn) for turn in prompt.messages] for _ in texts]
            completions = [[{"role": "assistant", "content": text}] for text in texts]
        columns["prompts"] = prompts
        columns["completions"] = completions
        columns["completion_ids"] = [ids.tolist() for ids in token_ids]
        return self._start(columns, texts, [group.id] * size, step)

    def score(self, completions: Sequence[Any], *, step: int = 0, **columns: Sequence[Any]) -> list[Score]:
        """Score responses outside of a pipeline.

        Args:
            completions: [n] texts, or conversations of one message.
            step: Optimizer steps so far, which functions get as `trainer_state.global_step`.
            columns: Other arguments of the functions, such as `prompts` and `answer`, [n] each.

        Raises:
            TypeError: if a function returns anything other than numbers and None.
            ValueError: if a function lacks an argument or returns another number of rewards; or if a reward
                is outside [0, 1] without `correct_above`.
            FloatingPointError: if a reward is nan, infinite or too large.
            RuntimeError: if a function raises an error.
        """
        for name, column in columns.items():
            if len(column) != len(completions):
                raise ValueError(
                    f"Expected {name} to have an entry for each of {len(completions)} completions, but it has "
                    f"{len(column)}."
                )
        texts = [each if isinstance(each, str) else each[-1]["content"] for each in completions]
        given = {name: list(column) for name, column in columns.items()}
        ids = [str(each) for each in given.get("id", range(len(texts)))]
        return self._start({**given, "completions": list(completions)}, texts, ids, step)()

    def __call__(self, response: str, reference: Reference) -> Score:
        """Score one response; functions get no prompt, and of the columns the answer alone."""
        return self.score_batch([response], [reference])[0]

    def score_batch(self, responses: Sequence[str], references: Sequence[Reference]) -> list[Score]:
        """Score responses; functions get no prompts, and of the columns the answers alone."""
        answers = [each if isinstance(each, str) else _as_written(tuple(each)) for each in references]
        return self.score(responses, answer=answers)

    def _start(
        self, columns: dict[str, list[Any]], texts: Sequence[str], ids: Sequence[str], step: int
    ) -> Callable[[], list[Score]]:
        """Start all functions, and return a function that waits for the scores.

        Args:
            columns: Argument → [n].
            texts: [n] responses.
            ids: [n] ids of the questions, for errors.
            step: Optimizer steps.
        """
        extra = {
            "trainer_state": SimpleNamespace(global_step=step),
            "log_extra": _ignore,
            "log_metric": _ignore,
        }
        waits = []
        for function in self._functions:
            arguments = function.arguments(columns, extra)
            waits.append(self._call(function, arguments, ids))

        def scores() -> list[Score]:
            found = [wait() for wait in waits]
            return [self._score(row, text, ids, found) for row, text in enumerate(texts)]

        return scores

    def _call(
        self, function: _Function, arguments: dict[str, Any], ids: Sequence[str]
    ) -> Callable[[], Values]:
        if function.is_async:
            return self._loop_of_functions().start(function.awaited(arguments, ids)).result
        call = partial(function.values, arguments, ids)
        return call if self.workers is None else self._pool().submit(call).result

    def _pool(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self.workers, thread_name_prefix="reward")
            return self._threads

    def _loop_of_functions(self) -> _Loop:
        with self._lock:
            if self._loop is None:
                self._loop = _Loop()
            return self._loop

    def _score(self, row: int, text: str, ids: Sequence[str], found: Sequence[Values]) -> Score:
        """Return the score of a response from the [functions][n] values."""
        answer = extract_answer(text)
        answer = None if answer is None else normalize_answer(answer)
        parts: dict[str, float] = {}
        reward = 0.0
        for label, weight, values in zip(self._labels, self.weights, found, strict=True):
            value = values[row]
            if value is not None:
                parts[label] = value
                reward += weight * value
        if not parts:
            return Score(False, answer, NO_REWARD)
        threshold = self.correct_above
        if threshold is None:
            threshold = 0.5
            if not -ROUNDING <= reward <= 1 + ROUNDING:
                names = ", ".join(function.name for function in self._functions)
                raise ValueError(
                    f"Expected rewards in [0, 1], of which those above 0.5 are correct, but {names} ({SETTING}) "
                    f"returned {reward:g} for {_place(row, ids)}. Set reward.correct_above to the reward above "
                    "which a response is correct, such as reward.correct_above=0.5."
                )
        if not abs(reward) <= LARGEST_REWARD:
            raise FloatingPointError(
                f"Expected the weighted reward to be at most {LARGEST_REWARD:g} in absolute value, but got "
                f"{reward:g} for {_place(row, ids)}. Lower reward.weights."
            )
        several = len(self._functions) > 1
        return Score(reward > threshold, answer, reward=reward, parts=parts if several else None)

    def close(self) -> None:
        """Cancel functions that run in the background; the next call starts threads again."""
        with self._lock:
            threads, self._threads = self._threads, None
            loop, self._loop = self._loop, None
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)
        if loop is not None:
            loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return FunctionReward, self._settings


class _Function:
    """A reward function: its name, the arguments that it takes, and the check of what it returns."""

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
        """Refuse classes, models and what can't be called."""
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
        """Refuse columns that are not `there`, with a ValueError that names those that are."""
        known = [name for name in dict.fromkeys(there) if name not in ("prompt", "completion")]
        for name in self._needs:
            column = self._columns.get(name, name)
            if column not in known:
                columns = [each for each in known if each not in OF_TRAINER]
                other = [*get_close_matches(column, columns, 1), *OF_QUESTION][0]
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
        """Return the keyword arguments of a call; lists are copies, which the function may change."""
        self.check_columns([*columns, *extra])
        given: dict[str, Any] = {name: list(column) for name, column in columns.items()}
        for name, column in self._columns.items():
            given[name] = list(columns[column])
        given |= extra
        if self._takes_all:
            return given
        return {name: value for name, value in given.items() if name in self._takes}

    def values(self, arguments: dict[str, Any], ids: Sequence[str]) -> Values:
        """Call the function, and check what it returns."""
        try:
            with own_code(self._function, SETTING):
                returned = self._function(**arguments)
                returned = _as_list(returned)
        except Exception as error:  # of any kind: the error lacks the question
            raise self._failed(error, ids) from error
        return self._checked(returned, ids)

    async def awaited(self, arguments: dict[str, Any], ids: Sequence[str]) -> Values:
        """Call an asynchronous function, and check what it returns."""
        try:
            with own_code(self._function, SETTING):  # a SystemExit would end the loop
                returned = await self._function(**arguments)
                returned = _as_list(returned)
        except Exception as error:  # as above
            raise self._failed(error, ids) from error
        return self._checked(returned, ids)

    def _failed(self, error: Exception, ids: Sequence[str]) -> RuntimeError:
        frames = traceback.extract_tb(error.__traceback__)
        code = getattr(inspect.unwrap(self._function), "__code__", None)
        own = [frame for frame in frames if code is not None and frame.filename == code.co_filename]
        place = (own or list(frames))[-1]
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
                    f"{expected} numbers and None, but got {found(value)} for {_place(row, ids)}."
                )
            if number is not None and not abs(number) <= LARGEST_REWARD:
                raise FloatingPointError(
                    f"{expected} numbers of at most {LARGEST_REWARD:g} in absolute value, but got {number} for "
                    f"{_place(row, ids)}. Return None if the function does not apply to a response."
                )
            values.append(number)
        return values


class _Loop:
    """An event loop in a thread, in which asynchronous functions run side by side."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rewards", daemon=True)
        self._thread.start()

    def start(self, coroutine: Coroutine[Any, Any, Values]) -> Future[Values]:
        """Run a coroutine in the loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def close(self) -> None:
        """Cancel what runs, and end the thread, unless a function blocks it."""
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
    """Return what a dotted name such as `my_rewards.fn` names; a module may be in the current directory.

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
        raise ValueError(
            f"Expected {SETTING} to name functions, such as my_rewards.fn for `fn` in my_rewards.py, but "
            f"{name!r} can't be imported: {kind}{error}. Correct {SETTING}; the module must be in the current "
            "directory, in a folder of PYTHONPATH, or installed."
        ) from error


def module_of(name: str) -> str:
    """Return the module in a dotted name that `named` has found.

    >>> module_of("json.decoder.JSONDecoder.decode")
    'json.decoder'
    """
    parts = name.replace(":", ".").split(".")
    while len(parts) > 1 and ".".join(parts) not in sys.modules:
        parts.pop()
    return ".".join(parts)


def _checked_weights(weights: Sequence[float] | None, names: Sequence[str]) -> list[float]:
    if weights is None:
        return [1.0] * len(names)
    if len(weights) != len(names):
        raise ValueError(
            f"Expected reward.weights to have a weight for each of {', '.join(names)}, but got {list(weights)}. "
            "Correct reward.weights."
        )
    for weight in weights:
        if not math.isfinite(weight):
            raise ValueError(f"Expected reward.weights to be numbers, but got {list(weights)}. Correct them.")
    return [float(weight) for weight in weights]


def _labels(names: Sequence[str]) -> list[str]:
    """Return a short name for each function, for logging: unique, and without the module if possible.

    >>> _labels(["a.right", "b.length", "c.length", "c.length"])
    ['right', 'b.length', 'c.length', 'c.length_2']
    """
    short = [name.rpartition(".")[2] for name in names]
    seen: Counter[str] = Counter()
    labels: list[str] = []
    for name, last in zip(names, short, strict=True):
        label = last if short.count(last) == 1 else name
        seen[label] += 1
        labels.append(label if seen[label] == 1 else f"{label}_{seen[label]}")
    return labels


def _name_of(function: Any) -> str:
    """Return the name of a function for messages, with its module."""
    bare = function.func if isinstance(function, partial) else function
    name = getattr(bare, "__qualname__", None) or getattr(bare, "__name__", type(bare).__name__)
    module = getattr(bare, "__module__", "")
    return f"{module}.{name}".removeprefix(".")


def _as_list(returned: Any) -> Any:
    """Return ordered values as a list, and anything else as it is, for the error."""
    if isinstance(returned, Tensor | np.ndarray):
        return returned.tolist() if returned.ndim == 1 else returned
    ordered = isinstance(returned, Iterable) and not isinstance(returned, str | bytes | Mapping | Set)
    return list(returned) if ordered else returned


def _as_written(answers: tuple[str, ...]) -> str | list[str]:
    """Return one answer as a text, several as a list, as a file writes them."""
    return answers[0] if len(answers) == 1 else list(answers)


def _place(row: int, ids: Sequence[str]) -> str:
    return f"response {row} to question {ids[row]!r}" if ids else f"response {row}"


def _questions(ids: Sequence[str]) -> str:
    shown = list(dict.fromkeys(ids))
    kind = "question" if len(shown) == 1 else "questions"
    return f"{kind} {', '.join(map(repr, shown[:3]))}{', …' if len(shown) > 3 else ''}"


def _ignore(*_: Any, **__: Any) -> None:
    """Do nothing: `log_extra` and `log_metric` of TRL."""
