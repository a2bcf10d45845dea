"""How far log-probs of the same tokens differ, in nats: between packings, sampler and trainer, bfloat16 and float32.

    python benchmarks/agreement.py embedded float32          # or smollm2, bfloat16

Prints largest and mean differences from one packed batch, as in "One log-prob" of benchmarks/RESULTS.md.
"""

import argparse
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import AutoTokenizer

from tagrpo.lab.tasks.arithmetic import ArithmeticSource
from tagrpo.modules.policy.model import load_causal_lm
from tagrpo.packing import CausalPolicy, pack
from tagrpo.rollouts import SamplingConfig, TransformersEngine
from tagrpo.starter import starter_path
from tagrpo.starter.smollm2 import smollm2_folder
from tagrpo.types import Request

SIZES = {"embedded": (16, 16, 40), "smollm2": (4, 8, 64)}
"""Questions, responses to each, most tokens of one."""


def scores(
    policy: CausalPolicy, data: tuple[list[Tensor], Tensor, list[Tensor]], parts: Sequence[Tensor]
) -> Tensor:
    """[T] log-probs of all responses in their order, from one packed batch for each part of their rows.

    `data`: prompts, the prompt of each response, responses.
    """
    found: dict[int, Tensor] = {}
    for rows in parts:
        batch = pack(*data, rows)
        with torch.no_grad():
            by_response = policy(batch, "none").logprobs.split(batch.lengths.tolist())
        found |= zip(batch.rows.tolist(), by_response, strict=True)
    return torch.cat([found[row] for row in range(len(data[2]))])


def main() -> None:
    """Console entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", choices=SIZES)
    parser.add_argument("dtype", choices=["float32", "bfloat16"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    questions, samples, longest = SIZES[options.model]
    folder = str(starter_path() if options.model == "embedded" else smollm2_folder())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompts = []
    for group in ArithmeticSource("train", size=questions, num_rephrasings=0).load():
        text = f"{group.question} <sep>"
        if tokenizer.chat_template:
            chat = [{"role": "user", "content": group.question}]
            text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        prompts.append(tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids[0])
    engine = TransformersEngine(folder, dtype=options.dtype)
    engine.sync(load_causal_lm(folder).named_parameters())
    drawn = engine.generate(
        Request(prompts, [samples] * questions, SamplingConfig(max_new_tokens=longest), seed=1)
    )
    completions = [completion for group in drawn for completion in group]
    responses = [completion.token_ids for completion in completions]
    prompt = torch.arange(questions).repeat_interleave(samples)
    every = torch.arange(len(responses))

    policies = [
        CausalPolicy(load_causal_lm(folder).eval().to(kind)) for kind in (torch.float32, torch.bfloat16)
    ]
    policy = policies[options.dtype == "bfloat16"]
    at_random = torch.randperm(len(every), generator=torch.Generator().manual_seed(0)).split(8)
    data = prompts, prompt, responses
    found = {
        "the prompt before each response": scores(
            policy, ([prompts[p] for p in prompt], every, responses), [every]
        ),
        "micro-batches of 8 rows, drawn at random": scores(policy, data, at_random),
        "micro-batches of one row": scores(policy, data, every.split(1)),
        "sampled by the transformers engine": torch.cat([completion.logprobs for completion in completions]),
        "the same weights in float32": scores(policies[0], data, [every]),
    }
    whole = scores(policy, data, [every])
    for policy.chunk_size in (64, 7, 1):
        found[f"logits in chunks of {policy.chunk_size}"] = scores(policy, data, [every])
    policy.model.set_attn_implementation("sdpa")
    plain = []
    with torch.no_grad():
        for row, ids in enumerate(responses):
            head = prompts[prompt[row]]
            logits = policy.model(torch.cat([head, ids])[None]).logits[0, len(head) - 1 : -1].float()
            plain.append(logits.log_softmax(-1).gather(1, ids[:, None])[:, 0])
    found["the model's plain forward, one response at a time"] = torch.cat(plain)
    for name, values in found.items():
        difference = (values - whole).abs()
        print(f"{name:50} {difference.max():.1e} {difference.mean():.1e}")


if __name__ == "__main__":
    main()
