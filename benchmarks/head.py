"""The output head alone: seconds, bytes held and gradients of one forward and backward, by both of its forms.

python benchmarks/head.py --device cuda --dtype bfloat16 --json benchmarks/results/gpu-head.json

`buffers` goes operation by operation, as on CPUs; `fused` is compiled, as on GPUs. Gradients are compared with those of
a head in float64 on a few tokens.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor
from workload import median, peak_memory, report, seconds

from tagrpo.modules.policy import logit_chunks
from tagrpo.modules.policy.causal_policy import rows_at_once
from tagrpo.modules.policy.chunked_head import head_loss, token_scores

SIZES = {"paper": (151936, 2048), "tiny": (512, 64)}


def gradients(hidden: Tensor, weight: Tensor, targets: Tensor, kind: str) -> list[Tensor]:
    """Of the sum of all log-probs, with the head `kind`."""
    logit_chunks.fuses = lambda _: kind == "fused"
    inputs = [x.detach().requires_grad_() for x in (hidden, weight)]
    chunk = rows_at_once(hidden.device.type, len(weight))
    scores = head_loss(*inputs, None, targets, lambda _, logprobs, __: logprobs.sum(), chunk_size=chunk)
    assert scores.loss is not None
    return list(torch.autograd.grad(scores.loss, inputs))


def difference(hidden: Tensor, weight: Tensor, targets: Tensor, kind: str) -> float:
    """|a − b| / |b| of both gradients on 64 tokens, b in float64."""
    rows = slice(0, 64)
    exact = [x.detach().double().requires_grad_() for x in (hidden[rows], weight)]
    logprobs = token_scores(exact[0] @ exact[1].T, targets[rows], 1.0, "none").logprobs
    expected = torch.autograd.grad(logprobs.sum(), exact)
    ours = gradients(hidden[rows], weight, targets[rows], kind)
    return max(float((a.double() - b).norm() / b.norm()) for a, b in zip(ours, expected, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description="The output head alone, in both of its forms.")
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--size", choices=sorted(SIZES), default="paper")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    vocabulary, width = SIZES[options.size]
    place = {"device": options.device, "dtype": getattr(torch, options.dtype)}
    hidden, weight = torch.randn(options.tokens, width, **place), torch.randn(vocabulary, width, **place) * width**-0.5
    targets = torch.randint(vocabulary, (options.tokens,), device=options.device)
    kinds = ["buffers"] if torch._dynamo.config.disable else ["buffers", "fused"]
    found = {}
    for kind in kinds:
        run = [lambda kind=kind: gradients(hidden, weight, targets, kind)]
        run[0]()  # compiles
        times = median(seconds(run[0], options.device)[0] for _ in range(options.rounds))
        found[kind] = {
            "seconds": times,
            "tflops": 6 * options.tokens * vocabulary * width / times / 1e12,
            "peak_mib": peak_memory(run[0], options.device) / 2**20,
            "gradient_difference": difference(hidden, weight, targets, kind),
        }
    report({"heads": found}, options)


if __name__ == "__main__":
    main()
