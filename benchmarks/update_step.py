r"""Seconds of an update (forward, loss, backward) with a shared prefix, without padding, and padded.

    OMP_NUM_THREADS=1 python benchmarks/update_step.py --json update_step.json

All ways run in turn in every round on the same responses of the same randomly initialised Qwen3, and their gradients
are compared:

- padded: the model's own forward on right-padded rows, logits for response columns only, all of them at once;
- padding-free: packed, the prompt before each response;
- prefix-shared: packed, the prompt once for its responses.

Ratios and shares are medians over rounds of CPU time (wall time on a GPU), so that they hold on a machine that others
use as well. The share of the matrix rate counts 6 FLOP per parameter and token for the *distinct* tokens of decoder
layers and 6 per element of the head and response token; attention and recomputation count as nothing. The matrix
rate is that of square products of side 2048, measured in every round.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from tagrpo.modules.logprobs import CausalPolicy, token_scores
from tagrpo.modules.packing import pack, plan_micro_batches

Sequences = tuple[list[Tensor], Tensor, list[Tensor], Tensor]
"""(prompts, prompt of each response, responses, advantages)"""


def sequences(arguments: argparse.Namespace) -> Sequences:
    """Random tokens; log-normal lengths about the mean, one response per question of the greatest length."""
    generator = torch.Generator().manual_seed(arguments.seed)
    vocabulary, n = arguments.vocabulary, arguments.questions * arguments.responses
    spread = torch.randn(n, generator=generator).mul(0.6).exp()
    lengths = (spread * arguments.mean / spread.mean()).long().clamp(min(10, arguments.max), arguments.max)
    lengths[:: arguments.responses] = arguments.max
    prompts = [torch.randint(vocabulary, (arguments.prompt,), generator=generator) for _ in range(arguments.questions)]
    responses = [torch.randint(vocabulary, (length,), generator=generator) for length in lengths.tolist()]
    return prompts, torch.arange(n) // arguments.responses, responses, torch.randn(n, generator=generator)


def build(arguments: argparse.Namespace) -> Qwen3ForCausalLM:
    torch.manual_seed(arguments.seed)
    config = Qwen3Config(
        vocab_size=arguments.vocabulary,
        hidden_size=arguments.hidden,
        intermediate_size=8 * arguments.hidden // 3,
        num_hidden_layers=arguments.layers,
        num_attention_heads=arguments.hidden // 64,
        num_key_value_heads=max(arguments.hidden // 192, 1),
        head_dim=64,
        max_position_embeddings=arguments.prompt + arguments.max,
        tie_word_embeddings=True,
    )
    return Qwen3ForCausalLM(config).to(arguments.device, getattr(torch, arguments.dtype))


def update_packed(policy: CausalPolicy, data: Sequences, token_budget: int, share_prefix: bool) -> None:
    prompts, prompt, responses, advantages = data
    lengths = torch.tensor([len(r) for r in responses])
    heads = torch.tensor([len(p) for p in prompts])
    if not share_prefix:
        prompts, prompt, heads = [prompts[p] for p in prompt.tolist()], torch.arange(len(prompt)), heads[prompt]
    for rows in plan_micro_batches(heads, prompt, lengths, token_budget):
        batch = pack(prompts, prompt, responses, rows, share_prefix=share_prefix)
        weight = (advantages / lengths)[batch.rows].repeat_interleave(batch.lengths)
        batch = batch.to(policy.model.device)
        logprobs = policy(batch, entropy="none").logprobs
        (-(logprobs * weight.to(logprobs.device)).sum() / len(responses)).backward()


def update_padded(model: Qwen3ForCausalLM, data: Sequences, token_budget: int) -> None:
    prompts, prompt, responses, advantages = data
    head = len(prompts[0])
    longest = max(map(len, responses))
    for rows in torch.arange(len(responses)).split(max(token_budget // (head + longest), 1)):
        bodies = [responses[row] for row in rows.tolist()]
        targets = torch.nn.utils.rnn.pad_sequence(bodies, batch_first=True)
        mask = torch.arange(targets.shape[1]) < torch.tensor([[len(body)] for body in bodies])
        weight = advantages[rows, None] / mask.sum(1, keepdim=True) * mask
        ids = torch.cat([torch.stack([prompts[p] for p in prompt[rows].tolist()]), targets], 1)
        whole = torch.cat([torch.ones(len(rows), head, dtype=torch.bool), mask], 1)
        ids, whole, targets, weight = (x.to(model.device) for x in (ids, whole, targets, weight))
        logits = model(input_ids=ids, attention_mask=whole, logits_to_keep=targets.shape[1] + 1, use_cache=False).logits
        logprobs = token_scores(logits[:, :-1].flatten(0, 1), targets.flatten(), 1.0, "none").logprobs
        (-(logprobs * weight.flatten()).sum() / len(responses)).backward()


def seconds(run: Callable[[], None], device: str) -> tuple[float, float]:
    """CPU seconds (wall seconds on a GPU) and wall seconds."""
    start, cpu = time.perf_counter(), time.process_time()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    wall = time.perf_counter() - start
    return (time.process_time() - cpu) if device == "cpu" else wall, wall


def gradient(model: torch.nn.Module) -> Tensor:
    flat = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    model.zero_grad()
    return flat.double()


def measure(arguments: argparse.Namespace) -> dict[str, object]:
    model, data = build(arguments), sequences(arguments)
    policy = CausalPolicy(model)
    budget, device = arguments.token_budget, arguments.device
    ways = {
        "padded": lambda: update_padded(model, data, budget),
        "padding_free": lambda: update_packed(policy, data, budget, share_prefix=False),
        "prefix_shared": lambda: update_packed(policy, data, budget, share_prefix=True),
    }
    attention = {"padded": "sdpa", "padding_free": "tagrpo_prefix_shared", "prefix_shared": "tagrpo_prefix_shared"}
    square = torch.randn(2048, 2048, device=device, dtype=model.dtype)
    products = 3 if device == "cpu" else 200

    def multiply() -> None:
        for _ in range(products):
            square @ square

    gradients: dict[str, Tensor] = {}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in (*ways, "product")}
    for lap in range(arguments.rounds + 1):  # the first warms up
        for name, way in ways.items():
            model.set_attn_implementation(attention[name])
            elapsed = seconds(way, device)
            gradients[name] = gradient(model)
            if lap:
                times[name].append(elapsed)
        product = tuple(t / products for t in seconds(multiply, device))
        if lap:
            times["product"].append(product)  # type: ignore[arg-type]

    tokens = sum(map(len, data[2]))
    distinct = tokens + sum(map(len, data[0]))
    head = model.lm_head.weight.numel()
    layers = sum(p.numel() for p in model.model.layers.parameters())
    flop = 6 * layers * distinct + 6 * head * tokens
    unit = 2 * 2048**3 / flop  # matrix seconds per update second, over those of one product

    def median(values: list[float]) -> float:
        return statistics.median(values)

    def ratio(slow: str, fast: str) -> float:
        return median([a[0] / b[0] for a, b in zip(times[slow], times[fast], strict=True)])

    reference = gradients["padded"]
    return {
        "shape": {k: v for k, v in vars(arguments).items() if k != "json"},
        "parameters": sum(p.numel() for p in model.parameters()),
        "tokens": {
            "response": tokens,
            "distinct": distinct,
            "with repeated prompts": tokens + len(data[2]) * len(data[0][0]),
        },
        "seconds": {name: median([t[0] for t in values]) for name, values in times.items()},
        "wall_seconds": {name: median([t[1] for t in values]) for name, values in times.items()},
        "speedup": {
            "padding_free over padded": ratio("padded", "padding_free"),
            "prefix_shared over padding_free": ratio("padding_free", "prefix_shared"),
            "prefix_shared over padded": ratio("padded", "prefix_shared"),
        },
        "matrix_gflops": median([2 * 2048**3 / t[0] for t in times["product"]]) / 1e9,
        "share_of_matrix_rate": {
            name: median([p[0] / t[0] / unit for p, t in zip(times["product"], times[name], strict=True)])
            for name in ways
        },
        "gradient_difference": {
            name: float((gradients[name] - reference).norm() / reference.norm())
            for name in ("padding_free", "prefix_shared")
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Seconds of an update: padded, padding-free, prefix-shared.")
    parser.add_argument("--questions", type=int, default=1)
    parser.add_argument("--responses", type=int, default=32, help="per question")
    parser.add_argument("--prompt", type=int, default=150, help="tokens of each prompt")
    parser.add_argument("--mean", type=int, default=100, help="tokens of a response")
    parser.add_argument("--max", type=int, default=300, help="tokens of the longest response of each question")
    parser.add_argument("--hidden", type=int, default=384, help="a multiple of 192")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=16384)
    parser.add_argument("--token-budget", type=int, default=4096, help="per micro-batch, for each way")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    arguments = parser.parse_args()
    figures = measure(arguments)
    text = json.dumps(figures, indent=2, default=str)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
