"""How large the report's page is, how long it takes to write, and how soon it can be used in Chromium.

    python benchmarks/report_page.py --iterations 100 --questions 32 --tokens 60      # 102,400 responses
    python benchmarks/report_page.py --iterations 100 --questions 32 --tokens 400     # more than a page takes

The responses are passages of this project's own texts under a tokenizer that is trained on them, with log-probs and
entropies that are random, and so compress worse than real ones.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

ROOT = Path(__file__).parents[1]
VOCABULARY = 8000


def corpus(folder: Path) -> tuple[np.ndarray, list[str]]:
    """Token numbers of this project's texts, and what each token reads; writes the tokenizer into `folder`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    text = "\n".join(path.read_text() for part in ("docs", "src") for path in sorted((ROOT / part).rglob("*.[mp][dy]")))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=["<eos>"], show_progress=False)
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    (folder / "model").mkdir(parents=True)
    tokenizer.save(str(folder / "model" / "tokenizer.json"))
    ascii_only = "".join(letter for letter in text if ord(letter) < 128)
    encoded = tokenizer.encode(ascii_only)
    return np.array(encoded.ids, np.int32), [ascii_only[start:end] for start, end in encoded.offsets]


def synthetic_run(
    folder: Path, *, iterations: int, questions: int, rephrasings: int = 3, samples: int = 8, tokens: int = 60
) -> Path:
    """A run directory with iterations × questions × (1 + rephrasings) × samples responses, and a log that agrees."""
    rng = np.random.default_rng(0)
    ids, pieces = corpus(folder)
    (folder / "rollouts").mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump({"name": "synthetic", "seed": 0}))
    count = questions * (1 + rephrasings) * samples
    ability = rng.uniform(0, 1, 4 * questions)
    logged = []
    for iteration in range(iterations):
        question = rng.choice(len(ability), questions, replace=False).repeat(count // questions)
        rephrasing = np.tile(np.arange(1 + rephrasings).repeat(samples), questions)
        correct = rng.uniform(size=count) < ability[question] ** 2
        length = np.clip(rng.normal(tokens, tokens / 4, count).astype(int), 2, None)
        start = rng.integers(0, len(ids) - length.max(), count)
        chosen = [np.append(ids[a : a + n - 1], 0).astype(np.int32) for a, n in zip(start, length, strict=True)]
        by_question = pd.Series(correct.astype(float)).groupby(question)
        spread = by_question.transform("std").to_numpy()
        advantage = np.where(spread > 0, (correct - by_question.transform("mean").to_numpy()) / (spread + 1e-6), 0)
        logprobs = -rng.exponential(0.4, length.sum()) * (rng.uniform(size=length.sum()) < 0.6)
        offsets = pa.array(np.append(0, length.cumsum()).astype(np.int32))
        table = {
            "iteration": np.full(count, iteration),
            "step": np.full(count, 2 * iteration),
            "question": [f"synthetic-{q:05d}" for q in question],
            "reference": [[str(q % 97)] for q in question],
            "rephrasing": rephrasing,
            "template": ["plain"] * count,
            "prompt": [
                f"Question {q}, said in way {r}: what is it?" for q, r in zip(question, rephrasing, strict=True)
            ],
            "response": ["".join(pieces[a : a + n - 1]) for a, n in zip(start, length, strict=True)],
            "answer": [str((q if right else q + 1) % 97) for q, right in zip(question, correct, strict=True)],
            "correct": correct,
            "reward": correct.astype(np.float32),
            "advantage": advantage.astype(np.float32),
            "length": length,
            "truncated": np.zeros(count, bool),
            "logprob": np.add.reduceat(logprobs, length.cumsum() - length),
            "entropy": rng.exponential(0.3, count).astype(np.float32),
            "ratio": rng.normal(1, 0.02, count).astype(np.float32),
            "token_ids": pa.ListArray.from_arrays(offsets, pa.array(np.concatenate(chosen))),
            "token_logprobs": pa.ListArray.from_arrays(offsets, pa.array(logprobs.astype(np.float32))),
        }
        pq.write_table(pa.table(table), folder / "rollouts" / f"{iteration:06d}-0.parquet", compression="zstd")
        zero = 100 * (by_question.std() == 0).mean()
        logged.append({"step": iteration, "rollout/reward": correct.mean(), "zero_gradient/percentage": zero})
    pd.DataFrame(logged).to_csv(folder / "metrics.csv", index=False)
    return folder


def seconds_until_ready(page: Path, repeats: int = 5) -> list[float]:
    """Seconds from the navigation until the overview can be used, as Chromium counts them; the first is cold."""
    sys.path.insert(0, str(ROOT / "tests" / "analysis" / "page"))
    from chromium import browser, ready

    found = []
    with browser() as driver:
        for _ in range(repeats):
            driver.get(page.as_uri())
            ready(driver)
            found.append(driver.execute_script("return performance.getEntriesByName('ready')[0].startTime") / 1000)
    return found


def main() -> None:
    """Measure and print."""
    from tagrpo.analysis.report import explore

    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("iterations", 100), ("questions", 32), ("tokens", 60)):
        parser.add_argument(f"--{name}", type=int, default=value)
    shape = vars(parser.parse_args())
    with tempfile.TemporaryDirectory() as folder:
        run = synthetic_run(Path(folder) / "run", **shape)
        start = time.perf_counter()
        page = explore(run, output=Path(folder) / "report.html")
        written = time.perf_counter() - start
        responses = shape["iterations"] * shape["questions"] * 32
        print(f"{responses:,} responses of about {shape['tokens']} tokens: {page.stat().st_size / 1e6:.1f} MB")
        print(f"written in {written:.0f} s")
        print("ready after " + ", ".join(f"{seconds:.2f}" for seconds in seconds_until_ready(page)) + " s")


if __name__ == "__main__":
    main()
