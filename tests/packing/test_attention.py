"""Which models share prefixes; grouped and sparse attention against plain softmax and against each other."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch.nn.attention import flex_attention as flex
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tagrpo.packing import attention
from tagrpo.packing.attention import (
    blocked_attention,
    grouped_attention,
    sparse_attention,
    supports_prefix_sharing,
)
from tagrpo.packing.batch import block_mask, pack, visible_blocks

SMALL = {
    "vocab_size": 9,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 1,
}
WINDOWS = ("gemma2", "gemma3_text", "olmo3", "gpt_oss")
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4, "original_max_position_embeddings": 8}


def of_type(model_type, **options):
    """A model without weights."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **SMALL, **options))


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (
            lambda: MistralForCausalLM(MistralConfig(**SMALL, num_key_value_heads=1, sliding_window=4)),
            "sliding window",
        ),
        (
            lambda: Qwen3ForCausalLM(
                Qwen3Config(
                    **SMALL,
                    num_key_value_heads=1,
                    use_sliding_window=True,
                    sliding_window=4,
                    max_window_layers=1,
                )
            ),
            "sliding window",
        ),
        (lambda: LlamaForCausalLM(LlamaConfig(**SMALL, rope_parameters=DYNAMIC)), "dynamic"),
        *((lambda kind=kind: of_type(kind), "sliding window") for kind in WINDOWS),
        (lambda: of_type("qwen3_next"), "linear_attention"),
        (lambda: of_type("qwen3_5_text"), "linear_attention"),
        (lambda: of_type("lfm2", layer_types=["conv", "full_attention"]), "conv"),
    ],
)
def test_configurations_that_cannot_share_are_refused_with_the_reason(model, reason):
    supported, why = supports_prefix_sharing(model())
    assert not supported
    assert reason in why


def test_a_replaced_output_head_cannot_share():
    model = LlamaForCausalLM(LlamaConfig(**SMALL))
    assert supports_prefix_sharing(model)[0]
    plain = model.lm_head
    replaced = torch.nn.Sequential(plain), torch.nn.Linear(plain.in_features, plain.out_features)
    for model.lm_head, reason in zip(replaced, ("Sequential", "without a bias"), strict=True):
        supported, why = supports_prefix_sharing(model)
        assert not supported
        assert reason in why


