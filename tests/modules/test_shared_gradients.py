"""Gradients of losses over a tree of prefixes against those of one forward per response."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model

from tagrpo.modules.losses import PolicyLoss
from tagrpo.packing.batch import pack, plan_micro_batches
from tagrpo.packing.policy import CausalPolicy
from tagrpo.types.learning import LossInputs
from tests.packing.model_types import build

LOSSES = {
    "grpo": {},
    "dapo": {"aggregation": "token_mean", "clip_high": 0.28, "kl_coef": 0.0},
    "dr_grpo": {"aggregation": "constant", "max_length": 7},
    "gspo": {"ratio": "sequence", "clip_low": 0.1, "clip_high": 0.1},
    "gmpo": {"ratio": "geometric", "clip_low": 0.4, "clip_high": 0.4},
    "cispo": {"objective": "cispo", "aggregation": "token_mean", "clip_low": None, "clip_high": 0.1},
    "dual clip": {"dual_clip": 1.2},
    "entropy": {"entropy_coef": 0.1, "entropy_aggregation": "token_mean", "kl_estimator": "k2"},
}
FEW = st.lists(st.integers(3, 5), min_size=1, max_size=8)
"""Sequences of few tokens, many of which begin alike."""


@st.composite
def batches(draw):
    """Prompts with a common head, the prompt of each response, and responses: some equal, some of one token."""
    head = draw(st.lists(st.integers(3, 5), max_size=3))
    prompts = [torch.tensor([*head, *ids]) for ids in draw(st.lists(FEW, min_size=1, max_size=3))]
    responses = [torch.tensor(ids) for ids in draw(st.lists(FEW, min_size=1, max_size=7))]
    responses += [responses[0]] * draw(st.integers(0, 2))
    owners = st.lists(st.integers(0, len(prompts) - 1), min_size=len(responses), max_size=len(responses))
    return prompts, torch.tensor(draw(owners)), responses


def models(kind, checkpointing=False):
    """A policy, and a copy of its model in float64 that knows nothing of packing."""
    model = build("qwen3", tie_word_embeddings=False)
    if kind == "lora":
        model = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "v_proj", "down_proj"]))
        for name, parameter in model.named_parameters():
            if "lora_B" in name:  # zero at first: the adapters would have no effect
                torch.nn.init.normal_(parameter, std=0.3)
    exact = copy.deepcopy(model).double()
    if checkpointing:
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return CausalPolicy(model.train()), exact


def gradient(model):
    """The gradient of all trained parameters as one float64 vector; it is removed from them."""
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters() if p.requires_grad]
    model.zero_grad()
    return torch.cat([part.flatten().double() for part in parts])


def by_rows(model, prompts, prompt, responses):
    """[T] log-probs and entropies with gradient, one forward per response."""
    logprobs, entropies = [], []
    for row, response in enumerate(responses):
        head = prompts[int(prompt[row])]
        logits = model(torch.cat([head, response])[None]).logits[0, len(head) - 1 : -1]
        distribution = torch.distributions.Categorical(logits=logits)
        logprobs.append(distribution.log_prob(response))
        entropies.append(distribution.entropy())
    return torch.cat(logprobs), torch.cat(entropies)


class Columns:
    """What a loss reads beside log-probs and entropies: drawn at random, per token or response."""

    def __init__(self, lengths, seed, masked):
        generator = torch.Generator().manual_seed(seed)
        tokens = int(lengths.sum())
        self.lengths = lengths
        self.response = torch.repeat_interleave(lengths)
        self.advantages = torch.randn(len(lengths), generator=generator) * (0 if masked else 1)
        self.weights = torch.rand(tokens, generator=generator).round() * (0 if masked else 1)
        self.drift = 0.2 * torch.randn(tokens, generator=generator)
        # Far from the policy: a divergence that is the difference of near numbers would be rounded off.
        self.reference = 1 + 0.2 * torch.randn(tokens, generator=generator)

    def inputs(self, tokens, logprobs, entropy, old, numbers):
        """Inputs of a loss for the tokens `tokens`, of responses `numbers`, whose old log-probs are `old`."""
        kind = logprobs.dtype
        place = torch.searchsorted(numbers, self.response[tokens])
        return LossInputs(
            logprobs=logprobs,
            old_logprobs=(old + self.drift)[tokens].to(kind),
            reference_logprobs=(old + self.reference)[tokens].to(kind),
            entropy=entropy,
            advantages=self.advantages[numbers].to(kind),
            response=place,
            lengths=self.lengths[numbers],
            num_responses=float(len(self.lengths)),
            num_tokens=float(self.lengths.sum()),
            weights=self.weights[tokens].to(kind),
        )


def compare(policy, exact, batch, loss, seed, masked, budget):
    """Compare the gradient of a loss over the micro-batches of a batch with that of rows in float64.

    Responses may cancel one another, but their rounding does not: the scale of the comparison is the sum of the norms
    of their gradients.
    """
    prompts, prompt, responses = batch
    lengths = torch.tensor([len(ids) for ids in responses])
    columns = Columns(lengths, seed, masked)
    everything = torch.arange(int(lengths.sum()))
    logprobs, entropies = by_rows(exact, prompts, prompt, responses)
    old = logprobs.detach()
    scale = 0.0
    for row in range(len(lengths)):
        own = everything[columns.response == row]
        alone = columns.inputs(own, logprobs[own], entropies[own], old, torch.tensor([row]))
        loss(alone).loss.backward(retain_graph=True)
        scale += float(gradient(exact).norm())
    loss(columns.inputs(everything, logprobs, entropies, old, torch.arange(len(lengths)))).loss.backward()
    expected = gradient(exact)

    entropy = "grad" if loss.entropy_coef else "detached"
    for part in plan_micro_batches(prompts, prompt, responses, budget):
        packed = pack(prompts, prompt, responses, part)
        tokens = torch.cat([everything[columns.response == row] for row in part.tolist()])

        def part_loss(some, logprobs, entropies, tokens=tokens, part=part):
            return loss(columns.inputs(tokens[some], logprobs, entropies, old, part)).loss

        if loss.by_token:
            policy(packed, entropy, part_loss).loss.backward()
        else:
            scores = policy(packed, entropy)
            part_loss(slice(None), scores.logprobs, scores.entropy).backward()
    found = gradient(policy.model)
    assert expected.norm() <= scale * (1 + 1e-9)
    assert (found - expected).norm() <= 2e-6 * scale


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_of_every_loss_are_those_of_rows(name):
    policy, exact = models("plain")

    @given(batches(), st.integers(0, 99), st.booleans(), st.sampled_from([9, 20, 1000]))
    @settings(max_examples=min(12, settings.default.max_examples // 2))
    def check(batch, seed, masked, budget):
        compare(policy, exact, batch, PolicyLoss(**LOSSES[name]), seed, masked and name != "entropy", budget)

    check()


@pytest.mark.parametrize(
    ("chunk_size", "kind", "checkpointing"),
    [(1, "plain", False), (1, "lora", True), (3, "plain", True), (3, "lora", False)],
)
def test_gradients_of_adapters_chunks_and_checkpoints_are_those_of_rows(kind, checkpointing, chunk_size):
    """Every two of the three together, in four of eight combinations."""
    policy, exact = models(kind, checkpointing)
    policy.chunk_size = chunk_size

    @given(batches(), st.integers(0, 99), st.sampled_from(sorted(LOSSES)))
    @settings(max_examples=min(8, settings.default.max_examples // 2))
    def check(batch, seed, name):
        compare(policy, exact, batch, PolicyLoss(**LOSSES[name]), seed, False, 30)

    check()
