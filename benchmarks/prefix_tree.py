"""An update over the tree of prefixes against the same update by another version of this package, in one run.

    python benchmarks/prefix_tree.py runs/demo --against ../earlier/.venv/bin/python

The rollouts are those that a finished comparison recorded (`callbacks.recorder`), and random ones that share nothing
but their prompts. Two processes, one for each version, take turns: a forward and a backward of every micro-batch, planning
and packing included. Ratios are medians over rounds of CPU seconds of one thread.
"""

from __future__ import annotations

import argparse
import ctypes
import inspect
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

BUDGET = 16384
RANDOM = "long random responses"


def peak_mib() -> float:
    """Most MiB of resident pages since the last `forget_peak`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return 0.0


def forget_peak() -> None:
    """Let `peak_mib` begin again."""
    Path("/proc/self/clear_refs").write_text("5")


class Update:
    """Forward and backward of one batch of rollouts by the installed version of the package."""

    def __init__(self, case: dict[str, Any], model: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        from tagrpo.modules.policy.flop import UsefulFlop
        from tagrpo.packing import CausalPolicy

        torch.set_num_threads(1)
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        self.policy = CausalPolicy(self.model)
        self.flop = UsefulFlop(self.policy)
        self.prompts = [torch.tensor(ids) for ids in case["prompts"]]
        self.prompt = torch.tensor(case["prompt"])
        self.responses = [torch.tensor(ids) for ids in case["responses"]]
        self.lengths = torch.tensor([len(ids) for ids in self.responses])
        self.starts = self.lengths.cumsum(0) - self.lengths
        generator = torch.Generator().manual_seed(0)
        self.weights = torch.randn(int(self.lengths.sum()), generator=generator)

    def run(self) -> dict[str, float]:
        """Make one update without an optimizer; return its seconds, those of planning and packing, and more."""
        import torch

        from tagrpo.packing import pack
        from tagrpo.packing.batch import plan_micro_batches

        self.model.zero_grad(set_to_none=False)
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # pages of earlier updates
        forget_peak()
        before = peak_mib()
        started = time.process_time()
        if "prompts" in inspect.signature(plan_micro_batches).parameters:
            parts = plan_micro_batches(self.prompts, self.prompt, self.responses, BUDGET)
        else:
            heads = torch.tensor([len(ids) for ids in self.prompts])
            parts = plan_micro_batches(heads, self.prompt, self.lengths, BUDGET)
        batches = [pack(self.prompts, self.prompt, self.responses, part) for part in parts]
        packed = time.process_time()
        for batch in batches:
            rows = [torch.arange(int(self.lengths[row])) + self.starts[row] for row in batch.rows]
            weights = self.weights[torch.cat(rows)]

            def loss(tokens: Any, logprobs: Any, _: object, weights: Any = weights) -> Any:
                return (weights[tokens] * logprobs).sum()

            self.policy(batch, "detached", loss).loss.backward()
        ended = time.process_time()
        return {
            "seconds": ended - started,
            "packing": packed - started,
            "tokens": sum(batch.input_ids.shape[1] for batch in batches),
            "states": sum(len(getattr(batch, "states", batch.targets)) for batch in batches),
            "flop": sum(self.flop.of(getattr(batch, "work", batch)) for batch in batches),
            "mib": peak_mib() - before,
        }

    def gradient(self) -> Any:
        """Return the gradient of the last update as one vector."""
        import torch

        return torch.cat([p.grad.flatten() for p in self.model.parameters() if p.grad is not None])


def work(model: str) -> None:
    """Serve updates: a line of JSON in, a line of JSON out."""
    import torch

    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print
    update: Update | None = None
    for line in sys.stdin:
        asked = json.loads(line)
        if "case" in asked:
            update = Update(asked["case"], model)
            answers.write("{}\n")
        elif "save" in asked:
            assert update is not None
            torch.save(update.gradient(), asked["save"])
            answers.write("{}\n")
        else:
            assert update is not None
            answers.write(json.dumps(update.run()) + "\n")


class Worker:
    """A process that makes updates with the package of one Python."""

    def __init__(self, python: str, model: str) -> None:
        command = [python, __file__, "--work", "--model", model]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **question: Any) -> dict[str, Any]:
        """Send one question and return its answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer


