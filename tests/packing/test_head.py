"""The chunked head, with a loss inside and outside, against autograd through all logits."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from tagrpo.packing import head
from tagrpo.packing.head import Targets, TokenScores, head_scores, token_scores


def each(targets):
    """`targets` for `head_scores`: a tensor is one token for each state."""
    return (
        Targets.of(targets, torch.arange(len(targets)))[1] if isinstance(targets, torch.Tensor) else targets
    )


@pytest.fixture(params=["buffers", "fused"], autouse=True)
def kind(request, monkeypatch):
    """Both heads, that of CPUs and that of GPUs; the latter uncompiled."""
    monkeypatch.setattr(head, "compiled", lambda function: function)
    monkeypatch.setattr(head, "fuses", lambda _: request.param == "fused")
    return request.param


def inside(*arguments, loss, **options) -> TokenScores:
    hidden, weight, targets, *rest = arguments
    return head_scores(hidden, weight, each(targets), *rest, loss=loss, **options)


def outside(*arguments, loss, **options) -> TokenScores:
    hidden, weight, targets, *rest = arguments
    scores = head_scores(hidden, weight, each(targets), *rest, **options)
    return scores._replace(loss=loss(slice(0, len(scores.logprobs)), scores.logprobs, scores.entropy))


def log_likelihood(_, logprobs, __):
    return logprobs.sum()


both = pytest.mark.parametrize("taken", [inside, outside])


@both
@pytest.mark.parametrize("entropy", ["none", "detached", "grad"])
@pytest.mark.parametrize(
    ("chunk_size", "temperature"), [(1, 1.0), (4, 0.7), (3, 2.0), (99, 1.3), (None, 0.7)]
)
def test_the_chunked_head_equals_autograd_through_all_logits(taken, entropy, chunk_size, temperature):
    torch.manual_seed(0)
    inputs = hidden, weight = [torch.randn(10, 6).requires_grad_(), (torch.randn(20, 6) * 2).requires_grad_()]
    targets, (a, b) = torch.randint(20, (10,)), torch.randn(2, 10)

    def loss(part, logprobs, spread):
        value = (a[part] * (logprobs + 3 * logprobs.exp())).sum()
        return value if entropy != "grad" else value + (b[part] * spread.square()).sum()

    def scores_and_gradients(scores):
        (-2 * scores.loss).backward()
        gradients = [x.grad.clone() for x in inputs]
        for x in inputs:
            x.grad = None
        return [s for s in scores if s is not None], gradients

    exact = token_scores(hidden @ weight.T, targets, temperature, entropy)
    expected = scores_and_gradients(exact._replace(loss=loss(slice(None), exact.logprobs, exact.entropy)))
    options = {"temperature": temperature, "entropy": entropy, "chunk_size": chunk_size}
    scores = taken(hidden, weight, targets, loss=loss, **options)
    assert (scores.entropy is None) == (entropy == "none")
    if taken is inside:
        assert not any(s.requires_grad for s in scores[:2] if s is not None)
    elif entropy != "none":
        assert scores.entropy.requires_grad == (entropy == "grad")
    torch.testing.assert_close(scores_and_gradients(scores), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("used", ["logprobs", "entropy"])
def test_a_backward_from_log_probs_or_entropies_alone_costs_nothing_for_the_others(used, monkeypatch):
    torch.manual_seed(0)
    hidden, weight = torch.randn(10, 6).requires_grad_(), torch.randn(20, 6).requires_grad_()
    targets, upstream = torch.randint(20, (10,)), torch.randn(10)
    modes = []
    multiply = head.Head._multiply
    monkeypatch.setattr(
        head.Head, "_multiply", lambda self, rows: modes.append(self.entropy) or multiply(self, rows)
    )
    ours = getattr(head_scores(hidden, weight, each(targets), 0.7, "grad", 4), used)
    plain = getattr(token_scores(hidden @ weight.T, targets, 0.7, "grad"), used)
    found, expected = (torch.autograd.grad(x, [hidden, weight], upstream) for x in (ours, plain))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert modes == ["grad"] * 3 + ["none" if used == "logprobs" else "grad"] * 3


@pytest.mark.parametrize("entropy", ["none", "grad"])
def test_few_logits_are_kept_for_any_number_of_backwards_and_more_are_made_again(entropy, monkeypatch):
    torch.manual_seed(0)
    rows, vocabulary, made = 10, 2**19, []  # two chunks
    multiply = head.Head._multiply
    monkeypatch.setattr(head.Head, "_multiply", lambda self, part: made.append(part) or multiply(self, part))
    inputs = [torch.randn(rows, 2).requires_grad_(), torch.randn(vocabulary, 2).requires_grad_()]
    targets, gradients = torch.randint(vocabulary, (rows,)), []
    for most in (rows * vocabulary, rows * vocabulary - 1):
        monkeypatch.setattr(head, "KEPT", most)
        scores = head_scores(*inputs, each(targets), 0.7, entropy)
        value = scores.logprobs.exp().sum() if entropy == "none" else scores.entropy.square().sum()
        gradients += [torch.autograd.grad(value, inputs, retain_graph=True) for _ in range(2)]
    assert len(made) == 2 + (2 + 4)
    for found in gradients[1:]:
        torch.testing.assert_close(found, gradients[0], atol=0, rtol=0)
    made.clear()
    head_scores(*inputs, each(targets), 0.7, entropy, chunk_size=5).logprobs.sum().backward()
    assert len(made) == 4, "a chunk size bounds the logits"


def test_the_loss_sees_every_token_once_and_in_order():
    parts = []

    def loss(part, logprobs, spread):
        parts.append((part.tolist(), len(logprobs), len(spread)))
        return logprobs.sum()

    head_scores(torch.randn(8, 2), torch.randn(5, 2), each(torch.arange(8) % 5), chunk_size=3, loss=loss)
    assert parts == [([0, 1], 2, 2), ([2, 3, 4], 3, 3), ([5, 6, 7], 3, 3)]


@both
@pytest.mark.parametrize("entropy", ["none", "detached", "grad"])
@pytest.mark.parametrize("chunk_size", [None, 1, 2, 100])
def test_a_state_that_predicts_several_tokens_is_scored_once(taken, entropy, chunk_size):
    torch.manual_seed(0)
    predictors = torch.tensor([4, 9, 4, 4, 2, 9, 4, 2])  # of three states
    tokens = torch.tensor([1, 0, 3, 1, 2, 0, 1, 2])
    states, targets = Targets.of(tokens, predictors)
    assert states.tolist() == [2, 4, 9]
    hidden = torch.randn(3, 6, requires_grad=True)
    weight = torch.randn(5, 6, requires_grad=True)
    coefficients = torch.randn(2, 8)

    def loss(tokens, logprobs, spread):
        total = (coefficients[0, tokens] * logprobs.sigmoid()).sum()
        return total if spread is None else total + (coefficients[1, tokens] * spread.square()).sum()

    def outcome(scores):
        gradients = torch.autograd.grad(scores.loss, (hidden, weight))
        return scores.logprobs.detach(), scores.loss.detach(), *gradients

    rows = torch.searchsorted(states, predictors)
    exact = token_scores(hidden[rows] @ weight.T, tokens, 0.7, entropy)
    exact = exact._replace(loss=loss(torch.arange(8), exact.logprobs, exact.entropy))
    ours = taken(hidden, weight, targets, 0.7, entropy, chunk_size, loss=loss)
    torch.testing.assert_close(outcome(ours), outcome(exact), atol=1e-6, rtol=1e-5)


@both
@pytest.mark.parametrize("autocast", [False, True])
def test_a_bfloat16_head_gives_float32_scores_and_sums_its_gradient_in_float32(taken, autocast):
    torch.manual_seed(0)
    chunks, rows = 300, 2
    hidden, weight = torch.randn(chunks * rows, 8), torch.randn(30, 8)
    if not autocast:
        hidden, weight = hidden.bfloat16(), weight.bfloat16()
    hidden.requires_grad_(), weight.requires_grad_()
    targets = torch.randint(30, (chunks * rows,))
    exact = weight.detach().bfloat16().float().requires_grad_()
    logits = hidden.detach().bfloat16().float() @ exact.t()
    token_scores(logits, targets, 1.0, "none").logprobs.sum().backward()

    with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
        scores = taken(hidden, weight, targets, loss=log_likelihood, chunk_size=rows)
    scores.loss.backward()
    assert {s.dtype for s in scores} == {torch.float32}
    assert (weight.grad.dtype, hidden.grad.dtype) == (weight.dtype, hidden.dtype)
    # Rounding each chunk's product costs some 0.2 %; adding 300 of them up in bfloat16 would cost several per cent.
    assert (weight.grad.float() - exact.grad).norm() < 5e-3 * exact.grad.norm()


@both
def test_a_frozen_head_costs_no_gradient_of_its_weight(taken, largest_tensor):
    hidden, weight = torch.randn(4, 3, requires_grad=True), torch.randn(7, 3)
    with largest_tensor(except_shapes={(4, 7)}) as largest:
        taken(hidden, weight, torch.tensor([0, 1, 2, 6]), loss=log_likelihood).loss.backward()
    assert hidden.grad is not None
    assert largest.numel <= 7 * 3  # the transposed weight; a gradient of it would show as float32 zeros
    assert weight.grad is None


def test_minus_infinity_among_the_logits_gives_a_finite_entropy():
    scores = token_scores(torch.tensor([[0.0, 0.0, -torch.inf]]), torch.tensor([1]), 1.0, "grad")
    torch.testing.assert_close(scores.entropy, torch.tensor([2.0]).log())


@both
def test_by_default_four_million_logits_exist_at_one_time_on_a_cpu(taken, largest_tensor):
    sizes = []

    def loss(part, logprobs, _):
        sizes.append(len(logprobs))
        return logprobs.sum()

    with largest_tensor(set()) as seen:
        taken(torch.randn(16, 2), torch.randn(2**19, 2), torch.arange(16), loss=loss)
    assert sizes == ([8, 8] if taken is inside else [16])
    assert seen.numel == 2**22


def test_a_loss_may_leave_the_entropy_alone():
    torch.manual_seed(0)
    hidden, weight = torch.randn(5, 3, requires_grad=True), torch.randn(7, 3)
    arguments = (hidden, weight, each(torch.arange(5)))
    gradients = []
    for entropy in ("none", "grad"):
        head_scores(*arguments, entropy=entropy, loss=log_likelihood).loss.backward()
        gradients.append(hidden.grad.clone())
        hidden.grad = None
    torch.testing.assert_close(*gradients)


@both
def test_a_gradient_of_the_gradient_is_refused(taken):
    hidden = torch.randn(5, 3, requires_grad=True)
    scores = taken(hidden, torch.randn(7, 3), torch.arange(5), loss=log_likelihood)
    (gradient,) = torch.autograd.grad(scores.loss, hidden, create_graph=True)
    with pytest.raises(RuntimeError, match=r"once_differentiable|require grad"):
        gradient.sum().backward()


@both
def test_a_second_derivative_is_refused(taken):
    hidden, weight = torch.randn(4, 3, requires_grad=True), torch.randn(5, 3)
    scores = taken(hidden, weight, torch.arange(4), loss=log_likelihood)
    factor = torch.ones((), requires_grad=True)
    (first,) = torch.autograd.grad(scores.loss, hidden, factor, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()
