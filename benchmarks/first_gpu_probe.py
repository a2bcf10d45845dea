"""What the first run on a GPU looks at before anything trains: the machine, and kernels at decisive shapes.

python benchmarks/first_gpu_probe.py machine FILE    # versions, card, driver, memory
python benchmarks/first_gpu_probe.py kernels FILE    # each kernel against float32; exit code 1 if one is wrong

FILE is written after each kernel, so that a kernel that hangs leaves the figures of the others.
"""

import importlib.metadata
import json
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

import torch

PACKAGES = ("torch", "triton", "transformers", "lightning", "peft", "numpy", "tagrpo")
TOLERANCE = 2e-2
"""Largest relative difference between bfloat16 kernels and float32 that is rounding."""
SHAPES = [
    # prompt, responses, query heads, key heads, width
    (60, [40], 16, 8, 128),
    (20, [20], 32, 8, 128),
    (2, [2], 32, 8, 128),
    (60, [40], 9, 3, 64),
    (512, [900, 3000, 70], 16, 8, 128),
    (512, [900, 300], 28, 4, 128),
]
"""Lengths 100, 40, 4, 100, 4482 and 1712 with ratios of heads of Qwen3-1.7B, Qwen3-4B, SmolLM2-135M and Qwen2.5-7B."""
SMALL_SHAPES = [(6, [4], 4, 2, 16), (2, [2], 9, 3, 16)]


def machine() -> dict[str, object]:
    """Return versions and, if there is one, the card."""
    found: dict[str, object] = {"python": platform.python_version(), "system": platform.platform()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "absent"
    if not torch.cuda.is_available():
        return found | {"card": "none, on the CPU"}
    properties = torch.cuda.get_device_properties(0)
    found |= {"card": properties.name, "memory_gib": round(properties.total_memory / 2**30, 1)}
    if shutil.which("nvidia-smi"):
        command = ["nvidia-smi", "--query-gpu=driver_version,clocks.max.sm", "--format=csv,noheader"]
        said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        found["driver, clock"] = said.splitlines()[0] if said else "unknown"
    return found


def attention_difference(
    prompt: int, bodies: list[int], heads: int, key_heads: int, width: int, device: str
) -> float:
    """Return the largest relative difference of values and gradients between sparse attention and float32."""
    from tagrpo.packing.attention import blocked_attention, sparse_attention
    from tagrpo.packing.batch import pack

    torch.compiler.reset()  # the kernel of an earlier shape must not serve this one
    responses = [torch.ones(length, dtype=torch.long) for length in bodies]
    prompts = [torch.ones(prompt, dtype=torch.long)]
    batch = pack(prompts, torch.zeros(len(bodies), dtype=torch.long), responses).to(device)
    length = batch.input_ids.shape[1]
    exact = [
        torch.randn(1, h, length, width, device=device, requires_grad=True)
        for h in (heads, key_heads, key_heads)
    ]
    half = [x.detach().bfloat16() for x in exact]
    expected = blocked_attention(*exact, batch, None)
    if device == "cpu":  # no backward of FlexAttention there
        return relative(sparse_attention(*half, batch, None, fused=False), expected)
    for tensor in half:
        tensor.requires_grad_()
    found = sparse_attention(*half, batch, None)
    upstream = torch.randn_like(expected)
    ours = [found, *torch.autograd.grad(found, half, upstream.bfloat16())]
    right = [expected, *torch.autograd.grad(expected, exact, upstream)]
    return max(relative(one, other) for one, other in zip(ours, right, strict=True))


def head_difference(device: str) -> float:
    """Return how far products of bfloat16 into float32, as the head makes them, are from float32."""
    hidden = torch.randn(64, 256, device=device).bfloat16()
    weight = torch.randn(999, 256, device=device).bfloat16()
    if device == "cpu":  # no `out_dtype` there
        return relative(hidden @ weight.t(), hidden.float() @ weight.float().t())
    logits = torch.mm(hidden, weight.t(), out_dtype=torch.float32)
    total = torch.zeros(999, 256, device=device)
    torch.addmm(total, logits.bfloat16().t(), hidden, out_dtype=torch.float32, out=total)
    expected = logits.bfloat16().float().t() @ hidden.float()
    return max(relative(logits, hidden.float() @ weight.float().t()), relative(total, expected))


def relative(found: torch.Tensor, right: torch.Tensor) -> float:
    """Return ‖found − right‖ / ‖right‖."""
    return float((found.float() - right).norm() / right.norm())


def kernels(file: Path) -> int:
    """Try each kernel and write what it gave; return 1 if one is wrong or raised."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    tries = {}
    for shape in SHAPES if device == "cuda" else SMALL_SHAPES:
        prompt, bodies, heads, key_heads, width = shape
        name = f"attention, {prompt + sum(bodies)} tokens, {heads}/{key_heads} heads of {width}"
        tries[name] = lambda shape=shape: attention_difference(*shape, device)
    tries["head, products into float32"] = lambda: head_difference(device)
    results = []
    for name, difference in tries.items():
        began = time.monotonic()
        result: dict[str, object] = {"kernel": name}
        try:
            result["difference"] = difference()
            result["outcome"] = "OK" if result["difference"] < TOLERANCE else "WRONG"
        except Exception as error:  # a compiler may raise anything, and the other kernels are to be tried
            result["outcome"] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        result["seconds"] = round(time.monotonic() - began, 1)
        results.append(result)
        print(result, flush=True)
        file.write_text(json.dumps(results))
    return int(any(result["outcome"] != "OK" for result in results))


if __name__ == "__main__":
    what, path = sys.argv[1:]
    if what == "machine":
        facts = machine()
        print(facts)
        Path(path).write_text(json.dumps(facts))
    else:
        sys.exit(kernels(Path(path)))
