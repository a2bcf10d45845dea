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
    from tagrpo.rewards.response import split_response

    text = data.decode("utf-8", "replace")
    answer = module.extract_answer(text)
    rest = iter(split_response(text).answer)
    # Formulas of one statement are put together with commas; nothing else is added, and nothing moved.
    assert all(character in rest for character in answer or "" if character not in ", ")
    assert all(reference in text for reference in module.extract_reference(text))
    for part in (text, answer or ""):
        normal = canonical.normalize_answer(part)
        assert normal == normal.lstrip().rstrip(" .,")
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
    """Replies of an API: a completion, an error, and what a judge says."""
    from tagrpo.rephrasing.calls import read_reply
    from tagrpo.rephrasing.errors import NoCompletionError, read_error
    from tagrpo.rephrasing.rephraser import read_judgement, read_rephrasings

    body = data.decode("utf-8", "replace")
    error = read_error(body)
    assert error.message
    said, refusal = [body], error.message + error.code + error.parameter
    try:
        reply = read_reply(body)
    except NoCompletionError as refused:
        refusal += str(refused)
    else:
        assert bool(reply.text) != bool(reply.fault)
        assert reply.fault.isprintable()
        json.dumps([reply.text, reply.fault, reply.model]).encode()
        (reply.text + reply.model).encode()
        assert all(0 <= count < 2**53 for count in reply.usage)
        said.append(reply.text)
    assert refusal.isprintable()
    for text in said:
        assert all(wording and wording in text for wording in read_rephrasings(text))
        equivalent, reason = read_judgement(text)
        lines = [line for line in text.splitlines() if line.strip()]
        assert not equivalent or "equivalent" in (lines[-1].lower() if lines[-1][-1:] != "}" else text)
        assert len(reason) <= 300


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
    from tagrpo.runs.checkpoints import DamagedFileError, check_checkpoint

    path = Path(f"/dev/shm/fuzz-{os.getpid()}.ckpt")
    if data[:1] == b"F":
        path.write_bytes(data[1:])
    else:
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in torch_file().items():
                archive.writestr(name, data if name.endswith("data.pkl") else content)
    try:
        check_checkpoint(path)
    except (DamagedFileError, pickle.UnpicklingError):
        pass
    finally:
        path.unlink()


def counts(data: bytes) -> None:
    """Lines of counts of an evaluation: of a right checksum if they begin with S, else as they are."""
    from tagrpo.callbacks.counts import read_line, seal_of
    from tagrpo.foreign import ForeignDataError
    from tagrpo.metrics.evaluation import merge_counts, summarise

    line = data
    if data[:1] == b"S":
        text = data[1:].decode("utf-8", "replace")
        line = f"{seal_of(text, 'fuzz')}\t{text}".encode()
    try:
        record = read_line(line, "fuzz", "fuzz.counts")
    except ForeignDataError as error:
        str(error).encode()
        return
    (questions,) = merge_counts([record]).values()
    report = summarise(questions, [1, 2])
    assert 0 <= report["majority"] <= 1
    assert all(0 <= point["value"] <= 1 for point in report["pass_at_k"].values())
    json.dumps([record["split"], record["id"]]).encode()


def read_or_refused(reader: Callable, *arguments: object) -> object:
    """What `reader` makes of the arguments; None if it refuses them with the error of the boundary."""
    from tagrpo.foreign import ForeignDataError

    try:
        return reader(*arguments)
    except ForeignDataError as error:
        message = str(error)
    assert message.isprintable()
    return None


def servers(data: bytes) -> None:
    """Replies of a vLLM server on every route that is read: responses, or the error of the boundary."""
    from tagrpo.foreign import read_json
    from tagrpo.rollouts.servers import server_replies as module

    asked = module.Asked(
        num_samples=2, max_new_tokens=3, vocabulary=60, stop_ids=[2], version="v", random=True
    )
    completions = read_or_refused(module.read_generated, data, asked, "a server")
    if completions is not None:
        assert len(completions) == 2
        for sample in completions:
            ids, logprobs = sample.token_ids.tolist(), sample.logprobs.tolist()
            assert 1 <= len(ids) == len(logprobs) <= 3
            assert all(0 <= token < 60 for token in ids)
            assert all(-float("inf") < value <= 2 * module.ROUNDING for value in logprobs)
            assert sample.truncated or ids[-1] == 2
    for kind in (module.WeightInfo, module.Models):
        read_or_refused(lambda kind=kind: read_json(kind, data, source="a server", remedy=module.REMEDY))


