"""LUFFY: what joins a batch, and the loss of a demonstration against the authors' arithmetic, written anew."""

from __future__ import annotations

import inspect
from dataclasses import replace

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_module
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from tagrpo.contrib.luffy import replay as module
from tagrpo.contrib.luffy.replay import Demonstrations
from tagrpo.modules.losses import PolicyLoss
from tagrpo.rewards import FinalAnswerReward
from tagrpo.starter import starter_path
from tagrpo.types import LossInputs


@pytest.fixture(scope="module")
def make():
    return lambda **options: Demonstrations(str(starter_path()), **{"form": "#### {answer}", **options})


def with_demonstrations(batch, *texts):
    batch.groups = [
        group._replace(metadata={} if text is None else {"demonstration": text}, answer=(str(row),))
        for row, (group, text) in enumerate(zip(batch.groups, texts, strict=True))
    ]
    return batch


def test_a_demonstration_takes_the_place_of_one_sample(make, make_batch):
    batch = with_demonstrations(
        make_batch([[[1.0] * 4, [0.0] * 4], [[0.0] * 4], [[0.0]]]), "12 + 3 = 15 #### 15", None, "#### 2"
    )
    found = make(form=None).substitute(batch, 0, None)
    assert [prompt.num_samples for prompt in found.prompts] == [3, 4, 4, 1], (
        "no rephrasing, nothing, the only sample"
    )
    past = found.prompts[0].past
    tokenizer = AutoTokenizer.from_pretrained(starter_path())
    assert tokenizer.decode(past.token_ids[:-1]) == "12 + 3 = 15 #### 15"
    assert past.token_ids[-1] == tokenizer.eos_token_id
    assert past.logprobs.tolist() == [0.0] * len(past.token_ids), "π_φ = 1"
    assert not past.truncated
    assert [prompt.past for prompt in found.prompts[1:]] == [None] * 3
    assert found.groups == batch.groups


def test_the_short_demonstration_of_the_embedded_task_is_accepted(make, make_batch):
    batch = with_demonstrations(make_batch([[[0.0, 0.0]], [[0.0, 0.0]]]), None, "1 + 0 = 1 #### 1")
    batch.groups[0] = batch.groups[0]._replace(answer=("0", "zero"))
    found = make().substitute(batch, 0, None)
    tokenizer = AutoTokenizer.from_pretrained(starter_path())
    texts = [tokenizer.decode(prompt.past.token_ids, skip_special_tokens=True) for prompt in found.prompts]
    assert texts == ["#### 0", "1 + 0 = 1 #### 1"]
    assert all(FinalAnswerReward()(text, str(row)).correct for row, text in enumerate(texts))


def test_a_demonstration_begins_with_its_text_whatever_the_tokenizer_puts_before_prompts(make, make_batch):
    (group,) = with_demonstrations(make_batch([[[0.0, 0.0]]]), "#### 0").groups
    expected, demonstrations = make().of(group), make()
    first = (demonstrations.tokenizer.eos_token, demonstrations.tokenizer.eos_token_id)
    demonstrations.tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        f"{first[0]} $A", None, [first]
    )
    assert len(demonstrations.tokenizer.encode("#### 0")) == len(expected.token_ids)
    assert demonstrations.of(group).token_ids.tolist() == expected.token_ids.tolist()


def test_the_longest_demonstration_has_the_tokens_of_the_paper(make):
    assert make().longest == 8192


def test_what_is_too_long_is_left_out(make, make_batch):
    batch = with_demonstrations(make_batch([[[0.0, 0.0]]]), "#### 0")
    length = len(make().of(batch.groups[0]).token_ids)
    assert make(longest=length).substitute(batch, 0, None).prompts[0].past is not None
    shorter = make(longest=length - 1).substitute(batch, 0, None)
    assert (shorter.prompts[0].past, shorter.prompts[0].num_samples) == (None, 2)


def test_accepted_demonstrations_of_all_ranks_are_counted(make, make_batch, monkeypatch):
    batch = make_batch([[[1.0, 0.0, 1.0, 0.0]]])
    batch.rollouts = replace(batch.rollouts, replayed=torch.tensor([True, True, False, False]))
    assert make().observe(batch) == {"demonstrations/correct": 1.0}
    monkeypatch.setattr(
        module, "sum_over_ranks", lambda sums: {name: value + 4 for name, value in sums.items()}
    )
    assert make().observe(batch) == {"demonstrations/correct": 5.0}


def test_it_has_no_state(make):
    demonstrations = make()
    demonstrations.load_state_dict(demonstrations.state_dict())
    assert demonstrations.state_dict() == {}
    assert demonstrations.memory is None, "no question is retired"


def by_the_authors(logprobs, old, advantages, demonstration, mask):
    """compute_token_on_off_policy_loss of ElliottYan/LUFFY at 01f4ae0, mix_core_alg.py, as train.sh calls it."""
    sampled = -advantages[:, None] * np.exp(logprobs - old)
    shaped = -advantages[:, None] * np.exp(logprobs) / (np.exp(logprobs) + 0.1)
    return (np.where(demonstration[:, None], shaped, sampled) * mask).sum() / mask.shape[1]


def test_the_loss_is_that_of_the_authors_code():
    """Theirs is a sum over responses over the padded length; ours is a mean over responses of the same."""
    rng = np.random.default_rng(0)
    lengths, width = np.array([5, 3, 8, 4]), 8
    mask = np.arange(width) < lengths[:, None]
    logprobs, old = -rng.exponential(1.0, (4, width)), -rng.exponential(1.0, (4, width))
    advantages, demonstration = np.array([0.75, -0.25, 0.75, -0.25]), np.array([True, False, False, True])
    given = LossInputs(
        logprobs=torch.from_numpy(logprobs[mask]),
        old_logprobs=torch.from_numpy(np.where(demonstration[:, None], 0.0, old)[mask]),
        entropy=None,
        reference_logprobs=None,
        advantages=torch.from_numpy(advantages),
        response=torch.arange(4).repeat_interleave(torch.from_numpy(lengths)),
        lengths=torch.from_numpy(lengths),
        num_responses=4,
        num_tokens=20,
        replayed=torch.from_numpy(demonstration),
    )
    loss = PolicyLoss(clip_low=None, clip_high=None, kl_coef=0.0, aggregation="constant", max_length=width)
    expected = by_the_authors(logprobs, old, advantages, demonstration, mask)
    assert 4 * float(loss(given).loss) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("recipe", ["paper", "common", "authors"])
@pytest.mark.parametrize("scale", ["demo", "paper"])
def test_a_short_demonstration_stands_in_for_one_at_the_scale_of_the_embedded_task_alone(recipe, scale):
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        cfg = compose("train", ["experiment=luffy", f"recipe={recipe}", f"scale={scale}", "data=arithmetic"])
    assert cfg.rollout.replay.get("form") == ("#### {answer}" if scale == "demo" else None)
    assert inspect.signature(Demonstrations).parameters["form"].default is None
