"""The loss and the whole backward against TRL's `GRPOTrainer`, an implementation that shares no code with this one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import trl
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from tagrpo.modules.losses import PolicyLoss
from tagrpo.packing.batch import pack
from tagrpo.packing.policy import CausalPolicy
from tagrpo.types import LossInputs

pytestmark = pytest.mark.shell

LENGTHS = (3, 1, 5, 2, 7, 4)
LONGEST = 9
METHODS = {
    # name: (TRL's options, ours)
    "GRPO": ({"loss_type": "grpo"}, {}),
    # TRL multiplies the KL term by the ratio unless it is told not to (DeepSeek-V3.2); GRPO does not.
    "GRPO with k3": ({"loss_type": "grpo", "beta": 0.04, "use_bias_correction_kl": False}, {"kl_coef": 0.04}),
    "GRPO with k3 times the ratio": (
        {"loss_type": "grpo", "beta": 0.04},
        {"kl_coef": 0.04, "kl_ratio": True},
    ),
    "GSPO with k3 times the ratio": (
        {"loss_type": "grpo", "beta": 0.04, "importance_sampling_level": "sequence"},
        {"ratio": "sequence", "kl_coef": 0.04, "kl_ratio": True},
    ),
    "GRPO, dual clip": ({"loss_type": "grpo", "delta": 1.5}, {"dual_clip": 1.5}),
    "GSPO": (
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-2, "epsilon_high": 4e-2},
        {"ratio": "sequence", "clip_low": 3e-2, "clip_high": 4e-2},
    ),
    "Dr. GRPO": (
        {"loss_type": "dr_grpo", "max_completion_length": LONGEST},
        {"aggregation": "constant", "max_length": LONGEST},
    ),
    "DAPO, dual clip": (  # the code base that prompt augmentation ran has it at 3; at 1.5 it acts on this data
        {"loss_type": "dapo", "epsilon_high": 0.28, "delta": 1.5},
        {"aggregation": "token_mean", "clip_high": 0.28, "dual_clip": 1.5},
    ),
    "GRPO, entropy": (
        {"loss_type": "grpo", "entropy_coef": 0.05},
        {"entropy_coef": 0.05, "entropy_aggregation": "token_mean"},
    ),
    "ExGRPO": (
        {"loss_type": "dr_grpo", "max_completion_length": LONGEST, "epsilon": 1e6, "entropy_coef": 0.05},
        {
            "aggregation": "constant",
            "max_length": LONGEST,
            "clip_low": None,
            "clip_high": None,
            "entropy_coef": 0.05,
            "entropy_aggregation": "token_mean",
        },
    ),
    "DAPO": ({"loss_type": "dapo", "epsilon_high": 0.28}, {"aggregation": "token_mean", "clip_high": 0.28}),
    # TRL's ε is the bound of the ratio itself, ours its distance from 1.
    "CISPO": (
        {"loss_type": "cispo", "epsilon_high": 1.3},
        {"objective": "cispo", "aggregation": "token_mean", "clip_low": 1.0, "clip_high": 0.3},
    ),
}


def tiny_model():
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, max_position_embeddings=32, tie_word_embeddings=True,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0 if parameter.dim() > 1 else 1.0)
    return model


def trainer_of(folder, model, beta=0.0, **options):
    """A `GRPOTrainer` that takes all responses in one backward, as its own `train` would set it up."""
    words = Tokenizer(models.WordLevel({"<pad>": 0, "</s>": 1}, unk_token="<pad>"))
    arguments = trl.GRPOConfig(
        **{"epsilon": 0.2, **options},
        beta=0.0, output_dir=str(folder), report_to=[], use_cpu=True, bf16=False, gradient_checkpointing=False,
        per_device_train_batch_size=len(LENGTHS), gradient_accumulation_steps=1, num_generations=len(LENGTHS),
    )  # fmt: skip
    with torch.random.fork_rng():  # a Trainer seeds torch
        trainer = trl.GRPOTrainer(
            model=model,
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=arguments,
            train_dataset=Dataset.from_list([{"prompt": "x"}] * len(LENGTHS)),
            processing_class=PreTrainedTokenizerFast(
                tokenizer_object=words, pad_token="<pad>", eos_token="</s>"
            ),
        )
    # Set afterwards: at construction it would load a reference model, whose log-probs are given here.
    trainer.beta = beta
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    return trainer


@pytest.fixture(scope="module", params=list(METHODS))
def method(request, tmp_path_factory):
    theirs, ours = METHODS[request.param]
    trainer = trainer_of(tmp_path_factory.mktemp("trl"), tiny_model(), **theirs)
    return trainer, PolicyLoss(**{"kl_coef": 0.0, **ours})


def draw(seed):
    """[T] log-probs of three policies that differ enough to be clipped, [R] advantages; float64."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(3, sum(LENGTHS), generator=generator, dtype=torch.float64)
    old = -noise[0].abs()
    advantages = torch.randn(len(LENGTHS), generator=generator, dtype=torch.float64)
    return old + 0.5 * noise[1], old, old + 0.4 * noise[2], advantages


