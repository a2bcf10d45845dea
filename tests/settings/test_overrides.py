"""Overrides and commands that error messages and pages print: each can be set as printed."""

from __future__ import annotations

import ast
import os
import re
import shlex
from itertools import product
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from tagrpo.settings.choices import check_choices

pytestmark = pytest.mark.pages

ROOT = Path(__file__).parents[2]
STUDIES = sorted((ROOT / "studies").glob("*/README.md"))
OVERRIDE = re.compile(
    r"(?<![\w./{\-\]'])((?:\+\+?|~)?[a-z_]\w*(?:[./]\w+)*)=('[^']*'|\[[^\]]*\]|\{[^}]*\}|[^\s`'\"|);,]+)"
)
CONTEXTS = (
    "", "scale=paper data=math", "experiment=pass_at_k advantage=pass_at_k", "rollout=vllm_server", "mismatch=icepop",
    "data=arithmetic logger=wandb", "strategy=fsdp2", "model=pretrained model.path=owner/name", "reward=math",
    "data=multiplication", "experiment=svs", "experiment=exgrpo", "dynamic_sampling=default", "lora=default",
    "data=jsonl", "reward=function reward.target=my.function",
    "data=reasoning_gym", "data=verifiers", "template=chat", "experiment=dapo", "reward=plain_answer",
)  # fmt: skip
"""What the reader of a message has set already."""
COMMANDS = ("train", "evaluate", "plan", "verify", "rephrase", "comparisons/compare")
PROGRAMS = {
    "tagrpo-train": "train", "tagrpo-eval": "evaluate", "tagrpo-plan": "plan", "tagrpo-rephrase": "rephrase",
    "tagrpo-verify": "verify",
    "tagrpo-compare": "comparisons/compare", "scripts/slurm.sh": "train",
}  # fmt: skip
"""Program → its configuration. Other programs take paths, or settings in quotes."""
CODE = re.compile(r"^```\w*\n(.*?)^```|^((?:    [^\n]+\n)+)", re.MULTILINE | re.DOTALL)
"""A block of code in Markdown: fenced or indented."""
COMMAND = re.compile(r"(?<!`)`((?:[A-Z_]+=\S+ )?(?:tagrpo-|sbatch )[^`\n]+)`(?!`)")
"""A command within a line of Markdown, such as a cell of a table."""
UNKNOWN = re.compile(r"[…<{(]|\.\.\.|^[A-Z]+$")
"""What stands for a value, and code in Python."""


def roots():
    """Settings and groups of all commands."""
    found = {"hydra"}
    for name in COMMANDS:
        package, _, config = f"tagrpo.configs.{name.replace('/', '.')}".rpartition(".")
        with initialize_config_module(package, version_base="1.3"):
            found |= {str(key) for key in compose(config, [])}
    return (
        found
        | {path.name for path in (ROOT / "configs").iterdir() if path.is_dir()}
        | {"curriculum", "protocol"}
    )


def texts(tree):
    """Texts of messages: those that are raised, and those in tables of advice, with {} for what is filled in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise | ast.Dict) or (
            isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("warn", "exit")
        ):
            for part in ast.walk(node):
                if isinstance(part, ast.JoinedStr):
                    yield "".join(v.value if isinstance(v, ast.Constant) else "{}" for v in part.values)
                elif isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.value


def printed(text, known):
    for name, value in OVERRIDE.findall(text):
        value = value.rstrip(".:")
        if re.split("[./]", name.lstrip("+~"))[0] in known and value and not UNKNOWN.search(value):
            yield f"{name}={value}"


def refusal(name, overrides):
    """Why the configuration of a command takes no such overrides; None if it takes them."""
    package, _, config = f"tagrpo.configs.{name.replace('/', '.')}".rpartition(".")
    with initialize_config_module(package, version_base="1.3"):
        try:
            check_choices(overrides)
            compose(config, overrides)
        except (ValueError, HydraException, OmegaConfBaseException) as error:
            return str(error)
    return None


def composes(override, place):
    """Whether a command takes an override, perhaps with an experiment of the method in whose folder it is printed."""
    folder, _, inside = place.as_posix().partition("/contrib/")
    method = Path(folder) / "contrib" / inside.partition("/")[0] if inside else place
    own = [f"experiment={path.stem}" for path in sorted(method.glob("configs/experiment/*.yaml"))]
    for context in [*CONTEXTS, *own]:
        for name in COMMANDS if not context else COMMANDS[:2]:
            if refusal(name, [*context.split(), override]) is None:
                return True
    return False


def lines_of_code(path):
    """Lines of a page's blocks of code and its other commands, or of the comments of a file of settings."""
    text = path.read_text()
    if path.suffix == ".yaml":
        comments = re.findall(r"^# (.*)", text, re.MULTILINE)
        return [re.split(r"\s{3,}", line)[0] for line in comments]
    blocks = [fenced or indented for fenced, indented in CODE.findall(text)]
    lines = [line for block in blocks for line in re.sub(r"\\\n\s*", " ", block).splitlines()]
    return lines + COMMAND.findall(CODE.sub("", text))


