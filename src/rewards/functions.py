"""Reward functions with the signature of TRL's.

A function gets the responses to a prompt and returns a number for each: `fn(prompts, completions,
**columns)`. Differences from TRL's `GRPOTrainer`:

- A function is called once for each prompt, with all sampled responses to it, not once for a batch.
- It gets only the arguments that its signature names.
- NaN is refused, and None is accepted.
- `trainer_state` has only `global_step`.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any, Self

from torch import Tensor

from ..types import LARGEST_REWARD, NO_REWARD, Prompt, PromptVerifier, QuestionGroup, Score
from .canonical import Reference, normalize_answer
from .checked_function import (
    OF_QUESTION,
    OF_TRAINER,
    SETTING,
    CheckedFunction,
    EventLoop,
    RewardFunction,
    Values,
    place_of,
)  # fmt: skip
from .extraction import extract_answer

OF_PROMPT = ("prompts", "completions", "completion_ids")
"""Arguments taken from a prompt and its responses."""
NEVER_COLUMNS = (*OF_PROMPT, *OF_TRAINER, "prompt", "completion")
"""Names in a row that are not passed as columns, as in TRL."""
ROUNDING = 1e-9
"""Tolerance for weighted sums of rewards outside [0, 1] due to rounding."""


class FunctionReward(PromptVerifier):
    """Verifier whose reward is a weighted sum of functions. Rewards above a threshold count as correct.

    A function is called with keyword arguments, each a list with one entry for each of n responses to a prompt:

    - `prompts`: texts; lists of messages if the template makes a conversation.
    - `completions`: responses with their thoughts; lists of one message of the assistant in a conversation.
    - `completion_ids`: lists of token ids.
    - `answer`: the reference answer, a list of texts if the question has several; `question` and `id`.
    - every other column of the question's row. A column that the row lacks, but another row has, is None.

    `trainer_state.global_step` is the number of optimizer steps. Functions get the arguments that they name;
    functions with `**columns` get all of them.

    A function returns n numbers. None instead of a number means that the function does not apply to the
    response; the sum then leaves the function out. If no function applies, the response counts as wrong
    (`NO_REWARD`), and its reward is the mean reward of the other responses to the question. Thus the response
    does not change the baseline, and its advantage is zero, as in TRL.

    `Score.reward` is the sum. `Score.correct`, which pass@k counts, is true if the sum is above
    `correct_above`. `Score.answer`, for votes, is the final answer (`extract_answer`).

    Asynchronous functions (`async def`) run while other responses are sampled, for all prompts at the same
    time. With `workers`, other functions also run during sampling, in threads.

    Args:
        target: Function, or name such as `my_rewards.fn`; or a list of functions or names. A module may be in
            the current directory.
        weights: Weight of each function; None gives each function the weight 1.
        correct_above: Reward above which a response is correct. None means 0.5 and requires rewards in [0,
            1].
        columns: Argument → column that the argument gets, such as `{"solution": "answer"}`.
        workers: Number of threads that call functions while other responses are sampled. Above 1, functions
            must be thread-safe. None calls functions after sampling, in the calling thread.

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
        self._functions = [CheckedFunction(each, dict(columns or {})) for each in targets]
        self.weights = _checked_weights(weights, [function.name for function in self._functions])
        self._labels = _labels([function.name for function in self._functions])
        self.correct_above = correct_above
        self.workers = workers
        self.in_background = workers is not None or any(function.is_async for function in self._functions)
        self._settings = (target, weights, correct_above, columns, workers)
        self._known: dict[str, None] = {}  # columns of the rows that were checked
        self._threads: ThreadPoolExecutor | None = None
        self._loop: EventLoop | None = None
        self._lock = threading.Lock()  # guards the two

    def check_questions(self, groups: Sequence[QuestionGroup]) -> None:
        """Check that the rows of a split have the columns that the functions need.

        Raises:
            ValueError: if a column is in no row; the message names function and column.
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
            step: Number of optimizer steps so far, which functions get as `trainer_state.global_step`.
            columns: Other arguments of the functions, such as `prompts` and `answer`, each [n].

        Raises:
            TypeError: if a function returns anything other than numbers and None.
            ValueError: if a function lacks an argument or returns a wrong number of rewards; or if a reward
                is outside [0, 1] without `correct_above`.
            FloatingPointError: if a reward is NaN, infinite or too large.
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
        """Score one response. Functions get no prompt, and no column but `answer`."""
        return self.score_batch([response], [reference])[0]

    def score_batch(self, responses: Sequence[str], references: Sequence[Reference]) -> list[Score]:
        """Score responses. Functions get no prompts, and no column but `answer`."""
        answers = [each if isinstance(each, str) else _as_written(tuple(each)) for each in references]
        return self.score(responses, answer=answers)

    def _start(
        self, columns: dict[str, list[Any]], texts: Sequence[str], ids: Sequence[str], step: int
    ) -> Callable[[], list[Score]]:
        """Start all functions, and return a function that waits for the scores.

        Args:
            columns: Argument → its [n] values.
            texts: [n] responses.
            ids: [n] ids of the questions, for errors.
            step: Number of optimizer steps.
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
        self, function: CheckedFunction, arguments: dict[str, Any], ids: Sequence[str]
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

    def _loop_of_functions(self) -> EventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = EventLoop()
            return self._loop

    def _score(self, row: int, text: str, ids: Sequence[str], found: Sequence[Values]) -> Score:
        """Return the score of the response in a row, given the values of all functions for all responses."""
        answer = extract_answer(text)
        answer = None if answer is None else normalize_answer(answer)
        parts: list[tuple[str, float]] = []
        reward = 0.0
        for label, weight, values in zip(self._labels, self.weights, found, strict=True):
            value = values[row]
            if value is not None:
                parts.append((label, value))
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
                    f"returned {reward:g} for {place_of(row, ids)}. Set reward.correct_above to the reward above "
                    "which a response is correct, such as reward.correct_above=0.5."
                )
        if not abs(reward) <= LARGEST_REWARD:
            raise FloatingPointError(
                f"Expected the weighted reward to be at most {LARGEST_REWARD:g} in absolute value, but got "
                f"{reward:g} for {place_of(row, ids)}. Lower reward.weights."
            )
        several = len(self._functions) > 1
        return Score(reward > threshold, answer, reward=reward, parts=parts if several else ())

    def close(self) -> None:
        """Cancel functions that run in the background. The next call starts new threads."""
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
    """Return a short, unique name for each function, for logging, without the module if possible.

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


def _as_written(answers: tuple[str, ...]) -> str | list[str]:
    """Return a single answer as a text, and several answers as a list, as files write them."""
    return answers[0] if len(answers) == 1 else list(answers)


def _ignore(*_: Any, **__: Any) -> None:
    """Do nothing. Stands for TRL's `log_extra` and `log_metric`."""