def padded(values, mask):
    return torch.zeros(mask.shape, dtype=values.dtype).masked_scatter(mask.bool(), values)


def by_trl(trainer, logprobs, old, reference, advantages):
    """Loss and [T] its gradient, of TRL's own code on padded rows."""
    mask = (torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]).long()
    leaf = padded(logprobs, mask).requires_grad_()
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (leaf, entropy_of(leaf), None)
    loss = trainer.compute_loss(
        trainer.model,
        {
            "prompt_ids": torch.ones(len(LENGTHS), 1, dtype=torch.long),
            "prompt_mask": torch.ones(len(LENGTHS), 1, dtype=torch.long),
            "completion_ids": mask,
            "completion_mask": mask,
            "advantages": advantages,
            "old_per_token_logps": padded(old, mask),
            "ref_per_token_logps": padded(reference, mask),
            "num_items_in_batch": mask.sum(),
        },
    )
    loss.backward()
    return float(loss.detach()), leaf.grad[mask.bool()]


def entropy_of(logprobs):
    """Stands for the policy's entropy: any function will do that has a gradient in the log-probs."""
    return 0.3 * logprobs.square()


def inputs_of(logprobs, old, reference, advantages):
    lengths = torch.tensor(LENGTHS)
    return LossInputs(
        logprobs=logprobs, old_logprobs=old, reference_logprobs=reference, entropy=entropy_of(logprobs),
        advantages=advantages,
        response=torch.repeat_interleave(lengths), lengths=lengths, num_responses=len(LENGTHS),
        num_tokens=sum(LENGTHS),
    )  # fmt: skip


def rows_of(inputs, rows):
    """The part of `inputs` that belongs to the responses `rows`; normalisers stay those of the whole."""
    tokens = torch.isin(inputs.response, rows)
    lengths = inputs.lengths[rows]
    columns = ("logprobs", "old_logprobs", "reference_logprobs", "entropy")
    per_token = {name: getattr(inputs, name)[tokens] for name in columns}
    response = torch.repeat_interleave(lengths)
    return replace(
        inputs, **per_token, advantages=inputs.advantages[rows], response=response, lengths=lengths
    )


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**31),
    parts=st.lists(st.integers(0, 2), min_size=len(LENGTHS), max_size=len(LENGTHS)),
)
def test_loss_and_gradient_equal_trls_under_any_split_into_micro_batches(method, seed, parts):
    trainer, loss = method
    drawn = draw(seed)
    expected, expected_gradient = by_trl(trainer, *drawn)
    leaf = drawn[0].clone().requires_grad_()
    inputs = inputs_of(leaf, *drawn[1:])
    splits = [(torch.tensor(parts) == part).nonzero()[:, 0] for part in sorted(set(parts))]
    total = sum(loss(rows_of(inputs, rows)).loss for rows in splits)
    total.backward()
    assert float(total.detach()) == pytest.approx(expected, abs=1e-6, rel=1e-6)
    torch.testing.assert_close(leaf.grad, expected_gradient, atol=1e-6, rtol=1e-6)


def test_a_training_step_of_trl_leaves_the_gradient_of_the_packed_prefix_shared_backward(tmp_path):
    generator = torch.Generator().manual_seed(0)
    prompt = torch.randint(2, 40, (6,), generator=generator)
    responses = [torch.randint(2, 40, (length,), generator=generator) for length in LENGTHS]
    old, advantages = draw(0)[1].float(), draw(0)[3].float()

    model = tiny_model()
    trainer = trainer_of(tmp_path, model, loss_type="grpo")
    ids = pad_sequence(responses, batch_first=True)
    mask = (torch.arange(ids.shape[1]) < torch.tensor(LENGTHS)[:, None]).long()
    batch = {
        "prompt_ids": prompt.expand(len(LENGTHS), -1), "completion_ids": ids, "completion_mask": mask,
        "prompt_mask": torch.ones(len(LENGTHS), len(prompt), dtype=torch.long), "advantages": advantages,
        "old_per_token_logps": padded(old, mask), "num_items_in_batch": mask.sum(),
    }  # fmt: skip
    trainer._generate_and_score_completions = lambda _: batch
    trainer.training_step(trainer.model, [{}], None)
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}

    model = tiny_model()
    packed = pack(
        [prompt], torch.zeros(len(LENGTHS), dtype=torch.long), responses, torch.arange(len(LENGTHS))
    )
    logprobs = CausalPolicy(model)(packed).logprobs
    PolicyLoss(kl_coef=0.0)(inputs_of(logprobs, old, None, advantages)).loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], atol=1e-6, rtol=1e-4, msg=name)
