"""`tagrpo-rephrase`: write rephrasings of questions with provenance and the checks' verdicts, and audit them.

    tagrpo-rephrase input=questions.jsonl output=rephrased.jsonl rephraser.model=<model> --dry-run
    tagrpo-rephrase input=questions.jsonl output=rephrased.jsonl rephraser.model=<model>
    tagrpo-rephrase audit input=rephrased.jsonl output=filtered.jsonl

Paid replies are kept in `<output>.work/replies.jsonl`, so that the same command continues after an
interruption.
"""

import asyncio
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf, open_dict

from ..cli.console import entry_point, explained
from ..files import write_text
from ..foreign import printable
from ..runs.secrets import refuse_secrets, save_resolved
from ..settings.checks import missing_settings
from ..settings.numbers import check_numbers
from ..settings.schema import Rephrase, check_fields
from ..settings.typed import check_declared

OmegaConf.register_new_resolver(
    "first", lambda *values: next((v for v in values if v is not None), "rephrase")
)


def built(part: DictConfig) -> Any:
    """Instantiate a part of the configuration without its `price`, which the class does not accept."""
    return instantiate({name: value for name, value in part.items() if name != "price"}, _convert_="all")


def check_parts(cfg: DictConfig) -> None:
    """Compare the settings of the parts that the command builds with the arguments of their classes.

    Raises:
        ValueError: if a setting has a wrong type, or is not an argument. The message names the setting.
    """
    parts = cfg.copy()
    with open_dict(parts):
        for part in (parts.rephraser, parts.judge):
            part.pop("price", None)
        if cfg.command == "audit":
            del parts.source, parts.rephraser
        if not cfg.judge.model:
            del parts.judge
    check_declared(parts)


def with_commands(arguments: Sequence[str]) -> list[str]:
    """Convert the command line to Hydra's syntax.

    >>> with_commands(["generate", "input=a.jsonl", "--dry-run"])
    ['command=generate', 'input=a.jsonl', 'dry_run=true']
    """
    words = {"generate": "command=generate", "audit": "command=audit", "--dry-run": "dry_run=true"}
    return [words.get(argument, argument) for argument in arguments]


def execute(cfg: DictConfig) -> bool:
    """Build the configured parts and execute the command; return whether every call got a reply."""
    from .audit import by_check, coverage, listing, read_reviewed, recheck, sample_groups
    from .candidates import write_reviewed
    from .client import Client, Prices, ReplyCache, account, expected
    from .rephraser import planned_calls, rephrase

    work, checks = Path(cfg.work), {name: instantiate(check) for name, check in cfg.checks.items() if check}
    judge = built(cfg.judge) if cfg.judge.model else None
    prices = {part.model: Prices(**part.price) for part in (cfg.rephraser, cfg.judge) if part.get("price")}
    server = instantiate(cfg.server)
    with ReplyCache(work / "replies.jsonl", secrets=[server.key]) as cache:
        client = Client(server, cache)
        if cfg.command == "audit":
            reviewed = read_reviewed(cfg.input)
            recheck(reviewed, checks)
            if judge is not None:
                asyncio.run(judge.review(reviewed, client))
            write_text(work / "audit.md", listing(sample_groups(reviewed, cfg.sample, cfg.seed)))
            print(f"Written: {work / 'audit.md'}")
        else:
            groups, rephraser = instantiate(cfg.source).load()[: cfg.limit], built(cfg.rephraser)
            if old := [group.id for group in groups if group.rephrasings]:
                raise ValueError(
                    f"Expected questions without rephrasings in {cfg.input}, but {len(old)} have some, such "
                    f"as {printable(old[0])}, which `output` would lack. Give the questions alone as "
                    "`input`, or audit what there is."
                )
            if cfg.dry_run:
                usages = expected(planned_calls(groups, rephraser, judge), cache)
                print(f"Estimate for {len(groups)} questions:\n{account(usages, prices)}")
                return True
            save_resolved(cfg, work)
            reviewed = asyncio.run(rephrase(groups, rephraser, checks, judge, client))
        if cfg.output:
            write_reviewed(Path(cfg.output), reviewed)
            print(f"Written: {cfg.output}")
        paid = [(call, cache[key].usage) for key, call in client.calls.items() if key in cache]
    print(f"Account:\n{account(paid, prices)}")
    print(f"Verdicts:\n{by_check(reviewed).rename(index=printable).to_string()}")
    counts = ", ".join(f"{questions} with {kept}" for kept, questions in coverage(reviewed).items())
    print(f"Questions by number of accepted rephrasings: {counts}.")
    if client.failures:
        example = next(iter(client.failures.values()))
        print(
            f"{len(client.failures)} calls got no reply, one because: {example}. The same command asks again."
        )
    return not client.failures


def check_rephrasing(cfg: DictConfig) -> None:
    """Check settings before questions are read or calls are sent; errors name the remedy.

    Raises:
        FileNotFoundError: if there is no file of questions.
        ValueError: if a setting is missing, unknown or contradicts another.
    """
    if cfg.command not in ("generate", "audit"):
        raise ValueError(f"Expected command to be generate or audit, but got {cfg.command!r}.")
    if cfg.command == "audit" and (cfg.dry_run or cfg.limit is not None):
        raise ValueError(
            "Expected dry_run and limit with command=generate alone, but this is an audit. Omit them."
        )
    generates = cfg.command == "generate"
    path = cfg.source.get("path") if generates else cfg.input
    parts = ("rephraser", "source") if generates else ()
    missing = sorted(f"{name}=…" for name in missing_settings(cfg) if name.startswith(parts))
    named = generates and (
        OmegaConf.is_missing(cfg.source, "dataset") or cfg.source.get("dataset") is not None
    )
    if path is None and not named:
        missing.append("input=questions.jsonl")
    if generates and not cfg.output:
        missing.append("output=rephrased.jsonl")
    if path is not None and not Path(path).exists():
        raise FileNotFoundError(f"Expected a file of questions at {path}, but there is none. Set `input`.")
    if missing:
        raise ValueError(f"Expected {' '.join(missing)}, but it was not given.")


@entry_point("rephrase")
def run(cfg: DictConfig) -> None:
    """Run `tagrpo-rephrase`; exit with 1 if calls got no reply."""
    refuse_secrets(cfg, HydraConfig.get().runtime.output_dir)
    with explained():
        check_fields(cfg, Rephrase)
        check_numbers(cfg)
        check_rephrasing(cfg)
        check_parts(cfg)
    for library in ("httpx", "httpx2", "openai"):
        logging.getLogger(library).setLevel(logging.WARNING)  # they log every request
    try:
        with explained():
            sys.exit(0 if finished(cfg) else 1)
    except KeyboardInterrupt:
        sys.exit("Nothing written yet: interrupted. The same command goes on.")


def finished(cfg: DictConfig) -> bool:
    """Execute the command, and exit with the server's reason if the server refuses all calls."""
    from .client import ServerRefusedError

    try:
        return execute(cfg)
    except ServerRefusedError as reason:
        sys.exit(f"Nothing written yet. {reason}")


def main() -> None:
    """Run `tagrpo-rephrase`."""
    sys.argv[1:] = with_commands(sys.argv[1:])
    run()


if __name__ == "__main__":
    main()
