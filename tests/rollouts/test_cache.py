"""Rollouts on disk: what is found again is what was kept, and nothing else is."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tagrpo.rollouts import SamplingConfig
from tagrpo.rollouts.store import RolloutStore, digest, weights_digest
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


def test_responses_and_verdicts_come_back_as_they_were(tmp_path):
    store = RolloutStore(tmp_path / "store")
    store.keep_completions((3, 1), "x", COMPLETIONS)
    store.keep_scores((3, 1), "y", SCORES)
    found = RolloutStore(tmp_path / "store").completions((3, 1), "x")
    assert [len(samples) for samples in found] == [2, 0, 1]
    for a, b in zip(sum(found, []), sum(COMPLETIONS, []), strict=True):
        assert torch.equal(a.token_ids, b.token_ids)
        assert a.token_ids.dtype == torch.long
        assert torch.equal(a.logprobs, b.logprobs)
        assert a.truncated is b.truncated
    assert store.scores((3, 1), "y") == SCORES
    assert all(isinstance(score, Score) for score in store.scores((3, 1), "y"))


def test_a_rank_without_prompts_keeps_nothing_and_finds_it(tmp_path):
    store = RolloutStore(tmp_path)
    store.keep_completions((0, 0), "x", [])
    assert store.completions((0, 0), "x") == []


def test_what_was_made_from_something_else_or_elsewhere_is_not_found(tmp_path):
    store = RolloutStore(tmp_path)
    store.keep_completions((3, 0), "x", COMPLETIONS)
    assert store.completions((3, 0), "other weights") is None
    assert store.completions((3, 1), "x") is None
    assert store.completions((4, 0), "x") is None
    assert store.scores((3, 0), "x") is None


@pytest.mark.parametrize("content", [b"", b"half a file", None])
def test_a_damaged_file_counts_as_absent(content, tmp_path):
    store = RolloutStore(tmp_path)
    store.keep_completions((3, 0), "x", COMPLETIONS)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-40] if content is None else content)
    assert store.completions((3, 0), "x") is None


def test_only_what_a_checkpoint_covers_is_deleted(tmp_path):
    store = RolloutStore(tmp_path)
    for iteration in (8, 9, 10, 100):
        store.keep_completions((iteration, 0), "x", COMPLETIONS)
        store.keep_scores((iteration, 0), "x", SCORES)
    other_rank = tmp_path / "000008-0-1.completions.pt"
    other_rank.write_bytes(b"")
    store.prune(10)
    assert sorted({path.name.split("-")[0] for path in tmp_path.glob("*-0-0.*")}) == ["000010", "000100"]
    assert other_rank.exists()


def test_a_disk_that_refuses_costs_a_warning_and_no_training(tmp_path):
    store = RolloutStore(tmp_path)
    (tmp_path / "000000-0-0.completions.pt").mkdir()  # nothing can take the name of a folder, whoever runs this
    with pytest.warns(UserWarning, match="Could not keep rollouts"):
        store.keep_completions((0, 0), "x", COMPLETIONS)
    assert [path.name for path in tmp_path.iterdir()] == ["000000-0-0.completions.pt"]


class Verifier:
    def __init__(self, tolerance: float) -> None:
        self.tolerance = tolerance
        self._pool = object()


def test_digests_tell_apart_what_matters():
    prompts = [torch.tensor([1, 2]), torch.tensor([3])]
    base = digest("w", 7, prompts, [2, 2], SamplingConfig(max_new_tokens=4))
    assert base == digest("w", 7, [p.clone() for p in prompts], [2, 2], SamplingConfig(max_new_tokens=4))
    others = [
        digest("v", 7, prompts, [2, 2], SamplingConfig(max_new_tokens=4)),
        digest("w", 8, prompts, [2, 2], SamplingConfig(max_new_tokens=4)),
        digest("w", 7, [torch.tensor([1]), torch.tensor([2, 3])], [2, 2], SamplingConfig(max_new_tokens=4)),
        digest("w", 7, prompts, [2, 3], SamplingConfig(max_new_tokens=4)),
        digest("w", 7, prompts, [2, 2], SamplingConfig(max_new_tokens=5)),
    ]
    assert len({base, *others}) == 6
    assert digest(Verifier(0.1)) == digest(Verifier(0.1))
    assert digest(Verifier(0.1)) != digest(Verifier(0.2))
    assert digest(len) != digest(sorted)


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
