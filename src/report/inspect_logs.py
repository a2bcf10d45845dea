"""Recorded responses as logs of Inspect (https://inspect.aisi.org.uk), so that `inspect view` shows them.

One log per iteration. A sample is a prompt (the question's id and which rephrasing it is), an epoch one of its
responses. Needs `inspect-ai` (`pip install 'tagrpo[inspect]'`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..analysis.runs import RunFiles, find_directories
from .recorded import MEANS, Recorded

TEXTS = ("prompt", "response", "answer")


def write_logs(folder: Path, *roots: Path) -> list[Path]:
    """Write the responses of all runs below `roots` as `<folder>/<method>-seed<k>/iteration-<n>.eval`.

    Raises:
        ImportError: inspect-ai is not installed.
        FileNotFoundError: no run has recorded responses.
    """
    try:
        from inspect_ai.log import write_eval_log
    except ImportError as error:
        raise ImportError("Expected inspect-ai, but it is not installed: pip install 'tagrpo[inspect]'.") from error
    written = []
    for run in find_directories(*roots):
        recorded = Recorded.read(run.path)
        if recorded is None:
            continue
        place = folder / f"{run.method.replace('/', '_')}-seed{run.seed}"
        place.mkdir(parents=True, exist_ok=True)
        for iteration, log in logs_of(run, recorded):
            write_eval_log(log, place / f"iteration-{iteration:06d}.eval")
        written.append(place)
    if not written:
        places = ", ".join(map(str, roots))
        raise FileNotFoundError(f"Expected rollouts/*.parquet below {places}, but no run there recorded responses.")
    return written


def logs_of(run: RunFiles, recorded: Recorded) -> Iterator[tuple[int, Any]]:
    """Iteration and `EvalLog` of each iteration of a run."""
    frame = recorded.table.to_pandas()
    for iteration, rows in frame.groupby("iteration"):
        yield int(iteration), _log(run, int(iteration), rows.to_dict("records"))


def _log(run: RunFiles, iteration: int, rows: list[dict[str, Any]]) -> Any:
    from inspect_ai.log import EvalConfig, EvalDataset, EvalLog, EvalMetric, EvalResults, EvalScore, EvalSpec, EvalStats

    seen: Counter[str] = Counter()
    samples = []
    for row in rows:
        name = f"{row['question']} · {'rephrasing ' + str(row['rephrasing']) if row['rephrasing'] else 'original'}"
        seen[name] += 1
        samples.append(_sample(run, name, seen[name], row))
    share = EvalMetric(name="share", value=sum(bool(row["correct"]) for row in rows) / len(rows))
    score = EvalScore(name="verifier", scorer="verifier", metrics={"share": share})
    now = datetime.now(UTC).isoformat()
    return EvalLog(
        status="success",
        eval=EvalSpec(
            created=now,
            task=f"{run.method} seed {run.seed}, iteration {iteration}",
            dataset=EvalDataset(name="train", samples=len(seen), sample_ids=list(seen)),
            model=f"tagrpo/{run.method}",
            config=EvalConfig(epochs=max(seen.values())),
            metadata={"run": str(run.path), "iteration": iteration},
        ),
        results=EvalResults(total_samples=len(rows), completed_samples=len(rows), scores=[score]),
        stats=EvalStats(started_at=now, completed_at=now),
        samples=samples,
    )


def _sample(run: RunFiles, name: str, epoch: int, row: Mapping[str, Any]) -> Any:
    from inspect_ai.log import EvalSample
    from inspect_ai.model import ChatMessageUser, ModelOutput
    from inspect_ai.scorer import CORRECT, INCORRECT, Score

    prompt, response, answer = (None if row.get(key) is None else str(row[key]) for key in TEXTS)
    output = ModelOutput.from_content(
        f"tagrpo/{run.method}", response or "", "max_tokens" if row.get("truncated") else "stop"
    )
    terms = [key for key in row if key.startswith("reward_term/")]
    return EvalSample(
        id=name,
        epoch=epoch,
        input=prompt or "",
        target=[str(one) for one in row["reference"]] if row.get("reference") is not None else "",
        messages=[ChatMessageUser(content=prompt or ""), output.choices[0].message],
        output=output,
        scores={
            "verifier": Score(value=CORRECT if row["correct"] else INCORRECT, answer=answer),
            "reward": Score(value=float(row["reward"])),
        },
        metadata={key: float(row[key]) for key in ("advantage", "length", *MEANS, *terms) if key in row},
    )