def runs_of(line):
    """The configuration and the overrides of each run that a line of code starts; those of a sweep one by one.

    Left out are commands with words that stand for others, and with options in a folder of the reader's.
    """
    try:
        words = shlex.split(os.path.expandvars(line), comments=True)
    except ValueError:  # prose in a comment
        return
    program = next((word for word in words if word in PROGRAMS), None)
    if program is None or "--config-dir" in words or re.search(r"[…<]", line):
        return
    given = [word for word in words[words.index(program) + 1 :] if re.match(r"[+~]{0,2}[\w./@]+=|~", word)]
    if "-m" not in words:
        yield PROGRAMS[program], given
        return
    choices = []
    for override in OverridesParser.create().parse_overrides(given):
        if override.is_sweep_override():
            key = override.get_key_element()
            if override.is_interval_sweep():  # for a search
                choices.append([f"{key}={override.value().start}", f"{key}={override.value().end}"])
                continue
            choices.append([f"{key}={value}" for value in override.sweep_string_iterator()])
        else:
            choices.append([override.input_line])
    for overrides in product(*choices):
        yield PROGRAMS[program], list(overrides)


@pytest.fixture(scope="module")
def known():
    return roots()


def test_a_setting_that_a_message_advises_can_be_set_as_printed(known):
    found = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        for text in texts(ast.parse(path.read_text())):
            found.update(dict.fromkeys(printed(text, known), path))
    assert len(found) > 40
    assert {text: place for text, place in found.items() if not composes(text, place)} == {}


def test_a_setting_that_a_page_shows_can_be_set_as_printed(known):
    found = {}
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *STUDIES]:
        for span in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", COMMAND.sub("", path.read_text())):
            found.update(dict.fromkeys(printed(span, known), path))
    assert len(found) > 40
    assert {text: place for text, place in found.items() if not composes(text, place)} == {}


def test_a_command_that_a_page_or_a_file_of_settings_shows_composes():
    pages = [
        ROOT / "README.md",
        ROOT / "AGENTS.md",
        ROOT / "CONTRIBUTING.md",
        *sorted((ROOT / "docs").glob("*.md")),
        *STUDIES,
    ]
    settings = [*sorted((ROOT / "configs").rglob("*.yaml")), *sorted((ROOT / "src").rglob("*.yaml"))]
    found = 0
    refused = {}
    for path in [*pages, *settings]:
        for line in lines_of_code(path):
            for name, overrides in runs_of(line):
                found += 1
                if reason := refusal(name, overrides):
                    refused[f"{path.name}: {line}"] = reason
    assert found > 80
    assert refused == {}


def test_the_commands_of_a_page_are_read_with_their_continued_lines_and_sweeps(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "Use `tagrpo-train a=1`.\n\n```bash\ntagrpo-train -m a=1,2 b=[3,4] \\\n    c=5   # d=6\n"
        "NODES=1 sbatch --nodes=3 scripts/slurm.sh '+e={f: 7}' ~g\n```\n\n    tagrpo-eval h=8\n\ntagrpo-eval i=9\n"
    )
    assert [run for line in lines_of_code(page) for run in runs_of(line)] == [
        ("train", ["a=1", "b=[3,4]", "c=5"]),
        ("train", ["a=2", "b=[3,4]", "c=5"]),
        ("train", ["+e={f: 7}", "~g"]),
        ("evaluate", ["h=8"]),
        ("train", ["a=1"]),
    ]
