"""Rollouts on disk: what is found again is what was kept, and nothing else is."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from dataclasses import replace
from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tagrpo.rollouts import SamplingConfig
from tagrpo.rollouts.cache import RolloutCache, packed, request_key, unpacked
from tagrpo.types import Completion, Request

COMPLETIONS = [
    [
        Completion(
            token_ids=torch.tensor([5, 6, 2]), logprobs=torch.tensor([-0.1, -0.25, -1e-8]), truncated=False
        ),
        Completion(token_ids=torch.tensor([151_935]), logprobs=torch.tensor([-12.5]), truncated=True),
    ],
    [],
    [Completion(token_ids=torch.tensor([7, 2]), logprobs=torch.tensor([-3.0, -0.5]), truncated=False)],
]


def test_responses_come_back_as_they_were(tmp_path):
    cache = RolloutCache(tmp_path / "cache")
    cache.keep((3, 1), "x", COMPLETIONS)
    found = RolloutCache(tmp_path / "cache").find((3, 1), "x")
    assert [len(samples) for samples in found] == [2, 0, 1]
    for a, b in zip(sum(found, []), sum(COMPLETIONS, []), strict=True):
        assert torch.equal(a.token_ids, b.token_ids)
        assert a.token_ids.dtype == torch.long
        assert torch.equal(a.logprobs, b.logprobs)
        assert a.truncated is b.truncated


def test_a_rank_without_prompts_keeps_nothing_and_finds_it(tmp_path):
    cache = RolloutCache(tmp_path)
    cache.keep((0, 0), "x", [])
    assert cache.find((0, 0), "x") == []


def test_what_has_another_key_or_position_is_not_found(tmp_path):
    cache = RolloutCache(tmp_path)
    cache.keep((3, 0), "x", COMPLETIONS)
    assert cache.find((3, 0), "other weights") is None
    assert cache.find((3, 1), "x") is None
    assert cache.find((4, 0), "x") is None


@pytest.mark.parametrize("content", [b"", b"half a file", None])
def test_a_damaged_file_counts_as_absent(content, tmp_path):
    cache = RolloutCache(tmp_path)
    cache.keep((3, 0), "x", COMPLETIONS)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-40] if content is None else content)
    with pytest.warns(UserWarning, match="000003-0-0.pt"):
        assert cache.find((3, 0), "x") is None


def test_no_bit_of_a_file_can_flip_and_change_what_is_found(tmp_path):
    cache = RolloutCache(tmp_path)
    cache.keep((3, 0), "x", COMPLETIONS)
    (path,) = tmp_path.iterdir()
    whole, found = path.read_bytes(), []
    for place in range(0, len(whole), 7):
        content = bytearray(whole)
        content[place] ^= 1 << place % 8
        path.write_bytes(content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            found.append(cache.find((3, 0), "x"))
    assert {str(completions) for completions in found} == {str(COMPLETIONS), "None"}, (
        "bits between the records mean nothing"
    )
    assert found.count(None) > len(found) // 2


def test_a_disk_that_can_not_be_read_costs_a_generation(tmp_path):
    cache = RolloutCache(tmp_path)
    (tmp_path / "000003-0-0.pt").mkdir()  # reading it is an error of the system
    with pytest.warns(UserWarning, match="IsADirectoryError"):
        assert cache.find((3, 0), "x") is None


def test_only_what_a_checkpoint_covers_is_deleted(tmp_path, monkeypatch):
    monkeypatch.setattr("tagrpo.rollouts.cache.world_size", lambda: 2)
    cache = RolloutCache(tmp_path)
    for iteration in (8, 9, 10, 100):
        cache.keep((iteration, 0), "x", COMPLETIONS)
    other_rank = tmp_path / "000008-0-1.pt"
    other_rank.write_bytes(b"")
    killed_while_writing = tmp_path / ".partial-000009-1-0.pt"
    killed_while_writing.write_bytes(b"")
    cache.prune(10)
    assert not killed_while_writing.exists()
    assert sorted({path.name.split("-")[0] for path in tmp_path.glob("*-0-0.*")}) == ["000010", "000100"]
    assert other_rank.exists()


def test_a_disk_that_refuses_costs_a_warning_and_no_training(tmp_path):
    cache = RolloutCache(tmp_path)
    (tmp_path / "000000-0-0.pt").mkdir()  # nothing can take the name of a folder, whoever runs this
    with pytest.warns(UserWarning, match=r"000000-0-0\.pt"):
        cache.keep((0, 0), "x", COMPLETIONS)
    assert [path.name for path in tmp_path.iterdir()] == ["000000-0-0.pt"]


def test_keys_of_requests_tell_apart_what_matters():
    prompts, sampling = [torch.tensor([1, 2]), torch.tensor([3])], SamplingConfig(max_new_tokens=4)
    base = Request(prompts, [2, 2], sampling, 7)
    assert request_key(base) == request_key(base._replace(prompts=[prompt.clone() for prompt in prompts]))
    others = [
        base._replace(seed=8),
        base._replace(prompts=[torch.tensor([1]), torch.tensor([2, 3])]),
        base._replace(num_samples=[2, 3]),
        *(
            base._replace(sampling=replace(sampling, **{name: 2}))
            for name in ("temperature", "top_k", "max_new_tokens")
        ),
        base._replace(sampling=replace(sampling, top_p=0.5)),
    ]
    assert len({request_key(request) for request in (base, *others)}) == 8


@pytest.mark.distributed
def test_a_key_is_the_same_in_another_process():
    program = (
        "import torch; from tagrpo.rollouts.cache import request_key; "
        "from tagrpo.types import Request, SamplingConfig; "
        "print(request_key(Request([torch.arange(3)], [2], SamplingConfig(), 1)))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment
    ).stdout.strip()
    assert found == request_key(Request([torch.arange(3)], [2], SamplingConfig(), 1))


RESPONSES = st.lists(
    st.lists(st.tuples(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=4), st.booleans()))
)


@given(RESPONSES, st.randoms())
def test_any_responses_come_back_bit_for_bit(responses, random):
    completions = [
        [
            Completion(
                token_ids=torch.tensor(ids),
                logprobs=torch.tensor([random.uniform(-99, 0) for _ in ids]),
                truncated=cut,
            )
            for ids, cut in samples
        ]
        for samples in responses
    ]
    found = unpacked(packed(completions))
    assert [len(samples) for samples in found] == [len(samples) for samples in completions]
    for ours, theirs in zip(chain(*found), chain(*completions), strict=True):
        assert torch.equal(ours.token_ids, theirs.token_ids)
        assert torch.equal(ours.logprobs, theirs.logprobs)
        assert ours.truncated == theirs.truncated


@pytest.mark.parametrize(
    ("own", "left"), [(0, {"000003-0-1.pt"}), (1, {"000001-0-0.pt", "000001-0-2.pt", "000001-0-11.pt"})]
)
def test_rank_0_deletes_what_ranks_that_are_no_more_have_left(own, left, tmp_path, monkeypatch):
    names = [
        "000001-0-0.pt",
        ".partial-000001-1-0.pt",
        "000001-0-2.pt",
        "000001-0-11.pt",
        "000003-0-1.pt",
        "000001-0-1.pt",
    ]
    for name in names:
        (tmp_path / name).touch()
    monkeypatch.setattr("tagrpo.rollouts.cache.rank", lambda: own)
    monkeypatch.setattr("tagrpo.rollouts.cache.world_size", lambda: 2)
    RolloutCache(tmp_path).prune(3)
    found = {path.name for path in tmp_path.iterdir()}
    assert found >= left | {"000003-0-1.pt"}
    gone = (
        {"000001-0-0.pt", ".partial-000001-1-0.pt", "000001-0-2.pt", "000001-0-11.pt"}
        if own == 0
        else {"000001-0-1.pt"}
    )
    assert found == set(names) - gone