def recorded(file: Path, model: str) -> dict[str, Any]:
    """Rollouts of one iteration, every response under its original question, as training with this anchor has them."""
    import pandas as pd
    from transformers import AutoTokenizer

    frame = pd.read_parquet(file)
    frame = frame[frame["stage"] == "train"] if "stage" in frame else frame
    tokenizer = AutoTokenizer.from_pretrained(model)
    originals: dict[str, str] = dict(
        frame[frame["rephrasing"] == 0][["question", "prompt"]].itertuples(index=False)
    )
    texts = [
        originals.get(question, text)
        for question, text in zip(frame["question"], frame["prompt"], strict=True)
    ]
    places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    return {
        "prompts": [tokenizer(text, add_special_tokens=False)["input_ids"] for text in places],
        "prompt": [places[text] for text in texts],
        "responses": [[int(token) for token in ids] for ids in frame["token_ids"]],
    }


def random_case(vocabulary: int = 80) -> dict[str, Any]:
    """Eight questions with four responses of 300 random tokens each."""
    import torch

    generator = torch.Generator().manual_seed(0)

    def draw(count: int, length: int) -> list[list[int]]:
        return torch.randint(3, vocabulary, (count, length), generator=generator).tolist()

    return {
        "prompts": draw(8, 40),
        "prompt": [row // 4 for row in range(32)],
        "responses": draw(32, 300),
    }


def compare(case: dict[str, Any], workers: list[Worker], rounds: int, folder: Path) -> dict[str, float]:
    """Return medians of the ratios earlier / this version, and how far their gradients differ."""
    import torch

    for worker in workers:
        worker.ask(case=case)
        worker.ask(run=True)
    pairs = []
    for number in range(rounds):
        turn = [0, 1] if number % 2 else [1, 0]
        found = {which: workers[which].ask(run=True) for which in turn}
        pairs.append((found[0], found[1]))
    gradients = []
    for which, worker in enumerate(workers):
        file = folder / f"{which}.pt"
        worker.ask(save=str(file))
        gradients.append(torch.load(file, weights_only=True))
        file.unlink()
    ours, theirs = gradients
    middle = statistics.median
    return {
        "response_tokens": sum(len(ids) for ids in case["responses"]),
        "tokens": pairs[0][0]["tokens"],
        "earlier_tokens": pairs[0][1]["tokens"],
        "formula": pairs[0][1]["flop"] / pairs[0][0]["flop"],
        "seconds": middle(own["seconds"] for own, _ in pairs),
        "faster": middle(other["seconds"] / own["seconds"] for own, other in pairs),
        "packing": middle(own["packing"] / own["seconds"] for own, _ in pairs),
        "mib": middle(own["mib"] for own, _ in pairs),
        "earlier_mib": middle(other["mib"] for _, other in pairs),
        "differs": float((ours - theirs).norm() / theirs.norm()),
    }


def main() -> None:
    """Print figures of batches as JSON, and write them to a file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "runs", nargs="?", help="a finished comparison with recorded rollouts, such as runs/demo"
    )
    parser.add_argument("--against", help="Python of an environment with the other version")
    parser.add_argument("--model", help="folder of the policy; None: the starter of the embedded task")
    parser.add_argument("--methods", nargs="+", default=["grpo_matched", "ta_grpo"])
    parser.add_argument("--iterations", nargs="+", type=int, default=[5, 25, 45])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.model)
        return
    if not options.runs or not options.against:
        parser.error("a folder of runs and --against are needed")
    import torch
    from workload import machine

    from tagrpo.starter import starter_path

    torch.set_num_threads(1)
    if options.model is None:
        options.model = str(starter_path())
    cases = {}
    for method in options.methods:
        for iteration in options.iterations:
            file = Path(options.runs) / method / "seed0" / "rollouts" / f"{iteration:06d}-0.parquet"
            cases[f"{method}, iteration {iteration}"] = recorded(file, options.model)
    cases[RANDOM] = random_case()
    workers = [Worker(python, options.model) for python in (sys.executable, options.against)]
    rows = {name: compare(case, workers, options.rounds, Path(options.runs)) for name, case in cases.items()}
    figures = {"machine": machine("cpu"), "torch": torch.__version__, "batches": rows}
    text = json.dumps(figures, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
