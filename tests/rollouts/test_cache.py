"""Rollouts on disk: what is found again is what was kept, and nothing else is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from enum import Enum
from fractions import Fraction
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tagrpo.rollouts import SamplingConfig
from tagrpo.rollouts.cache import RolloutCache, cache_key, packed, unpacked, weights_digest
from tagrpo.types import Completion, Score

COMPLETIONS = [
    [
        Completion(token_ids=torch.tensor([5, 6, 2]), logprobs=torch.tensor([-0.1, -0.25, -1e-8]), truncated=False),
        Completion(token_ids=torch.tensor([151_935]), logprobs=torch.tensor([-12.5]), truncated=True),
    ],
    [],
    [Completion(token_ids=torch.tensor([7, 2]), logprobs=torch.tensor([-3.0, -0.5]), truncated=False)],
]
SCORES = [Score(True, "12"), Score(False, None, "timeout"), Score(False, "½")]


def test_responses_and_scores_come_back_as_they_were(tmp_path):
    cache = RolloutCache(tmp_path / "cache")
    cache.keep_completions((3, 1), "x", COMPLETIONS)
    cache.keep_scores((3, 1), "y", SCORES)
    found = RolloutCache(tmp_path / "cache").completions((3, 1), "x")
    assert [len(samples) for samples in found] == [2, 0, 1]
    for a, b in zip(sum(found, []), sum(COMPLETIONS, []), strict=True):
        assert torch.equal(a.token_ids, b.token_ids)
        assert a.token_ids.dtype == torch.long
        assert torch.equal(a.logprobs, b.logprobs)
        assert a.truncated is b.truncated
    assert cache.scores((3, 1), "y") == SCORES
    assert all(isinstance(score, Score) for score in cache.scores((3, 1), "y"))


def test_a_rank_without_prompts_keeps_nothing_and_finds_it(tmp_path):
    cache = RolloutCache(tmp_path)
    cache.keep_completions((0, 0), "x", [])
    assert cache.completions((0, 0), "x") == []


def test_what_has_another_key_or_position_is_not_found(tmp_path):
    cache = RolloutCache(tmp_path)
    cache.keep_completions((3, 0), "x", COMPLETIONS)
    assert cache.completions((3, 0), "other weights") is None
    assert cache.completions((3, 1), "x") is None
    assert cache.completions((4, 0), "x") is None
    assert cache.scores((3, 0), "x") is None


@pytest.mark.parametrize("content", [b"", b"half a file", None])
def test_a_damaged_file_counts_as_absent(content, tmp_path):
    cache = RolloutCache(tmp_path)
    cache.keep_completions((3, 0), "x", COMPLETIONS)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-40] if content is None else content)
    with pytest.warns(UserWarning, match="Passed over the kept rollouts .*000003-0-0.completions.pt"):
        assert cache.completions((3, 0), "x") is None


def test_no_bit_of_a_file_can_flip_and_change_what_is_found(tmp_path):
    cache = RolloutCache(tmp_path)
    cache.keep_scores((3, 0), "x", SCORES)
    (path,) = tmp_path.iterdir()
    whole, found = path.read_bytes(), []
    for place in range(0, len(whole), 7):
        content = bytearray(whole)
        content[place] ^= 1 << place % 8
        path.write_bytes(content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            found.append(cache.scores((3, 0), "x"))
    assert {str(scores) for scores in found} == {str(SCORES), "None"}, "bits between the records mean nothing"
    assert found.count(None) > len(found) // 2


def test_a_disk_that_can_not_be_read_costs_a_generation(tmp_path):
    cache = RolloutCache(tmp_path)
    (tmp_path / "000003-0-0.scores.pt").mkdir()  # reading it is an error of the system
    with pytest.warns(UserWarning, match="IsADirectoryError"):
        assert cache.scores((3, 0), "x") is None


def test_only_what_a_checkpoint_covers_is_deleted(tmp_path):
    cache = RolloutCache(tmp_path)
    for iteration in (8, 9, 10, 100):
        cache.keep_completions((iteration, 0), "x", COMPLETIONS)
        cache.keep_scores((iteration, 0), "x", SCORES)
    other_rank = tmp_path / "000008-0-1.completions.pt"
    other_rank.write_bytes(b"")
    killed_while_writing = tmp_path / ".partial-000009-1-0.scores.pt"
    killed_while_writing.write_bytes(b"")
    cache.prune(10)
    assert not killed_while_writing.exists()
    assert sorted({path.name.split("-")[0] for path in tmp_path.glob("*-0-0.*")}) == ["000010", "000100"]
    assert other_rank.exists()


def test_a_disk_that_refuses_costs_a_warning_and_no_training(tmp_path):
    cache = RolloutCache(tmp_path)
    (tmp_path / "000000-0-0.completions.pt").mkdir()  # nothing can take the name of a folder, whoever runs this
    with pytest.warns(UserWarning, match="Could not keep rollouts"):
        cache.keep_completions((0, 0), "x", COMPLETIONS)
    assert [path.name for path in tmp_path.iterdir()] == ["000000-0-0.completions.pt"]


class Verifier:
    def __init__(self, tolerance: float) -> None:
        self.tolerance = tolerance
        self._pool = object()


def test_cache_keys_tell_apart_what_matters():
    prompts = [torch.tensor([1, 2]), torch.tensor([3])]
    base = cache_key("w", 7, prompts, [2, 2], SamplingConfig(max_new_tokens=4))
    assert base == cache_key("w", 7, [p.clone() for p in prompts], [2, 2], SamplingConfig(max_new_tokens=4))
    others = [
        cache_key("v", 7, prompts, [2, 2], SamplingConfig(max_new_tokens=4)),
        cache_key("w", 8, prompts, [2, 2], SamplingConfig(max_new_tokens=4)),
        cache_key("w", 7, [torch.tensor([1]), torch.tensor([2, 3])], [2, 2], SamplingConfig(max_new_tokens=4)),
        cache_key("w", 7, prompts, [2, 3], SamplingConfig(max_new_tokens=4)),
        cache_key("w", 7, prompts, [2, 2], SamplingConfig(max_new_tokens=5)),
    ]
    assert len({base, *others}) == 6
    assert cache_key(Verifier(0.1)) == cache_key(Verifier(0.1))
    assert cache_key(Verifier(0.1)) != cache_key(Verifier(0.2))
    assert cache_key(len) != cache_key(sorted)


def test_settings_count_where_a_representation_hides_them():
    class Quiet(Verifier):
        def __repr__(self) -> str:
            return "Quiet()"

    assert cache_key(Quiet(0.1)) != cache_key(Quiet(0.2))


class Mode(Enum):
    STRICT = 1
    LOOSE = 2


class Holder:
    def __init__(self, part: object) -> None:
        self.part = part


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([], {}),
        ({"a": 1, "b": 2}, {"a": 2, "b": 1}),
        ({"a"}, {"b"}),
        (1, True),
        (("a", "b"), ("ab",)),
        (Path("a"), Path("b")),
        (Fraction(1, 2), Fraction(1, 3)),
        (Mode.STRICT, Mode.LOOSE),
        (partial(int, base=2), partial(int, base=8)),
        (re.compile("a"), re.compile("b")),
        (torch.zeros(2), torch.zeros(2, 1)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
    ],
    ids=str,
)
def test_values_and_objects_that_hold_them_differ_where_their_keys_do(one, other):
    for wrapped in (lambda value: value, lambda value: [value], Holder, lambda value: Holder(Holder(value))):
        assert cache_key(wrapped(one)) == cache_key(wrapped(one))
        assert cache_key(wrapped(one)) != cache_key(wrapped(other))


def test_a_cache_key_is_the_same_in_another_process_and_whatever_the_order():
    program = (
        "from tagrpo.rollouts.cache import cache_key; import torch; "
        "print(cache_key({'b': {'x', 'y', 'z'}, 'a': 1}, torch.arange(3)))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment
    ).stdout.strip()
    assert found == cache_key({"a": 1, "b": {"z", "y", "x"}}, torch.arange(3))


def test_an_object_that_holds_itself_has_a_key():
    holder = Holder(None)
    holder.part = holder
    assert cache_key(holder) == cache_key(holder)


def test_one_bit_of_one_weight_makes_another_digest():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2).bfloat16())
    before = weights_digest(module)
    assert weights_digest(module) == before
    for parameter in module.parameters():
        old = parameter.detach().clone()
        with torch.no_grad():
            parameter.view(-1)[0] = torch.nextafter(parameter.view(-1)[0], torch.tensor(9.0).to(parameter.dtype))
        assert weights_digest(module) != before
        with torch.no_grad():
            parameter.copy_(old)
    assert weights_digest(module) == before


RESPONSES = st.lists(st.lists(st.tuples(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=4), st.booleans())))


@given(RESPONSES, st.randoms())
def test_any_responses_come_back_bit_for_bit(responses, random):
    completions = [
        [
            Completion(
                token_ids=torch.tensor(ids), logprobs=torch.tensor([random.uniform(-99, 0) for _ in ids]), truncated=cut
            )
            for ids, cut in samples
        ]
        for samples in responses
    ]
    assert cache_key(unpacked(packed(completions))) == cache_key(completions)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(PLAIN, PLAIN)
def test_keys_are_the_same_for_what_is_written_alike_and_others_for_the_rest(one, other):
    def described(value):
        if isinstance(value, dict):
            return sorted((key, described(item)) for key, item in value.items()), "dict"
        return ([described(item) for item in value], "list") if isinstance(value, list) else repr(value)

    assert (cache_key(one) == cache_key(other)) == (described(one) == described(other))
    if isinstance(one, dict):
        assert cache_key(dict(reversed(one.items()))) == cache_key(one)