def tasksets(data: bytes) -> None:
    """Lines of the program that runs a stranger's taskset, the data of its tasks, and outcomes of its rewards."""
    from tagrpo.lab.tasks import verifiers as module
    from tagrpo.rewards.workers import read_outcomes

    line = read_or_refused(module.read_line, data, "a line")
    facts = read_or_refused(module.read_data, line.data, "a task") if line and line.data else None
    if facts is not None:
        assert facts.idx >= 0
        json.dumps([facts.id, facts.name, line.question]).encode()
        line.question.encode()
    for value, failure in read_or_refused(read_outcomes, data, 1, "a taskset", "Set data.environment.") or ():
        assert failure is None or isinstance(failure, str)
        json.dumps(value)


_ALL = (extraction, verdicts, forms, replies, checkpoints, counts, servers, tasksets)
TARGETS = {function.__name__: function for function in _ALL}


def seeds(target: str) -> list[bytes]:
    """Inputs to begin with."""
    if target == "checkpoints":
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, content in torch_file().items():
                archive.writestr(name, content)
        pickled = next(content for name, content in torch_file().items() if name.endswith("data.pkl"))
        return [b"F" + buffer.getvalue(), pickled]
    if target == "counts":
        content = {
            "metadata": {"level": 2}, "n": 4, "correct": 1, "right": ["7"], "wrong": {"8": 2}, "tokens": 36,
            "truncated": 0,
        }  # fmt: skip
        text = json.dumps({"split": "test", "id": "q", "counts": content})
        return [b"S" + text.encode(), b"00000000\t" + text.encode()]
    if target == "servers":
        entries = [{"token_id": token, "logprob": -0.5} for token in (30, 10, 2)]
        spans = [{"version": "v", "start": 0, "end": 3}]
        choice = {"token_ids": [30, 10, 2], "logprobs": {"content": entries}, "finish_reason": "stop"}
        good = {"choices": [{**choice, "weight_versions": spans, "index": index} for index in range(2)]}
        others = ({"weight_version": "v"}, {"data": [{"max_model_len": 100}]})
        return [json.dumps(reply).encode() for reply in (good, *others)]
    if target == "tasksets":
        task = {"question": "q", "data": json.dumps({"idx": 0, "id": "a", "name": "b", "answer": "4"})}
        outcomes = [{"value": 1.0, "failure": None}]
        return [json.dumps(line).encode() for line in (task, {"end": 1}, {"refused": "no"}, outcomes)]
    if target == "replies":
        choice = {"message": {"content": "<think>a</think> b \ud83d"}, "finish_reason": "length"}
        usage = {"prompt_tokens": 1, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}
        parts = [
            {"type": "text", "text": "<rephrasing>Add 1.</rephrasing>"},
            {"type": "thinking", "thinking": []},
        ]
        rich = {"message": {"content": parts, "refusal": None, "tool_calls": []}, "finish_reason": "stop"}
        failed = {"finish_reason": "error", "error": {"code": 429, "message": "slow", "param": "max_tokens"}}
        return [
            json.dumps({"id": "x", "model": "m", "choices": [choice], "usage": usage}).encode(),
            json.dumps({"choices": [rich], "error": None}).encode(),
            json.dumps([{"error": {"errors": [failed]}, "choices": [failed]}]).encode(),
            json.dumps({"detail": [{"loc": ["body", "top_k"], "msg": "no", "type": "int_parsing"}]}).encode(),
            b"The order differs.\n**EQUIVALENT:** yes",
            b'{"equivalent": true, "reason": "ok"}',
        ]
        return [json.dumps({"id": "x", "model": "m", "choices": [choice], "usage": usage}).encode()]
    if target == "forms":
        lines = Path(__file__).parent.joinpath("rewards", "pairs.jsonl").read_text().splitlines()
        return [json.loads(line)["answer"].encode() for line in lines[::5]]
    return [
        rb"so \boxed{\text{(B)}}, or $\dfrac{1}{2}$ #### 1,234.50", b"**Answer:** $\\mathrm{B}$. The answer is 27.",
        b"4 * ( 9 - 3 )", b"right down", b"<think>\n1\n</think>\n<answer>\n2\n</answer>",
    ]  # fmt: skip
