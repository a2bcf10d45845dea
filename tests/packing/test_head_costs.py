"""What the head of GPUs saves, counted without one. That it computes the same is in test_head.py."""

from __future__ import annotations

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._inductor.compile_fx import compile_fx
from torch._inductor.debug import DebugContext
from torch._inductor.graph import GraphLowering
from torch._inductor.ir import gm_original_output_strides
from torch._inductor.virtualized import V

from tagrpo.packing import head
from tagrpo.packing.head import HeadConfig, Targets, chunks_of, head_scores
from tests.costs import Costs


@pytest.mark.parametrize("entropy", ["none", "detached", "grad"])
def test_the_compiled_head_moves_at_most_half_of_the_bytes(entropy, monkeypatch):
    """Elementwise bytes per logit in bfloat16: as many as inductor's kernels read and write, against one by one."""
    rows, width, vocabulary = 16, 8, 4096
    hidden, weight = torch.randn(rows, width).bfloat16(), torch.randn(vocabulary, width).bfloat16()
    _, targets = Targets.of(torch.arange(rows), torch.arange(rows))
    gradients = torch.randn(2, rows)
    config = HeadConfig(1.0, entropy, rows, needs_gradient=(True, True))

    def run(kind):
        made = kind(hidden, weight, targets, config)
        (chunk,) = made.chunks
        _, _, entropies = made.score(chunk)
        made.backward(chunk, gradients[0], entropies, gradients[1])

    with Costs() as costs:
        run(head.Head)
    before = costs.other_bytes - 12 * weight.numel()  # the sum over chunks of the weight's gradient
    moved = []

    def count(graph, inputs, **_):
        gm_original_output_strides(graph)
        lowered = GraphLowering(graph)
        with V.set_graph_handler(lowered), V.set_debug_handler(DebugContext()):
            lowered.run(*inputs)
            lowered._update_scheduler()
            moved.append(lowered.count_bytes()[0])
        return make_boxed_func(graph.forward)

    def compiled(function):
        return torch.compile(
            function, backend=lambda graph, inputs: compile_fx(graph, inputs, inner_compile=count)
        )

    monkeypatch.setattr(head, "compiled", compiled)
    with torch._dynamo.config.patch(disable=False):
        run(head.FusedHead)
    assert len(moved) == 2
    print(
        f"{entropy=}: {sum(moved) / rows / vocabulary:.1f} bytes per logit, one by one {before / rows / vocabulary:.1f}"
    )
    assert sum(moved) <= before / 2
    assert sum(moved) >= 10 * rows * vocabulary, "the logits are read twice, their gradient is written once"


@pytest.mark.parametrize(
    ("rows", "size", "expected"),
    [(9, 4, [3, 3, 3]), (8, 4, [4, 4]), (5, 4, [2, 3]), (10, 4, [3, 3, 4]), (1, 4, [1]), (3, 1, [1, 1, 1])],
)
def test_no_chunk_has_a_single_row_where_chunks_may_have_three(rows, size, expected):
    _, targets = Targets.of(torch.zeros(rows, dtype=torch.long), torch.arange(rows))
    chunks = [chunk.states for chunk in chunks_of(targets, size)]
    assert [part.stop - part.start for part in chunks] == expected
    assert [row for part in chunks for row in range(part.start, part.stop)] == list(range(rows))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("entropy", ["detached", "grad"])
def test_the_compiled_head_on_a_gpu_equals_a_head_in_float64(entropy):
    torch.manual_seed(0)
    hidden = torch.randn(600, 128, device="cuda").bfloat16()
    weight = (torch.randn(5000, 128, device="cuda") / 8).bfloat16()
    targets = torch.randint(5000, (600,), device="cuda")

    def loss(_, logprobs, spread):
        return logprobs.sum() if entropy == "detached" else logprobs.sum() + spread.square().sum()

    assert head.fuses(weight)
    ours = [x.clone().requires_grad_() for x in (hidden, weight)]
    _, each = Targets.of(targets.cpu(), torch.arange(len(targets)))
    scores = head_scores(*ours, each.to("cuda"), entropy=entropy, chunk_size=256, loss=loss)
    scores.loss.backward()
    exact = [x.double().requires_grad_() for x in (hidden, weight)]
    logprobs = torch.log_softmax(exact[0] @ exact[1].T, -1)
    expected = logprobs.gather(1, targets[:, None])[:, 0], -(logprobs.exp() * logprobs).sum(1)
    loss(None, *expected).backward()
    for found, right in zip(scores[:2], expected, strict=True):
        torch.testing.assert_close(found.double(), right, atol=1e-4, rtol=1e-4)
    for found, right in zip(ours, exact, strict=True):
        assert (found.grad.double() - right.grad).norm() < 1e-2 * right.grad.norm()
