"""Packed scores against one plain forward of the same model per response."""

from __future__ import annotations

import copy
import logging

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model

from tagrpo.modules.policy.sharding import compile_layers
from tagrpo.packing.attention import PREFIX_SHARING, supports_prefix_sharing
from tagrpo.packing.batch import pack
from tagrpo.packing.noise import without_noise
from tagrpo.packing.policy import CausalPolicy
from tests.packing.model_types import MODELS, SHARED, build

PROMPT_LENGTHS = (1, 7, 5, 4)
PROMPT = torch.tensor([0, 0, 1, 1, 1, 2, 0])  # the last prompt has no response
RESPONSE_LENGTHS = (1, 9, 4, 5, 12, 3, 2)


@pytest.fixture(params=list(MODELS))
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def sequences():
    """Prompts and responses, of which most share their first tokens."""
    generator = torch.Generator().manual_seed(1)
    head, beginning = torch.randint(3, 50, (2, 3), generator=generator)

    def begun(first, length):
        return torch.cat([first, torch.randint(3, 50, (length,), generator=generator)])[:length]

    prompts = [begun(head[:2], n) for n in PROMPT_LENGTHS]
    responses = [begun(beginning[: row % 4], n) for row, n in enumerate(RESPONSE_LENGTHS)]
    return prompts, responses


def plain(model, prompts, responses, temperature=1.0):
    """[R] of [T_r] log-probs and entropies, one unpadded forward per response."""
    logprobs, entropies = [], []
    for p, response in zip(PROMPT.tolist(), responses, strict=True):
        logits = (
            model(torch.cat([prompts[p], response])[None]).logits[0, len(prompts[p]) - 1 : -1] / temperature
        )
        distribution = torch.distributions.Categorical(logits=logits)
        logprobs.append(distribution.log_prob(response))
        entropies.append(distribution.entropy())
    return logprobs, entropies


def gradient(model):
    flat = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    model.zero_grad()
    return flat


def test_every_model_type_that_shares_prefixes_is_tested():
    assert set(SHARED) == PREFIX_SHARING


