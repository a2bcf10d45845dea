"""`tagrpo-rephrase`: questions in, rephrasings with their provenance and the checks' verdicts out; and their audit.

    tagrpo-rephrase input=questions.jsonl output=rephrased.jsonl rephraser=rules
    tagrpo-rephrase input=questions.jsonl output=rephrased.jsonl rephraser.model=<model> --dry-run
    tagrpo-rephrase audit input=rephrased.jsonl output=filtered.jsonl

Paid answers lie in `<output>.work/answers.jsonl`: the same command, started again after whatever ended it, goes on.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from .redaction import refuse_secrets, save_resolved
from .rephrasing.audit import audit_frame, by_check, by_instruction, coverage, read_reviewed, recheck, sample_groups
from .rephrasing.batch import BatchClient
from .rephrasing.candidates import Reviewed, write_rows
from .rephrasing.client import ChatClient, Server, ServerRefusedError
from .rephrasing.costs import Line, Prices, total
from .rephrasing.generate import Outcome, Recorder, consult, generate, plan
from .rephrasing.opinions import Opinion
from .rephrasing.page import audit_page
from .rephrasing.rephrasers import Rephraser
from .rephrasing.requests import Completer
from .rephrasing.store import Store
from .rephrasing.verdicts import Check
from .types import QuestionGroup

OmegaConf.register_new_resolver("first", lambda *values: next((v for v in values if v is not None), "rephrase"))

UNDECIDED = {"keep": True, "drop": False}


@contextmanager
def connected(work: Path, server: Server, batch: Mapping[str, Any] | None) -> Iterator[Completer]:
    """Who answers requests: the store in `work`, else the server, one by one or in batches."""
    with Store(work) as store, Progress(transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("answers", total=None)

        def show(answered: int, wanted: int) -> None:
            progress.update(task, completed=answered, total=wanted)

        if batch is None:
            yield ChatClient(server, store, show)
        else:
            yield BatchClient(server, store, on_progress=show, **batch)


def rephrase(
    groups: Sequence[QuestionGroup],
    output: Path,
    work: Path,
    rephraser: Rephraser,
    checks: Mapping[str, Check],
    opinions: Sequence[Opinion],
    server: Server,
    prices: Mapping[str, Prices],
    *,
    batch: Mapping[str, Any] | None = None,
    undecided: bool = True,
) -> Outcome:
    """Make rephrasings and write them.

    Args:
        groups: Questions.
        output: File to write; it appears when everything is done.
        work: Folder of the store.
        rephraser: Who proposes.
        checks: Name → check of the text.
        opinions: Judge and solver.
        server: Whom to ask.
        prices: Model → prices.
        batch: Settings of the batch interface; None asks one by one.
        undecided: Whether to keep rephrasings that a check could not decide on.

    Raises:
        ServerRefusedError: the server will not answer; everything that it did answer is stored.
    """
    with connected(work, server, batch) as completer:
        outcome = asyncio.run(generate(groups, rephraser, checks, opinions, completer, prices))
    write_rows(output, outcome.reviewed, undecided)
    return outcome


def audit(
    reviewed: list[Reviewed],
    work: Path,
    checks: Mapping[str, Check],
    opinions: Sequence[Opinion],
    server: Server,
    prices: Mapping[str, Prices],
    *,
    batch: Mapping[str, Any] | None = None,
    output: Path | None = None,
    undecided: bool = True,
    sample: int = 50,
    seed: int = 0,
) -> Outcome:
    """Check rephrasings anew, write the table and the page for a human, and perhaps the filtered file.

    Args:
        reviewed: Questions with their candidates. Verdicts of checks that are not run now stay.
        work: Folder for the store, `audit.csv` and `audit.html`.
        checks: Name → check of the text.
        opinions: Judge and solver.
        server: Whom to ask.
        prices: Model → prices.
        batch: Settings of the batch interface; None asks one by one.
        output: File for the questions with the rephrasings that pass; None writes none.
        undecided: Whether rephrasings pass that a check could not decide on.
        sample: Questions on the page.
        seed: Of the sample.

    Raises:
        ServerRefusedError: the server will not answer; everything that it did answer is stored.
    """
    work.mkdir(parents=True, exist_ok=True)
    recheck(reviewed, checks)
    outcome = Outcome(reviewed=reviewed, account=[], failures={})
    if opinions:
        with connected(work, server, batch) as completer:
            recorder = Recorder(completer)
            asyncio.run(consult(reviewed, opinions, recorder))
        outcome = recorder.outcome(reviewed, prices)
    audit_frame(reviewed, undecided).to_csv(work / "audit.csv", index=False)
    page = audit_page(sample_groups(reviewed, sample, seed), "Rephrasings to judge", undecided)
    (work / "audit.html").write_text(page, encoding="utf-8")
    if output is not None:
        write_rows(output, reviewed, undecided)
    return outcome


def print_lines(lines: Sequence[Line], title: str, console: Console) -> None:
    """Print an estimate or an account."""
    if not lines:
        console.print(f"{title}: nothing is asked of a model.")
        return
    table = Table("purpose", "model", "requests", "prompt tokens", "completion tokens", "cost", title=title)
    for line in lines:
        cost = "no price" if line.cost is None else f"{line.cost:.2f}"
        most = "" if line.most is None else f" (at most {line.most:.2f})"
        usage = (f"{line.usage.prompt_tokens:,}", f"{line.usage.completion_tokens:,}")
        table.add_row(line.purpose, line.model, f"{line.requests:,}", *usage, cost + most)
    console.print(table)
    amount = total(lines)
    console.print("Total cost: " + ("unknown, for lack of prices" if amount is None else f"{amount:.2f}"))


def print_review(reviewed: Sequence[Reviewed], undecided: bool, console: Console) -> None:
    """Print what passed, by instruction and by check, and how many questions have how many rephrasings."""
    frames = (("instruction or rule", by_instruction(reviewed, undecided)), ("check", by_check(reviewed)))
    for heading, frame in frames:
        table = Table(heading, *frame.columns)
        for name, row in zip(frame.index, frame.itertuples(index=False), strict=True):
            table.add_row(str(name), *(f"{v:.1f}" if isinstance(v, float) else str(v) for v in row))
        console.print(table)
    counts = ", ".join(f"{questions} with {kept}" for kept, questions in coverage(reviewed, undecided).items())
    console.print(f"Questions by number of accepted rephrasings: {counts}.", soft_wrap=True)


def print_outcome(outcome: Outcome, undecided: bool, console: Console) -> None:
    """Print the account, the review, and what got no answer."""
    print_lines(outcome.account, "Account", console)
    print_review(outcome.reviewed, undecided, console)
    if outcome.failures:
        example = next(iter(outcome.failures.values()))
        message = (
            f"{len(outcome.failures)} requests got no answer, one because: {example}. The same command asks again."
        )
        console.print(message, markup=False, soft_wrap=True)


def prices_of(cfg: DictConfig) -> dict[str, Prices]:
    """Model → prices, of the parts of the configuration that have a model and a price."""
    parts = [part for part in (cfg.rephraser, cfg.judge, cfg.solver) if part.get("model") and part.get("price")]
    return {part.model: Prices(**part.price) for part in parts}


def built(part: DictConfig) -> Any:
    """The object of a part, whose price is no argument of it."""
    return instantiate({name: value for name, value in part.items() if name != "price"})


def with_commands(arguments: Sequence[str]) -> list[str]:
    """The command line in Hydra's terms.

    >>> with_commands(["audit", "input=a.jsonl", "--dry-run"])
    ['command=audit', 'input=a.jsonl', 'dry_run=true']
    """
    words = {"generate": "command=generate", "audit": "command=audit", "--dry-run": "dry_run=true"}
    return [words.get(argument, argument) for argument in arguments]


@hydra.main(config_path="pkg://tagrpo.configs", config_name="rephrase", version_base="1.3")
def run(cfg: DictConfig) -> None:
    """Build what the configuration names and do what its command says."""
    refuse_secrets(cfg, HydraConfig.get().runtime.output_dir)
    for library in ("httpx", "httpx2", "openai"):
        logging.getLogger(library).setLevel(logging.WARNING)  # they log every request
    console, work, undecided = Console(), Path(cfg.work), UNDECIDED[cfg.undecided]
    output = None if cfg.output is None else Path(cfg.output)
    checks = {name: instantiate(check) for name, check in cfg.checks.items() if check}
    opinions = [built(part) for part in (cfg.judge, cfg.solver) if part.model]
    server, prices = instantiate(cfg.server), prices_of(cfg)
    settings = {name: value for name, value in cfg.batch.items() if name != "enabled"}
    batch = settings if cfg.batch.enabled else None
    try:
        if cfg.command == "audit":
            written = [path for path in (work / "audit.csv", work / "audit.html", output) if path]
            outcome = audit(
                read_reviewed(cfg.input), work, checks, opinions, server, prices,
                batch=batch, output=output, undecided=undecided, sample=cfg.sample, seed=cfg.seed,
            )  # fmt: skip
        else:
            if output is None:
                raise ValueError("Expected `output`, the file to write, but got none. Set output=rephrased.jsonl.")
            groups, rephraser = instantiate(cfg.source).load()[: cfg.limit], built(cfg.rephraser)
            if cfg.dry_run:
                with Store(work) as store:
                    lines = plan(groups, rephraser, opinions, store.answers, prices, batch=cfg.batch.enabled)
                print_lines(lines, f"Estimate for {len(groups)} questions", console)
                return
            written = [output]
            save_resolved(cfg, work)
            outcome = rephrase(
                groups, output, work, rephraser, checks, opinions, server, prices, batch=batch, undecided=undecided
            )
    except (ServerRefusedError, KeyboardInterrupt) as reason:
        console.print(f"Nothing written yet. {reason or 'Interrupted: the same command goes on.'}", soft_wrap=True)
        sys.exit(1)
    print_outcome(outcome, undecided, console)
    console.print("Written: " + "\n         ".join(map(str, written)), soft_wrap=True)
    if outcome.failures:
        sys.exit(1)


def main() -> None:
    """Console entry point."""
    sys.argv[1:] = with_commands(sys.argv[1:])
    run()


if __name__ == "__main__":
    main()
