"""Overrides that error messages and pages print: each can be set as printed."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

ROOT = Path(__file__).parents[2]
OVERRIDE = re.compile(
    r"(?<![\w./{\-\]'])((?:\+\+?|~)?[a-z_]\w*(?:[./]\w+)*)=('[^']*'|\[[^\]]*\]|\{[^}]*\}|[^\s`'\"|);,]+)"
)
CONTEXTS = (
    "", "scale=paper data=math", "experiment=pass_at_k advantage=pass_at_k", "rollout=vllm_server", "mismatch=icepop",
    "data=arithmetic logger=wandb", "strategy=fsdp2", "model=pretrained model.path=owner/name", "reward=math",
    "data=multiplication", "experiment=svs", "experiment=exgrpo", "dynamic_sampling=default", "lora=default",
    "data=jsonl", "data=reasoning_gym", "data=verifiers", "template=chat", "experiment=dapo", "reward=plain_answer",
)  # fmt: skip
"""What the reader of a message has set already."""
COMMANDS = ("train", "evaluate", "plan", "rephrase", "comparisons/compare")
UNKNOWN = re.compile(r"[…<{(]|\.\.\.|^[A-Z]+$")
"""What stands for a value, and code in Python."""


def roots():
    """Settings and groups of all commands."""
    found = {"hydra"}
    for name in COMMANDS:
        package, _, config = f"tagrpo.configs.{name.replace('/', '.')}".rpartition(".")
        with initialize_config_module(package, version_base="1.3"):
            found |= {str(key) for key in compose(config, [])}
    return found | {path.name for path in (ROOT / "configs").iterdir() if path.is_dir()} | {"curriculum", "protocol"}


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


def composes(override):
    for context in CONTEXTS:
        for name in COMMANDS if not context else COMMANDS[:2]:
            package, _, config = f"tagrpo.configs.{name.replace('/', '.')}".rpartition(".")
            with initialize_config_module(package, version_base="1.3"):
                try:
                    compose(config, [*context.split(), override])
                except (HydraException, OmegaConfBaseException):
                    continue
                return True
    return False


@pytest.fixture(scope="module")
def known():
    return roots()


def test_a_setting_that_a_message_advises_can_be_set_as_printed(known):
    found = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        for text in texts(ast.parse(path.read_text())):
            found.update(dict.fromkeys(printed(text, known), path.name))
    assert len(found) > 40
    assert {override: place for override, place in found.items() if not composes(override)} == {}


def test_a_setting_that_a_page_shows_can_be_set_as_printed(known):
    found = {}
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        if path.name in ("glossary.md", "methods.md"):
            continue  # written from the settings
        for span in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", path.read_text()):
            found.update(dict.fromkeys(printed(span, known), path.name))
    assert len(found) > 40
    assert {override: place for override, place in found.items() if not composes(override)} == {}
