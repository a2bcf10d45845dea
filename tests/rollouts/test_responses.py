"""Responses as tensors come back bit for bit, and requests for other responses have other keys."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import torch
from hypothesis import given
from hypothesis import strategies as st

from tagrpo.rollouts import SamplingConfig
from tagrpo.rollouts.responses import packed, request_key, unpacked
from tagrpo.types import Completion, Request


def test_keys_of_requests_tell_apart_what_matters():
    prompts, sampling = [torch.tensor([1, 2]), torch.tensor([3])], SamplingConfig(max_new_tokens=4)
    base = Request(prompts, [2, 2], sampling, 7)
    assert request_key(base) == request_key(base._replace(prompts=[prompt.clone() for prompt in prompts]))
    assert request_key(base) == request_key(base._replace(iteration=3)), "the seed tells iterations apart"
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


def test_a_key_is_that_of_earlier_versions_and_other_processes_whose_checkpoints_hold_it():
    request = Request([torch.arange(3)], [2], SamplingConfig(), 1)
    assert request_key(request) == "0738a48991d0e696583af75e20a28669"


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
        assert ours.token_ids.dtype == torch.long
        assert torch.equal(ours.logprobs, theirs.logprobs)
        assert ours.truncated == theirs.truncated
