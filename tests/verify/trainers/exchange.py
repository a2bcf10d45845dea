"""A small batch for the adapters, and the papers' losses of it, response by response in plain torch."""

from __future__ import annotations

import json
import math
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel

ROOT = Path(__file__).parents[3]
ADAPTERS = ROOT / "src" / "verify" / "trainers"


def python_of(trainer):
    """The Python of an environment that has the trainer; the test is skipped where there is none."""
    python = Path(os.environ.get("TAGRPO_TRAINERS", ROOT / ".trainers")) / trainer / "bin" / "python"
    if not python.exists():
        pytest.skip(f"{trainer} is not installed in {python.parents[1]}: set TAGRPO_TRAINERS")
    return python


def rows(groups=(4, 4, 4, 2), seed=0):
    """Responses to questions with that many each: the first has rewards of its own, the second equal ones."""
    draw = np.random.default_rng(seed)
    batch = []
    for question, count in enumerate(groups):
        prompt = draw.integers(0, 17, 2 + question).tolist()
        for number in range(count):
            length = int(draw.integers(1, 9))
            reward = [float(draw.normal()), 1.0, float(number % 2), float(number)][question]
            batch.append(
                {
                    "prompt_ids": prompt,
                    "response_ids": draw.integers(0, 17, length).tolist(),
                    "reward": reward,
                    "question": question,
                    "wording": 0,
                    "truncated": length == 8,
                }
            )
    return batch


def write(folder, batch, methods, micro_batch_rows=5, temperature=0.7, seed=0, **settings):
    """Write a batch, a model and settings to a folder; the old and the reference policy are near the model."""
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=17, n_positions=32, n_embd=16, n_layer=2, n_head=2, bos_token_id=None, eos_token_id=None,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, initializer_range=0.5,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).double()
    noise = np.random.default_rng(seed)
    for row, logprobs in zip(batch, response_logprobs(model, batch, temperature)[0], strict=True):
        near = logprobs.detach().numpy()
        row["sampled_logprobs"] = (near + noise.normal(0, 0.3, len(near))).tolist()
        row["reference_logprobs"] = (near + noise.normal(0, 0.3, len(near))).tolist()
    folder.mkdir(parents=True)
    model.save_pretrained(folder / "model")
    (folder / "batch.json").write_text(json.dumps({"rows": batch}))
    given = {
        "dtype": "float64",
        "temperature": temperature,
        "micro_batch_rows": micro_batch_rows,
        "max_response_tokens": 8,
        "methods": methods,
        **settings,
    }
    (folder / "settings.json").write_text(json.dumps(given))
    return folder


