"""Write the glossary: every metric that a run logs and every setting, from docstrings and configuration.

    python scripts/glossary.py > glossary.md        # `make docs` makes it a page of the site

A metric is what a bullet of a docstring begins with, such as "- `rollout/reward`: …", or a part of it after a
semicolon; braces and <placeholders> stand for several. A setting's meaning is that of the argument in the docstring of
the class that gets it (`_target_`), else the comment beside it in its YAML file.
"""

import ast
import inspect
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import docstring_parser
import yaml
from hydra.utils import get_object

from tagrpo.analysis.sections import table
from tagrpo.settings.methods import options_of

ROOT = Path(__file__).parents[1]
NAME = r"`[\w@{},<>]+(?:/[\w@{},<>]+)+`"
NAMES = rf"{NAME}(?:(?:, | and ){NAME})*"
METRIC = re.compile(rf"({NAMES}):(.*)", re.DOTALL)
GROUPS = (
    "advantage", "loss", "credit", "mismatch", "curriculum", "optimizer", "policy", "lora", "data", "template",
    "reward", "reward_terms", "rollout", "dynamic_sampling", "callbacks", "logger", "trainer", "strategy",
    "rephraser",
)  # fmt: skip
FORWARDED = {"tagrpo.lab.tasks.question_data": "tagrpo.datamodules.lightning.questions.QuestionDataModule"}
"""Classes that hand their other options on, and to whom."""


class Metric(NamedTuple):
    """One bullet of a docstring."""

    names: str
    meaning: str
    place: str


class Setting(NamedTuple):
    """One key of a configuration file."""

    key: str
    default: str
    meaning: str


def metrics() -> list[Metric]:
    """All bullets about metrics, in the order of files."""
    found = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
                place = str(path.relative_to(ROOT))
                for bullet in re.findall(
                    r"^ *- (.*?)(?=\n *- |\n\n|\n *[A-Z][a-z]+:\n|\Z)", text, re.DOTALL | re.MULTILINE
                ):
                    for part in re.split(rf";\s+(?={NAMES}:)", bullet):
                        if match := METRIC.match(part):
                            found.append(Metric(match[1], " ".join(match[2].split()).rstrip(".;"), place))
    return found


def patterns(names: str) -> Iterator[re.Pattern[str]]:
    """Patterns of the columns that `names` stand for.

    >>> [bool(p.fullmatch("train/kl")) for p in patterns("`train/{loss,kl}`, `pass@k/<split>/<k>`")]
    [False, True, False]
    """
    for name in re.findall(r"`([^`]+)`", names):
        parts = [part.split(",") for part in re.split(r"[{}]", name)]
        for choice in itertools.product(*parts):
            yield re.compile(re.sub(r"<\w+>", r"[^/]+", "".join(choice)))


def settings(text: str) -> list[Setting]:
    """The keys of one configuration file, with defaults and meanings."""
    comments = dict(re.findall(r"^\s*(\w+):[^\n#]*#\s*(.+)$", text, re.MULTILINE))
    return list(_keys(yaml.safe_load(text) or {}, (), "", comments))


def _keys(
    node: dict[str, Any], path: tuple[str, ...], parent: str, comments: dict[str, str]
) -> Iterator[Setting]:
    """`parent` is what is said of `node` as a whole."""
    target = node.get("_target_")
    known = described(target) if target else {}
    for key, value in node.items():
        if key.startswith("_") or key in ("defaults", "hydra"):
            continue
        meaning = known.get(key) or comments.get(key) or (f"see `{foreign(target)}`" if target else parent)
        if isinstance(value, dict) and value:
            yield from _keys(value, (*path, key), meaning, comments)
        else:
            default = (
                "required"
                if value == "???"
                else yaml.safe_dump(value, default_flow_style=True).split("\n")[0]
            )
            yield Setting(".".join((*path, key)), default, meaning)


def foreign(target: str) -> str:
    """The class of another package that takes what `target` does not explain: itself, or what it derives from."""
    item = get_object(target)
    owners = item.__mro__ if inspect.isclass(item) else [item]
    owner = next(owner for owner in owners if not owner.__module__.startswith("tagrpo"))
    return target if owner is object or owner is item else f"{owner.__module__}.{owner.__qualname__}"


def described(target: str) -> dict[str, str]:
    """Argument → what the docstring of `target` or of a class that it derives from or hands it on to says of it."""
    found: dict[str, str] = {}
    names = [target, *([FORWARDED[target]] if target in FORWARDED else [])]
    for item in map(get_object, names):
        for owner in item.__mro__[:-1] if inspect.isclass(item) else [item]:
            if not owner.__module__.startswith("tagrpo"):
                continue
            for parameter in docstring_parser.parse_from_object(owner).params:
                for name in parameter.arg_name.split(","):
                    found.setdefault(name.strip(), " ".join((parameter.description or "").split()))
    return found


def page() -> str:
    """The whole page."""
    lines = [
        "# Every metric and every setting",
        "",
        "Written from docstrings and configuration. A name in `<…>` stands for several; `a/{b,c}` is `a/b` and `a/c`.",
        "",
        "## Metrics",
        "",
        *table(
            ["in `metrics.csv` and every logger", "meaning", "from"],
            [(m.names, m.meaning, f"`{m.place}`") for m in metrics()],
        ),
        "",
        "## Settings",
        "",
        "Any of them can be overridden on the command line; `tagrpo-train --cfg job` prints what a run would use. Keys",
        "of a group are below its name: `loss.clip_low=0.1`. Those of `reward_terms` and `dynamic_sampling` are below",
        "`rollout`.",
        "",
        *section("tagrpo-train", settings((ROOT / "configs/train.yaml").read_text())),
    ]
    for group in GROUPS:
        files = {option: settings(text) for option, text in options_of(group).items() if option != "none"}
        known = {row.key: row.meaning for rows in files.values() for row in rows if row.meaning}
        for name, rows in files.items():
            if rows:  # what a file overrides is described where it comes from
                lines += section(
                    f"{group}={name}",
                    [row._replace(meaning=row.meaning or known.get(row.key, "")) for row in rows],
                )
    return "\n".join(lines).rstrip() + "\n"


def section(title: str, rows: list[Setting]) -> list[str]:
    """One section."""
    body = [(f"`{row.key}`", f"`{row.default}`", row.meaning) for row in rows]
    return [f"### {title}", "", *table(["setting", "default", "meaning"], body), ""]


if __name__ == "__main__":
    print(page(), end="")
