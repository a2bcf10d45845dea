"""One-sentence descriptions of a run's task and method, from its settings and its classes' docstrings."""

import importlib
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from ..runs.added import MOVED
from .comparison import Methods
from .runs import RunFiles

PARTS = {
    "credit": "credit by token",
    "mismatch": "a correction of the engine's probabilities",
    "rollout.dynamic_sampling": "replaced questions",
    "rollout.replay": "replayed responses",
    "rollout.reformulator": "questions that the policy writes",
    "data.curriculum": "a curriculum",
}
"""Setting of an optional part → what the part is."""
NAMES = ("dataset", "path", "name", "task", "environment")
"""Settings of a source that say what it reads."""
SENTENCE = re.compile(r"(?<!Eq)(?<!Fig)\.\s(?=[A-Z])")


def described(methods: Methods) -> list[str]:
    """Return one sentence per task, then one sentence per method, as far as settings were recorded."""
    first = {method: seeds[0] for method, seeds in methods.runs.items()}
    asked = [run for name, run in first.items() if name in methods.trained] or list(first.values())
    tasks = dict.fromkeys(filter(None, map(task, asked)))
    own = [method(name, run, trained=name in methods.trained) for name, run in first.items()]
    return [*tasks, *filter(None, own)]


def task(run: RunFiles) -> str:
    """Return a sentence about the questions of a run; empty if the run's settings were not recorded."""
    data = run.config.get("data") or {}
    source = _mapping(data.get("train"))
    tests = [f"{split} ({found['num_questions']} questions)" for split, found in _tests(run).items()]
    kind = meaning(source)
    if not kind:
        return ""
    number = run.training_questions
    of = f", {number:,} for training" if number else ""
    tested = f"; tested on {', '.join(tests)}" if tests else ""
    return f"Task: {kind}{of}{tested}."


def _tests(run: RunFiles) -> Mapping[str, Any]:
    return run.test if (run.path / "test.json").exists() else {}


def method(name: str, run: RunFiles, *, trained: bool) -> str:
    """Return a sentence about how a run was trained; empty if the run's settings were not recorded."""
    config = run.config
    data, advantage = _mapping(config.get("data")), _mapping(config.get("advantage"))
    if not trained:
        return f"{name}: the policy before training." if data and "diagnose" not in config else ""
    kind = meaning(advantage)
    if not kind or "samples_per_prompt" not in data:
        return ""
    wordings = int(data.get("num_rephrasings") or 0) + 1
    sampled = f"{data['samples_per_prompt']} responses to each question"
    if wordings > 1:
        sampled = f"{data['samples_per_prompt']} responses to each of {wordings} wordings of a question"
    pool = ""
    if wordings > 1 and "group_by" in advantage:
        pool = "; a pool is " + (
            "the whole question" if advantage["group_by"] == "question" else "one wording"
        )
    extra = [f"{said} ({_name(part)})" for said, part in _parts(config) if _name(part)]
    more = f"; with {', '.join(extra)}" if extra else ""
    return f"{name}: {sampled}; {kind}{pool}{more}."


def _parts(config: Mapping[str, Any]) -> Sequence[tuple[str, Mapping[str, Any]]]:
    found = []
    for place, said in PARTS.items():
        node: Any = config
        for key in place.split("."):
            node = _mapping(node).get(key)
        if _mapping(node):
            found.append((said, _mapping(node)))
    terms = _mapping(_mapping(config.get("rollout")).get("reward_terms"))
    found += [("a reward term", _mapping(term)) for term in terms.values()]
    return found


def meaning(part: Mapping[str, Any]) -> str:
    """Return the name of a part's class and the first line of the class's docstring; empty without a class.

    Only classes of this package are imported, because settings may name foreign code.

    >>> meaning({"_target_": "tagrpo.modules.advantages.GroupAdvantage"})
    'GroupAdvantage, rewards relative to the other responses of their pool'
    >>> meaning({"_target_": "theirs.Advantage"})
    'Advantage'
    """
    name, line = _name(part), _first_line(str(part.get("_target_", "")))
    kept = [str(part[key]) for key in NAMES if isinstance(part.get(key), str)]
    named = f"{name} {kept[0]}" if kept else name
    return f"{named}, {_lower(line)}" if line and named else named


def _name(part: Mapping[str, Any]) -> str:
    return str(part.get("_target_", "")).rpartition(".")[2]


@cache
def _first_line(target: str) -> str:
    """Return the first sentence of a class's docstring, without full stop; empty for foreign classes."""
    place = MOVED.get(target, target)
    module, _, name = place.rpartition(".")
    if not module.startswith("tagrpo."):
        return ""
    try:
        found = getattr(importlib.import_module(module), name, None)
    except (
        ImportError,
        ValueError,
    ):  # an extra that is not installed here, or a name that no module can have
        return ""
    text = (getattr(found, "__doc__", None) or "").strip()
    sentence = SENTENCE.split(" ".join(text.partition("\n\n")[0].split()))[0]
    return sentence.removesuffix(".")


def _lower(line: str) -> str:
    """Return a line with its first letter in lower case, unless the first word is a name or a formula.

    >>> _lower("Source of mazes"), _lower("NGRPO's advantages"), _lower("A_i = 1"), _lower("Pass@k advantages")
    ('source of mazes', "NGRPO's advantages", 'A_i = 1', 'Pass@k advantages')
    """
    word = line.partition(" ")[0]
    return line[0].lower() + line[1:] if word[1:].islower() and word.isalpha() else line


def _mapping(found: Any) -> Mapping[str, Any]:
    return found if isinstance(found, Mapping) else {}