def run(python, trainer, source, target):
    """Run an adapter in a process; return its result."""
    keep = ("PATH", "HOME", "OMP_NUM_THREADS")
    environment = {name: os.environ[name] for name in keep if name in os.environ}
    done = subprocess.run(
        [python, ADAPTERS, trainer, source, target],
        env=environment | {"HF_HUB_OFFLINE": "1", "TORCH_COMPILE_DISABLE": "1"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads((target / "result.json").read_text())


def response_logprobs(model, batch, temperature):
    """Log-probs and entropies of each response's tokens, a pass without padding for each."""
    logprobs, entropies = [], []
    for row in batch:
        ids = torch.tensor([row["prompt_ids"] + row["response_ids"]])
        start = len(row["prompt_ids"])
        logits = model(input_ids=ids).logits[0, start - 1 : -1] / temperature
        log = logits.log_softmax(-1)
        logprobs.append(log[torch.arange(len(log)), ids[0, start:]])
        entropies.append(-(log.exp() * log).sum(-1))
    return logprobs, entropies


class Reference:
    """What a formula says about a batch that `write` wrote."""

    def __init__(self, source):
        self.batch = json.loads((source / "batch.json").read_text())["rows"]
        self.settings = json.loads((source / "settings.json").read_text())
        self.model = GPT2LMHeadModel.from_pretrained(source / "model", dtype=torch.float64).eval()
        self.logprobs, self.entropies = response_logprobs(
            self.model, self.batch, self.settings["temperature"]
        )
        for logprobs in self.logprobs:
            logprobs.retain_grad()
        self.ratios = []
        self.kl = []
        for logprobs, row in zip(self.logprobs, self.batch, strict=True):
            self.ratios.append((logprobs - torch.tensor(row["sampled_logprobs"], dtype=torch.float64)).exp())
            difference = torch.tensor(row["reference_logprobs"], dtype=torch.float64) - logprobs
            self.kl.append(difference.exp() - difference - 1)
        self.lengths = [len(row["response_ids"]) for row in self.batch]
        size = self.settings["micro_batch_rows"]
        self.micro_batches = [
            range(len(self.batch))[start:][:size] for start in range(0, len(self.batch), size)
        ]

    def group_advantages(self, scale=True, epsilon=1e-6, leave_one_out=False):
        """Advantages relative to the other responses to the same question: GRPO's, Dr. GRPO's or RLOO's."""
        values = []
        for row in self.batch:
            group = [other["reward"] for other in self.batch if other["question"] == row["question"]]
            if leave_one_out:
                values.append(row["reward"] - (sum(group) - row["reward"]) / (len(group) - 1))
                continue
            centred = row["reward"] - np.mean(group)
            values.append(centred / (np.std(group, ddof=1) + epsilon) if scale else centred)
        return values

    def clipped(self, advantages, low=0.2, high=0.2, dual=math.inf, ratios=None):
        """−min(ρ A, clip(ρ) A), and at most −dual · A if A < 0, per response a value for each token."""
        terms = []
        for advantage, ratio in zip(advantages, ratios or self.ratios, strict=True):
            term = torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)
            if advantage < 0 and math.isfinite(dual):
                term = term.clamp(min=dual * advantage)
            terms.append(-term)
        return terms

    def sequence_ratios(self):
        """Geometric mean of each response's token ratios."""
        return [ratio.log().mean().exp()[None] for ratio in self.ratios]

    def token_mean(self, terms):
        return sum(term.sum() for term in terms) / sum(self.lengths)

    def sequence_mean(self, terms):
        return sum(term.mean() for term in terms) / len(terms)

    def repeated(self, advantages, row):
        """The advantage of a response for each of its tokens."""
        return torch.full((self.lengths[row],), float(advantages[row]), dtype=torch.float64)

    def covariances(self, advantages, members):
        """(A − Ā)(log π − mean log π) of each token of some responses; means are over their tokens."""
        logprobs = torch.cat([self.logprobs[row] for row in members]).detach()
        given = torch.cat([self.repeated(advantages, row) for row in members])
        return (given - given.mean()) * (logprobs - logprobs.mean())

    def check(self, target, entry, loss, advantages, tolerance=1e-9):
        """Compare what an adapter wrote with a loss, by value, token weights and gradient."""
        entry_result = json.loads((target / "result.json").read_text())["methods"][entry]
        assert entry_result["supported"] is True
        for found, expected, length in zip(entry_result["advantages"], advantages, self.lengths, strict=True):
            np.testing.assert_allclose(found, np.full(length, expected), rtol=0, atol=max(tolerance, 1e-9))
        assert entry_result["loss"] == pytest.approx(loss.item(), abs=tolerance)
        self.model.zero_grad()
        for logprobs in self.logprobs:
            logprobs.grad = None
        loss.backward(retain_graph=True)
        for found, logprobs in zip(entry_result["token_weights"], self.logprobs, strict=True):
            expected = torch.zeros(len(logprobs)) if logprobs.grad is None else logprobs.grad
            np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=tolerance)
        gradient = load_file(target / f"gradient_{entry}.safetensors")
        names = [name for name, _ in self.model.named_parameters()]
        assert sorted(gradient) == sorted(names)
        for name, parameter in self.model.named_parameters():
            np.testing.assert_allclose(gradient[name], parameter.grad, rtol=0, atol=tolerance, err_msg=name)
