"""A model of the update's cost on many GPUs: arithmetic from stated assumptions, not a measurement.

Compute: useful FLOP (6 per parameter and distinct token of the layers, 6 per element of the head and response token; a
third of that for each forward without gradient) over GPUs × peak × share. The share is what `update_step.py` measures
on one GPU, where recomputation and attention count as nothing; until that is done it is assumed. Communication: FSDP2
gathers bfloat16 weights once per forward and once per backward of every micro-batch and reduces float32 gradients once
per optimizer step; it overlaps with compute, so that the truth lies between the longer of the two and their sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    layer_parameters: float = 1.41e9
    """Qwen3-1.7B, 28 layers."""
    head_parameters: float = 151936 * 2048
    """Tied with the embedding."""
    questions: int = 64
    responses: int = 32
    """(N+1)·G = 4·8 per question."""
    prompt: int = 512
    mean: int = 1000
    """Tokens of a response; the limit is 3,072."""
    mini_batches: int = 2
    reference: bool = True
    """A forward of the reference: the KL coefficient is not zero."""
    token_budget: int = 32768
    peak: float = 989e12
    """FLOP/s of an H100 SXM in bfloat16, dense."""
    share: float = 0.35
    """Useful share of the peak."""
    bytes_per_second: float = 300e9
    """What a GPU receives from the others: 300 GB/s over NVLink in a node, 40 GB/s over a network of 400 Gbit/s."""


def seconds(gpus: int, a: Assumptions, share_prefix: bool = True) -> dict[str, float]:
    """Compute and communication seconds of the updates of one iteration.

    >>> found = seconds(8, Assumptions(questions=8, share=1.0, reference=False, mini_batches=1))
    >>> tokens = 8 * 32 * 1000
    >>> compute = (6 * 1.41e9 * (tokens + 8 * 512) + 6 * 151936 * 2048 * tokens) / (8 * 989e12)
    >>> abs(found["compute"] - compute) < 1e-9
    True
    """
    tokens = a.questions * a.responses * a.mean
    copies = a.questions if share_prefix else a.questions * a.responses
    encoded = tokens + copies * a.prompt
    training = 6 * (a.layer_parameters * encoded + a.head_parameters * tokens)
    forwards = (a.mini_batches - 1) / a.mini_batches + a.reference  # old log-probs of later mini-batches; reference
    compute = training * (1 + forwards / 3) / (gpus * a.peak * a.share)
    parameters = a.layer_parameters + a.head_parameters
    micro_batches = a.mini_batches * math.ceil(encoded / gpus / a.mini_batches / a.token_budget)
    gathered = 2 * parameters * micro_batches * (2 + forwards)
    reduced = 4 * parameters * a.mini_batches
    communication = (gathered + reduced) * (gpus - 1) / gpus / a.bytes_per_second
    return {"compute": compute, "communication": communication}


def table() -> str:
    """Markdown, for docs/performance.md."""
    lines = [
        "| GPUs | questions per iteration | network GB/s | compute s | communication s | update s |"
        " without shared prefixes s |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for gpus, questions, bandwidth in ((8, 64, 300e9), (64, 64, 40e9), (64, 512, 40e9)):
        a = Assumptions(questions=questions, bytes_per_second=bandwidth)
        found, repeated = seconds(gpus, a), seconds(gpus, a, share_prefix=False)
        spans = [f"{max(f.values()):.1f} to {sum(f.values()):.1f}" for f in (found, repeated)]
        lines.append(
            f"| {gpus} | {questions} | {bandwidth / 1e9:.0f} | {found['compute']:.1f} "
            f"| {found['communication']:.1f} | {spans[0]} | {spans[1]} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
