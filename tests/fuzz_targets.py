"""Readers of texts and files of strangers, as functions that must not raise: for test_fuzz.py and scripts/fuzz.py."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path


def extraction(data: bytes) -> None:
    """Answers of responses and their normal forms."""
    from tagrpo.rewards import canonical
    from tagrpo.rewards import extraction as module

    text = data.decode("utf-8", "replace")
    answer = module.extract_answer(text)
    assert answer is None or answer in text
    assert module.extract_reference(text) is None or module.extract_reference(text) in text
    for part in (text, answer or ""):
        normal = canonical.normalize_answer(part)
        assert normal == normal.lstrip().rstrip(" .,")
        value = canonical.exact_value(normal)
        assert value is None or canonical.exact_value(str(value)) == value
        number = canonical.canonical_number(part)
        assert number is None or canonical.canonical_number(number) == number


@cache
def verifiers() -> tuple[tuple[Callable, str | tuple[str, ...]], ...]:
    """Every verifier that judges in the process itself, with a reference."""
    from tagrpo.lab.tasks.countdown import CountdownReward
    from tagrpo.lab.tasks.shortest_path import ShortestPathReward
    from tagrpo.rewards import FinalAnswerReward, MultipleChoiceReward

    return (
        (MultipleChoiceReward(), "B"),
        (FinalAnswerReward(), "27"),
        (CountdownReward(), "( 9 - 3 ) * 4"),
        (ShortestPathReward(), ("right down", "down right")),
    )


def verdicts(data: bytes) -> None:
    """Verdicts of all verifiers that judge in the process itself, and format rewards."""
    from tagrpo.rewards.terms import MARKERS, format_reward

    text = data.decode("utf-8", "replace")
    for verifier, reference in verifiers():
        score = verifier(text, reference)
        assert score.failure is None
        assert not score.correct or score.answer
    assert all(0 <= format_reward(text, markers) <= 1 for markers in MARKERS.values())


def forms(data: bytes) -> None:
    """Canonical forms of answers, and plans of their comparison with some references."""
    from tagrpo.rewards.comparison import compare_forms
    from tagrpo.rewards.reading import read_answer

    text = data.decode("utf-8", "replace")[:1000]
    form = read_answer(text)
    assert compare_forms(form, read_answer(text)) is not False
    assert isinstance(str(form), str)
    for reference in (
        "4",
        "6m",
        r"\frac{1}{2}",
        "1, 2",
        "(3,4)",
        "4210_5",
        "x=5",
        "B",
        r"5\text{ cm}",
        "[1,2)",
        "x^2+1",
    ):
        one, other = compare_forms(read_answer(reference), form), compare_forms(form, read_answer(reference))
        json.dumps([one, other])


def replies(data: bytes) -> None:
    """Replies of an API."""
    from tagrpo.rephrasing.calls import read_reply

    reply = read_reply(data.decode("utf-8", "replace"))
    assert bool(reply.text) != bool(reply.fault)
    json.dumps([reply.text, reply.fault, reply.model]).encode()
    (reply.text + reply.model).encode()
    assert all(0 <= count < 2**53 for count in reply.usage)


@cache
def torch_file() -> Mapping[str, bytes]:
    """Records of a small file of `torch.save`."""
    import torch

    buffer = io.BytesIO()
    torch.save({"weight": torch.arange(3.0), "step": 2, "names": ["a"]}, buffer)
    with zipfile.ZipFile(buffer) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def checkpoints(data: bytes) -> None:
    """Checkpoints: damaged ones, and those of strangers, whose checksums are right."""
    from tagrpo.runs.checkpoints import DamagedFileError, check

    path = Path(f"/dev/shm/fuzz-{os.getpid()}.ckpt")
    if data[:1] == b"F":
        path.write_bytes(data[1:])
    else:
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in torch_file().items():
                archive.writestr(name, data if name.endswith("data.pkl") else content)
    try:
        check(path)
    except (DamagedFileError, pickle.UnpicklingError):
        pass
    finally:
        path.unlink()


TARGETS = {function.__name__: function for function in (extraction, verdicts, forms, replies, checkpoints)}


def seeds(target: str) -> list[bytes]:
    """Inputs to begin with."""
    if target == "checkpoints":
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, content in torch_file().items():
                archive.writestr(name, content)
        pickled = next(content for name, content in torch_file().items() if name.endswith("data.pkl"))
        return [b"F" + buffer.getvalue(), pickled]
    if target == "replies":
        choice = {"message": {"content": "<think>a</think> b \ud83d"}, "finish_reason": "length"}
        usage = {"prompt_tokens": 1, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}
        return [json.dumps({"id": "x", "model": "m", "choices": [choice], "usage": usage}).encode()]
    if target == "forms":
        lines = Path(__file__).parent.joinpath("rewards", "pairs.jsonl").read_text().splitlines()
        return [json.loads(line)["answer"].encode() for line in lines[::5]]
    return [
        rb"so \boxed{\text{(B)}}, or $\dfrac{1}{2}$ #### 1,234.50", b"**Answer:** $\\mathrm{B}$. The answer is 27.",
        b"4 * ( 9 - 3 )", b"right down", b"<think>\n1\n</think>\n<answer>\n2\n</answer>",
    ]  # fmt: skip
