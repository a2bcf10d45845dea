"""Checks of what users' strategies, losses, reward terms, verifiers, credits and reformulators return.

Each error is one sentence that names the part's class and setting, what was expected and what was found.
"""

import reprlib
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from ..foreign import printable


class EndOfRun(SystemExit):
    """Exit of a run that was asked to stop, raised by an engine that is waiting; `own_code` lets it pass."""


def found(value: object) -> str:
    """Describe a value for an error message.

    A tensor is described by dtype, shape and device, any other value by the start of its `repr` and its type.

    >>> found(torch.zeros(2, 3)), found(1.5), found(None)
    ('float32 [2, 3] on cpu', '1.5 (float)', 'None')
    """
    if isinstance(value, Tensor) and value.is_nested:
        return f"a nested {dtype_name(value.dtype)} tensor on {value.device}"
    if isinstance(value, Tensor):
        return f"{dtype_name(value.dtype)} {list(value.shape)} on {value.device}"
    if value is None:
        return "None"
    try:
        text = reprlib.repr(value)
    except Exception:  # integers of thousands of digits, foreign __repr__
        text = "…"
    return f"{printable(text)} ({type(value).__name__})"


def name_of(part: object) -> str:
    """Return the name of a part's class, or of a function.

    >>> name_of([]), name_of(len)
    ('list', 'len')
    """
    return str(getattr(part, "__name__", type(part).__name__))


@contextmanager
def own_code(part: object, setting: str) -> Iterator[None]:
    """Turn a SystemExit or StopIteration that `part` raises into an error, since both would pass silently.

    A SystemExit would end the run with exit code 0. A StopIteration, which `next` raises for an empty
    iterator, would end the epoch: Lightning takes it for the end of the data.

    Raises:
        RuntimeError: if the block has called `sys.exit`, or raised StopIteration.
    """
    try:
        yield
    except EndOfRun:
        raise
    except SystemExit as error:
        raise RuntimeError(
            f"Expected {name_of(part)} ({setting}) to return or raise an error, but it called sys.exit({error.code!r})."
        ) from error
    except StopIteration:
        raise RuntimeError(
            f"Expected {name_of(part)} ({setting}) to return or raise another error, but it raised "
            "StopIteration, as `next` does for an empty iterator. Give `next` a default."
        ) from None  # contextlib would pass the StopIteration on if it were the cause


def check_column(value: object, size: int, part: object, setting: str, what: str = "") -> Tensor:
    """Check that a part has returned a finite number for each of `size` rows, and return these as float32.

    Args:
        value: What the part returned.
        size: Expected number of rows.
        part: The part, which errors name by its class.
        setting: The setting that chooses the part.
        what: Name of the value, such as `advantages`, if the part returns several values; otherwise empty.

    Raises:
        TypeError: if `value` is not a dense tensor of real numbers.
        ValueError: if the tensor's shape is not [size], or the tensor is not on the CPU.
        FloatingPointError: if a number is not finite, or too large for float32.
    """
    expected = f"Expected {name_of(part)} ({setting}) to return {what + ' as ' if what else ''}"
    if (
        not isinstance(value, Tensor)
        or value.is_complex()
        or value.is_nested
        or value.layout != torch.strided
    ):
        raise TypeError(f"{expected}a float tensor of shape [{size}], but got {found(value)}.")
    if value.shape != (size,) or value.device.type != "cpu":
        raise ValueError(f"{expected}a float tensor of shape [{size}] on cpu, but got {found(value)}.")
    column = value.detach().float()
    others = int((~column.isfinite()).sum())
    if others:
        raise FloatingPointError(
            f"{expected}finite numbers, but {others} of {size} are not: {reprlib.repr(value.tolist())}."
        )
    return column


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype without `torch.`, such as `float32`."""
    return str(dtype).removeprefix("torch.")


def float_dtype(name: str, setting: str) -> torch.dtype:
    """Return the floating-point dtype of a name such as `bfloat16`.

    Raises:
        ValueError: if `name` is not a floating-point dtype; the message names the `setting`.

    >>> float_dtype("bfloat16", "rollout.engine.dtype")
    torch.bfloat16
    """
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ValueError(
            f"Expected {setting} to be a floating-point type of torch, such as bfloat16 or float32, but got "
            f"{found(name)}. Correct {setting}."
        )
    return dtype


def exit_of(error: SystemExit) -> str:
    """Return a clause that says where `sys.exit` was called, for an error message."""
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    return f"sys.exit({error.code!r}) was called in {frame.f_code.co_filename}, line {line}"


def check_choice(name: str, value: str, known: Sequence[str], group: str = "advantage") -> None:
    """Raise a ValueError if the option `name` of `group` has a value that is not one of `known`."""
    if value not in known:
        raise ValueError(f"Expected {group}.{name} to be one of {', '.join(known)}, but got {value!r}.")