@pytest.mark.parametrize("checkpointing", [False, True])
def test_scores_and_gradients_equal_plain_forwards(kind, sequences, checkpointing):
    prompts, responses = sequences
    model = build(kind)
    logprobs, entropies = plain(model, prompts, responses, temperature=0.8)
    weight = [
        torch.randn(len(r), generator=torch.Generator().manual_seed(i)) for i, r in enumerate(responses)
    ]
    sum(((a + 0.3 * h) * w).sum() for a, h, w in zip(logprobs, entropies, weight, strict=True)).backward()
    expected = gradient(model)

    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    policy = CausalPolicy(model.train(), temperature=0.8, chunk_size=5)
    assert policy.shares_prefix == (kind in SHARED)
    batch = pack(prompts, PROMPT, responses, torch.arange(7))
    scores = policy(batch, entropy="grad")
    order = batch.rows.tolist()
    torch.testing.assert_close(scores.logprobs, torch.cat([logprobs[r] for r in order]), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(scores.entropy, torch.cat([entropies[r] for r in order]), atol=1e-5, rtol=1e-5)
    ((scores.logprobs + 0.3 * scores.entropy) * torch.cat([weight[r] for r in order])).sum().backward()
    torch.testing.assert_close(gradient(model), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["qwen3", "qwen2", "stablelm"])
def test_micro_batches_add_up_to_the_same_gradient(kind, sequences):
    prompts, responses = sequences
    policy = CausalPolicy(build(kind))

    def accumulated(*parts):
        for rows in parts:
            batch = pack(prompts, PROMPT, responses, torch.tensor(rows))
            (policy(batch).logprobs * torch.tensor(rows).cos()[_position(batch, rows)]).sum().backward()
        return gradient(policy.model)

    whole = accumulated(range(7))
    # One group cut in two, two groups in one part, one response alone.
    for parts in [([4], [0, 6, 2, 3], [5, 1]), ([0, 1, 2], [3], [4, 5, 6])]:
        assert (accumulated(*parts) - whole).norm() < 1e-6 * whole.norm()


def _position(batch, rows):
    """[T] where each token's response stands in `rows`."""
    return torch.tensor([list(rows).index(r) for r in batch.rows.tolist()])[batch.response]


def test_a_response_has_the_scores_that_it_has_alone(sequences):
    prompts, _ = sequences
    policy = CausalPolicy(build("qwen3"))
    responses = [torch.tensor(ids) for ids in ([5, 6, 7], [5, 6, 7], [5, 6, 8, 9], [5], [6], [5, 6, 7, 7])]
    prompt = torch.tensor([1, 1, 1, 1, 1, 1])
    together = pack(prompts, prompt, responses)
    assert together.input_ids.numel() == len(prompts[1]) + 4  # 5, 5 6, 5 6 7, 5 6 8
    scores = policy(together)
    parts = zip(*(x.split(together.lengths.tolist()) for x in (scores.logprobs, scores.entropy)), strict=True)
    for row, (logprobs, entropy) in enumerate(parts):
        alone = policy(pack(prompts, prompt, responses, torch.tensor([row])))
        torch.testing.assert_close((logprobs, entropy), (alone.logprobs, alone.entropy), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("head", [False, True])
def test_adapters_of_peft_train_as_in_plain_forwards(sequences, head, checkpointing):
    prompts, responses = sequences
    model = build("qwen3", tie_word_embeddings=False)
    config = LoraConfig(r=2, target_modules=["q_proj", "v_proj", "down_proj"] + ["lm_head"] * head)
    model = get_peft_model(model, config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:  # zero at first: the adapters would have no effect
                parameter.normal_(std=0.3)
    logprobs, _ = plain(model, prompts, responses)
    sum(r.sum() for r in logprobs).backward()
    expected = gradient(model)

    if checkpointing:
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    policy = CausalPolicy(model.train())
    assert policy.shares_prefix != head, "an adapter of the head is reached through the model's own forward"
    batch = pack(prompts, PROMPT, responses, torch.arange(7))
    scores = policy(batch)
    order = batch.rows.tolist()
    torch.testing.assert_close(scores.logprobs, torch.cat([logprobs[r] for r in order]), atol=1e-5, rtol=1e-5)
    scores.logprobs.sum().backward()
    torch.testing.assert_close(gradient(model), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["qwen3", "stablelm"])
def test_responses_behind_learned_prompts_of_peft_are_scored_one_by_one(family, sequences):
    model = get_peft_model(build(family), PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM"))
    supported, reason = supports_prefix_sharing(model)
    assert not supported
    assert "PROMPT_TUNING" in reason
    prompts, responses = sequences
    expected = []
    for p, response in zip(PROMPT.tolist(), responses, strict=True):
        logits = model(input_ids=torch.cat([prompts[p], response])[None]).logits[
            0, 2 + len(prompts[p]) - 1 : -1
        ]
        expected.append(torch.distributions.Categorical(logits=logits).log_prob(response))
    batch = pack(prompts, PROMPT, responses, torch.arange(7))
    found = CausalPolicy(model)(batch).logprobs
    torch.testing.assert_close(
        found, torch.cat([expected[r] for r in batch.rows.tolist()]), atol=1e-5, rtol=1e-5
    )


def test_the_padded_path_is_one_forward_and_makes_no_logits_for_columns_of_prompts_alone(sequences):
    _, responses = sequences
    prompts = [torch.full((n,), 3) for n in (11, 7, 5, 4)]
    policy = CausalPolicy(build("stablelm"))
    shapes = []
    policy.model.lm_head.register_forward_hook(
        lambda module, inputs, output: shapes.append(tuple(output.shape))
    )
    policy(pack(prompts, PROMPT, responses, torch.arange(7)))
    # Rows are 11 … 19 tokens; the shortest prompt has 5, so that column 4 is the first to predict a response token.
    assert shapes == [(7, 19 - 4, 50)]


def test_a_policy_says_why_it_pads(caplog):
    with caplog.at_level(logging.INFO, logger="tagrpo"):
        CausalPolicy(build("qwen3"))
        assert not caplog.messages
        CausalPolicy(build("stablelm"))
    assert caplog.messages == [
        "StableLmForCausalLM is scored in padded batches: model type stablelm is not known to share prefixes."
    ]


def test_rotary_embeddings_that_depend_on_the_batch_are_refused_when_they_do():
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4, "original_max_position_embeddings": 12}
    policy = CausalPolicy(build("llama", rope_parameters=rope, max_position_embeddings=12))
    prompt = torch.arange(3, 9)
    short, longer = torch.arange(9, 16), torch.arange(9, 17)  # 12 and 13 tokens before the last
    fits = pack([prompt], torch.zeros(1, dtype=torch.long), [short])
    assert policy(fits).logprobs.shape == (7,)
    with pytest.raises(ValueError, match=r"at most 12 tokens.*max_new_tokens"):
        policy(pack([prompt], torch.zeros(2, dtype=torch.long), [short, longer]))


@pytest.mark.parametrize(
    ("kind", "checkpointing"),
    [*((kind, False) for kind in MODELS), ("qwen3", True), ("stablelm", True)],
    indirect=["kind"],
)
def test_a_loss_given_to_the_forward_equals_one_taken_of_its_scores(kind, sequences, checkpointing):
    """Of every type of model; with checkpoints, of one that shares prefixes and of one that does not."""
    prompts, responses = sequences
    model = build(kind)
    policy = CausalPolicy(model.train(), temperature=0.8, chunk_size=5)
    batch = pack(prompts, PROMPT, responses, torch.arange(7))

    def loss(part, logprobs, entropy):
        return (logprobs.exp() * torch.arange(36)[part].sin() + entropy * torch.arange(36)[part].cos()).sum()

    plain_scores = policy(batch, entropy="grad")
    loss(slice(None), plain_scores.logprobs, plain_scores.entropy).backward()
    expected = gradient(model)
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    scores = policy(batch, "grad", loss)
    torch.testing.assert_close(scores[:2], tuple(s.detach() for s in plain_scores[:2]))
    scores.loss.backward()
    torch.testing.assert_close(gradient(model), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("with_loss", [False, True])
@pytest.mark.parametrize("entropy", ["none", "detached", "grad"])
def test_no_tensor_of_tokens_times_vocabulary_ever_exists(sequences, largest_tensor, entropy, with_loss):
    prompts, responses = sequences
    vocabulary, chunk = 4096, 3
    model = build("qwen3", vocab_size=vocabulary)
    batch = pack(prompts, PROMPT, responses, torch.arange(7))
    saved = []
    with (
        torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t),
        largest_tensor(except_shapes={(vocabulary, 32), (32, vocabulary)}) as largest,
    ):
        policy = CausalPolicy(model, chunk_size=chunk)
        if with_loss:
            policy(batch, entropy, lambda _, logprobs, __: logprobs.sum()).loss.backward()
        else:
            scores = policy(batch, entropy)
            (scores.logprobs.sum() + (scores.entropy.sum() if entropy == "grad" else 0)).backward()
    weights = {p.data_ptr() for p in model.parameters()}
    assert max(t.numel() for t in saved if t.data_ptr() not in weights) < vocabulary, (
        "a row of logits was kept"
    )
    assert largest.numel == chunk * vocabulary


def compiled_and_plain(device, compile, seed=0):
    """Relative differences of log-probs and gradients in bfloat16, layers compiled against not, on several shapes."""
    torch.manual_seed(seed)
    wide = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "vocab_size": 5000}
    model, reference = (build("qwen3", **wide).to(device) for _ in range(2))
    uncompiled, compiled = (
        CausalPolicy(model, chunk_size=64),
        CausalPolicy(copy.deepcopy(model), chunk_size=64).train(),
    )
    references = [CausalPolicy(reference), CausalPolicy(copy.deepcopy(reference)).eval()]
    for policy in (compiled, references[1]):
        compile(policy)
    draw = torch.Generator().manual_seed(seed)
    # The first batch of fewer than 128 tokens decides on the kernel of all of them.
    shapes = [
        (20, [80]),
        (3, [5, 7]),
        (20, [30, 33, 1]),
        (12, [65]),
        (300, [400, 20, 129, 1]),
        (1, [1]),
        (700, [900, 31]),
    ]
    differences = []
    for prompt_length, lengths in shapes:  # fewer than 128 tokens, a last chunk of one row, several blocks
        prompt, *responses = (torch.randint(3, 5000, (n,), generator=draw) for n in (prompt_length, *lengths))
        batch = pack([prompt], torch.zeros(len(lengths), dtype=torch.long), responses).to(device)
        with torch.no_grad(), torch.autocast(device, torch.bfloat16):
            first, second = (policy(batch, "none").logprobs for policy in references)
        pairs = [(second, first)]
        for policy in (uncompiled, compiled):
            with torch.autocast(device, torch.bfloat16):
                scores = policy(batch, "detached", lambda _, logprobs, __: -logprobs.sum())
            scores.loss.backward()
        pairs.append((gradient(compiled.model), gradient(uncompiled.model)))
        differences += [float((ours - theirs).norm() / theirs.norm()) for ours, theirs in pairs]
    return differences


def packed_and_plain(device, dtype):
    """Relative differences of log-probs and gradients: packed, with prompts shared, against a forward for each row."""
    torch.manual_seed(0)
    wide = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "vocab_size": 5000}
    plain = build("qwen3", **wide).to(device)
    policy = CausalPolicy(copy.deepcopy(plain))
    draw = torch.Generator().manual_seed(0)
    prompt, *responses = (torch.randint(3, 5000, (n,), generator=draw) for n in (20, 80, 3, 200))
    batch = pack([prompt], torch.zeros(3, dtype=torch.long), responses).to(device)
    with torch.autocast(device, dtype, enabled=dtype != torch.float32):
        ours = policy(batch, "none", lambda _, logprobs, __: -logprobs.sum())
        theirs = []
        for response in responses:
            ids = torch.cat([prompt, response]).to(device)[None]
            logits = plain(ids).logits[0, len(prompt) - 1 : -1].float()
            theirs.append(logits.log_softmax(-1).gather(-1, response.to(device)[:, None])[:, 0])
    ours.loss.backward()
    expected = torch.cat(theirs)
    (-expected.sum()).backward()
    pairs = [(ours.logprobs, expected.detach()), (gradient(policy.model), gradient(plain))]
    return [float((found - right).norm() / right.norm()) for found, right in pairs]


def test_packed_log_probs_and_gradients_are_those_of_plain_forwards():
    assert max(packed_and_plain("cpu", torch.float32)) < 2e-6


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 3e-2)])
def test_packed_log_probs_and_gradients_on_a_gpu_are_those_of_plain_forwards(dtype, tolerance):
    assert max(packed_and_plain("cuda", dtype)) < tolerance


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_compiled_layers_on_a_gpu_give_the_log_probs_and_gradients_of_uncompiled_ones():
    assert max(compiled_and_plain("cuda", compile_layers)) < 2e-2