@pytest.mark.parametrize("repeat_heads", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_neighbouring_query_heads_share_a_key_head(repeat_heads, masked):
    torch.manual_seed(0)
    n, heads, groups, size, width = 3, 2, 2, 5, 4
    query = torch.randn(n, heads * groups, size, width)
    key, value = torch.randn(2, n, heads, size, width)
    visible = torch.ones(size, size, dtype=torch.bool).tril()
    mask = (visible & (torch.arange(size) != 1) | torch.eye(size, dtype=torch.bool)) if masked else None
    out = grouped_attention(query, key, value, None if mask is None else mask[None, None], 0.3, repeat_heads)
    for head in range(heads * groups):
        scores = 0.3 * query[:, head] @ key[:, head // groups].transpose(1, 2)
        scores = scores.masked_fill(~(visible if mask is None else mask), -torch.inf)
        torch.testing.assert_close(out[:, head], scores.softmax(-1) @ value[:, head // groups])


def packed(seed, shared=True, responses=9, longest=40):
    """A batch of three prompts, in which every second response begins like one before, if `shared`."""
    generator = torch.Generator().manual_seed(seed)

    def draw(high):
        return int(torch.randint(1, high + 1, (1,), generator=generator))

    def tokens():
        return torch.randint(10**6, (draw(longest),), generator=generator)

    prompts = [tokens() for _ in range(3)]
    prompt = torch.randint(3, (responses,), generator=generator)
    bodies = [tokens()]
    while len(bodies) < responses:
        beginning = bodies[-1][: draw(longest) if shared and len(bodies) % 2 else 0]
        bodies.append(torch.cat([beginning, tokens()])[:longest])
    if not shared:
        prompts, prompt = [tokens() for _ in bodies], torch.arange(responses)
    return pack(prompts, prompt, bodies)


def visible(batch):
    """[L, L] whether a token sees another, from the rows of the sequences that they are in."""
    length = batch.input_ids.shape[1]
    sees = torch.zeros(length, length, dtype=torch.bool)
    for path in batch.paths.rows.split(batch.paths.lengths.tolist()):
        sees[path[:, None], path] |= path[:, None] >= path
    return sees


def test_neighbours_change_the_attention_of_a_response_in_its_last_bits_alone():
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.arange(n) for n in (5, 30, 9)]
    bodies = [torch.randint(3, (int(n),), generator=generator) for n in torch.arange(5, 60, 5)]
    prompt = torch.randint(3, (len(bodies),), generator=generator)
    inputs = {}  # prefix → its query, key and value

    def attended(rows):
        batch = pack(prompts, prompt, bodies, rows)
        tokens, sees = batch.input_ids[0], visible(batch)
        names = [tuple(tokens[row].tolist()) for row in sees]
        for name in names:
            inputs.setdefault(name, torch.randn(3, 2, 8, generator=generator))
        query, key, value = torch.stack([inputs[name] for name in names], 2)[:, None]
        out = blocked_attention(query, key, value, batch, None)
        return {name: out[0, :, row] for row, name in enumerate(names)}

    whole = attended(torch.arange(len(bodies)))
    for row in range(len(bodies)):
        for name, out in attended(torch.tensor([row])).items():
            torch.testing.assert_close(out, whole[name], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("block_size", [1, 4, 16, 512])
def test_no_block_with_a_visible_pair_is_left_out_and_none_with_a_hidden_one_is_called_full(
    block_size, shared
):
    saved = 0
    for seed in range(12):
        batch = packed(seed, shared)
        length = batch.input_ids.shape[1]
        mask_mod = batch.block_mask.mask_mod
        query, key = torch.meshgrid(torch.arange(length), torch.arange(length), indexing="ij")
        sees = mask_mod(0, 0, query, key)
        assert torch.equal(sees, visible(batch))
        count = -(-length // block_size)
        grid = torch.zeros(count * block_size, count * block_size, dtype=torch.bool)
        grid[:length, :length] = sees
        grid = grid.view(count, block_size, count, block_size).transpose(1, 2)
        some, full = visible_blocks(batch.ends, block_size)
        assert (some >= grid.any(-1).any(-1)).all()
        assert (full <= grid.all(-1).all(-1)).all()
        assert (full <= some).all()
        saved += int(full.sum())
        if block_size == 1:
            assert torch.equal(some, sees)
    assert saved or block_size == 512


@pytest.fixture
def traced(monkeypatch):
    """FlexAttention as plain operations on a CPU: torch refuses a backward there, though its own formula has one."""
    monkeypatch.setattr(flex, "_validate_device", lambda *_: None)
    with torch._dynamo.config.patch(disable=False):  # TORCH_COMPILE_DISABLE would stop the tracing
        yield


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("shared", [True, False])
def test_sparse_attention_has_the_values_and_gradients_of_blocked_attention(shared, traced):
    batch = packed(0, shared)
    torch.manual_seed(0)
    inputs = [torch.randn(1, h, batch.input_ids.shape[1], 8, requires_grad=True) for h in (4, 2, 2)]
    upstream = torch.randn_like(inputs[0])

    def run(function, **options):
        out = function(*inputs, batch, 0.3, **options)
        return [out, *torch.autograd.grad(out, inputs, upstream)]

    torch.testing.assert_close(
        run(sparse_attention, fused=False), run(blocked_attention), atol=1e-5, rtol=1e-5
    )


def test_sparse_attention_takes_the_type_of_the_values(traced):
    batch = packed(0)
    query, key, value = (torch.randn(1, 2, batch.input_ids.shape[1], 8) for _ in range(3))
    out = sparse_attention(query, key, value.bfloat16(), batch, None, fused=False)
    assert out.dtype == torch.bfloat16


def test_a_cpu_never_asks_for_compiled_attention():
    assert not attention.compiles_attention(torch.zeros(1, 1, 4, 64, dtype=torch.bfloat16))


def test_attention_that_can_not_be_compiled_raises_and_never_runs_uncompiled(monkeypatch):
    """Uncompiled it would store all scores, which shows as memory that is spent, if at all."""

    def uncompilable(query, *_, **__):
        torch._dynamo.graph_break()
        return query

    monkeypatch.setattr(attention, "flex_attention", uncompilable)
    with torch._dynamo.config.patch(disable=False), pytest.raises(torch._dynamo.exc.Unsupported):
        sparse_attention(*torch.zeros(3, 1, 1, 9, 4), packed(0), None)


def test_short_batches_never_take_the_kernel_for_decoding(monkeypatch):
    """Inductor's kernel for fewer than 128 queries has no valid choice for many ratios of query to key heads."""
    given = []

    def attended(query, *_, kernel_options=None, **__):
        given.append(kernel_options)
        return query

    monkeypatch.setattr(attention, "flex_attention", attended)
    sparse_attention(torch.zeros(1, 4, 9, 4), *torch.zeros(2, 1, 2, 9, 4), packed(0), None, fused=False)
    assert given == [{"FORCE_USE_FLEX_ATTENTION": True}]
    assert set(given[0]) <= set(flex.FlexKernelOptions.__annotations__)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("length", [4, 40, 100, 127, 1712])
@pytest.mark.parametrize("heads", [(16, 8), (32, 8), (9, 3), (28, 4), (4, 4)])
def test_attention_of_any_length_and_ratio_of_heads_compiles_on_a_gpu(length, heads):
    prompt = torch.ones(length // 2, dtype=torch.long)
    batch = pack(
        [prompt], torch.zeros(1, dtype=torch.long), [torch.ones(length - length // 2, dtype=torch.long)]
    )
    batch = batch.to("cuda")
    torch.manual_seed(0)
    torch.compiler.reset()  # a kernel of an earlier shape must not serve this one
    size = batch.input_ids.shape[1]
    exact = [torch.randn(1, h, size, 128, device="cuda") for h in (heads[0], heads[1], heads[1])]
    out = sparse_attention(*(x.bfloat16() for x in exact), batch, None)
    expected = blocked_attention(*exact, batch, None)
    assert (out.float() - expected).norm() < 2e-2 * expected.norm()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_compiled_attention_on_a_gpu_equals_plain_attention_in_float32(seed):
    batch = packed(seed, responses=20, longest=700).to("cuda")
    torch.manual_seed(seed)
    exact = [
        torch.randn(1, h, batch.input_ids.shape[1], 128, device="cuda", requires_grad=True) for h in (8, 4, 4)
    ]
    upstream = torch.randn_like(exact[0])
    half = [x.detach().bfloat16().requires_grad_() for x in exact]
    assert attention.compiles_attention(half[2])
    out, expected = sparse_attention(*half, batch, None), blocked_attention(*exact, batch, None)
    for ours, theirs in zip(
        [out, *torch.autograd.grad(out, half, upstream.bfloat16())],
        [expected, *torch.autograd.grad(expected, exact, upstream)],
        strict=True,
    ):
        assert (ours.float() - theirs).norm() < 2e-2 * theirs.norm()


COMPILED = """
import inspect
import sys

import torch
import torch.nn.attention.flex_attention as flex
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters

from tagrpo.packing import attention, head
from tagrpo.packing.policy import CausalPolicy
from tagrpo.modules.policy.logprobs import PromptedResponses, Scorer
from tagrpo.modules.policy.model import load_causal_lm
from tagrpo.modules.policy.sharding import compile_layers

flex._validate_device = lambda *_: None  # its backward is refused on CPUs, though the uncompiled one works
attention.compiled = lambda _: flex.flex_attention
if "recompile_limit" in inspect.signature(torch.compile).parameters:  # the policy's own limit counts, not torch's
    torch._dynamo.config.recompile_limit = 2
folder, count = sys.argv[1], int(sys.argv[2])
layers, heads = (CompileCounterWithBackend("eager") for _ in range(2))
plain = CausalPolicy(load_causal_lm(folder))
policy = CausalPolicy(load_causal_lm(folder, gradient_checkpointing=True), chunk_size=8).train()
reference = CausalPolicy(load_causal_lm(folder), chunk_size=8).eval().requires_grad_(False)
for compiled in (policy, reference):
    compile_layers(compiled, layers)
compile = torch.compile
torch.compile = lambda function, **options: compile(function, **{"backend": heads, **options})
scorer, truth = (Scorer(policy, other, autocast_dtype=torch.bfloat16) for other in (reference, plain))
generator = torch.Generator().manual_seed(1)
draw = lambda low, high: int(torch.randint(low, high + 1, (), generator=generator))
tokens = lambda highest: torch.randint(3, 60, (draw(1, highest),), generator=generator)
largest = 0.0
for index in range(count):
    longest = draw(1, 60)
    prompts, prompt = [tokens(longest) for _ in range(2)], torch.arange(draw(1, 6)) % 2
    responses = PromptedResponses(prompts=prompts, prompt=prompt, responses=[tokens(longest) for _ in prompt])
    nothing = index % 10 == 9  # to learn from on this rank
    ((packed, _),) = scorer.pack(responses, torch.arange(0 if nothing else len(prompt)))
    attention.compiles_attention = head.fuses = lambda _: True
    scorer.score(responses, torch.arange(len(prompt)))
    found = scorer.reference_logprobs(packed)
    with scorer.autocast():
        loss = None if nothing else (lambda part, logprobs, entropy: logprobs.sum())
        scores = policy(packed, "none" if nothing else "detached", loss)
    (scores.logprobs.sum() * 0 if nothing else scores.loss).backward()
    attention.compiles_attention = head.fuses = lambda _: False
    expected = truth.reference_logprobs(packed)
    largest = max(largest, *(float((x.detach() - expected).abs().max()) for x in (found, scores.logprobs)))
print(layers.frame_count, heads.frame_count, sum(counters["graph_break"].values()), largest)
"""


@pytest.mark.slow
def test_policy_and_reference_compile_to_few_graphs_for_any_lengths(tiny_policy):
    """Traced as for a GPU's compiler, under autocast; `fullgraph` would raise at a break and at too many graphs."""
    command = [sys.executable, "-c", COMPILED, str(tiny_policy), "30"]
    environment = {**os.environ, "TORCH_COMPILE_DISABLE": "0"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    layers, heads, breaks, difference = result.stdout.split()[-4:]
    print(f"{layers} graphs of layers, {heads} of heads")
    assert int(layers) <= 4, "a mask of one block has no graph of its own"
    assert int(heads) <= 16
    assert int(breaks) == 0
    assert float(difference) < 0.1


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(
    ("block_size", "responses", "longest"), [(1, 4, 5), (2, 5, 8), (4, 6, 12), (16, 9, 40)]
)
def test_the_mask_lists_the_blocks(block_size, responses, longest, shared):
    for seed in range(6):
        batch = packed(seed, shared, responses, longest)
        some, full = visible_blocks(batch.ends, block_size)
        mask = block_mask(batch.ends, block_size)
        listed = []
        for numbers, columns in (
            (mask.kv_num_blocks, mask.kv_indices),
            (mask.full_kv_num_blocks, mask.full_kv_indices),
        ):
            dense = torch.zeros_like(some)
            for row, count in enumerate(numbers[0, 0].tolist()):
                assert columns[0, 0, row, :count].tolist() == sorted(columns[0, 0, row, :count].tolist())
                dense[row, columns[0, 0, row, :count].long()] = True
            listed.append(dense)
        assert torch.equal(listed[0], some & ~full)
        assert torch.equal(listed[1], full)
    assert block_mask(batch.ends).BLOCK_SIZE == (128, 128)