@pytest.mark.slow
def test_the_comparison_of_compiled_layers_finds_none_where_nothing_is_compiled_and_one_where_a_layer_is_wrong():
    def wrong(policy):
        policy.model.model.layers[1].mlp.down_proj.weight.data.mul_(1.2)

    assert max(compiled_and_plain("cpu", lambda _: None)) == 0
    assert max(compiled_and_plain("cpu", wrong)) > 5e-2


@pytest.mark.parametrize(
    ("kind", "options", "named"),
    [
        ("qwen3", {"attention_dropout": 0.1}, "layers.0.self_attn.attention_dropout"),
        ("llama", {"attention_dropout": 0.3}, "attention_dropout is 0.3"),
        ("olmo2", {"attention_dropout": 0.1}, "attention_dropout"),
    ],
)
def test_dropout_that_packed_responses_would_share_is_refused_in_training_alone(
    kind, options, named, sequences
):
    prompts, responses = sequences
    model, batch = build(kind, **options).eval(), pack(prompts, PROMPT, responses, torch.arange(7))
    logprobs, _ = plain(model, prompts, responses)
    policy = CausalPolicy(model)
    scores = policy(batch)
    torch.testing.assert_close(
        scores.logprobs, torch.cat([logprobs[r] for r in batch.rows.tolist()]), atol=1e-5, rtol=1e-5
    )
    with pytest.raises(ValueError, match=named):
        policy.train()(batch)
    without_noise(policy.model)
    assert torch.equal(policy(batch).logprobs, scores.logprobs)


def test_dropout_of_adapters_is_refused_in_training(sequences):
    prompts, responses = sequences
    lora = LoraConfig(r=2, lora_dropout=0.05, target_modules=["q_proj"], task_type="CAUSAL_LM")
    policy = CausalPolicy(get_peft_model(build("qwen3"), lora))
    assert policy.shares_prefix
    with pytest.raises(ValueError, match=r"lora_dropout.*p is 0\.05"):
        policy.train()(pack(prompts, PROMPT, responses, torch.arange(7)))


def test_padded_batches_have_the_dropout_of_the_models_own_forward(sequences):
    prompts, responses = sequences
    policy = CausalPolicy(build("stablelm", hidden_dropout=0.3, attention_dropout=0.2)).train()
    twice = [responses[1], responses[1]]
    batch = pack(prompts[:1], torch.tensor([0, 0]), twice, torch.arange(2))
    torch.manual_seed(5)
    scores = policy(batch).logprobs.view(2, -1)
    whole = torch.stack([torch.cat([prompts[0], response[:-1]]) for response in twice])
    torch.manual_seed(5)
    logits = policy.model(input_ids=whole, attention_mask=torch.ones_like(whole), use_cache=False).logits
    expected = (
        logits[:, len(prompts[0]) - 1 :].log_softmax(-1).gather(2, torch.stack(twice)[..., None])[..., 0]
    )
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(scores[0], scores[1], atol=1e-3), "each row has its own noise"
