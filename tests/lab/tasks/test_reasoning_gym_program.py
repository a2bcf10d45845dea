"""Packages in the place of reasoning-gym whose generators print, hang, fail, and return what are no questions."""

from __future__ import annotations

import textwrap

import pytest

from tagrpo.foreign import ForeignDataError
from tagrpo.lab.tasks.reasoning_gym import ReasoningGymSource

PACKAGE = """
import json, os, sys, time

class Items:
    def __init__(self, size):
        self.size = size
    def __getitem__(self, number):
{body}

def create_dataset(task, seed, size, **options):
    return Items(size)
"""
GOOD = "{'question': f'What is {number} + 0?', 'answer': str(number), 'metadata': {}}"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Put a package in the place of reasoning-gym whose generator returns an item by `body`."""

    def write(body):
        folder = tmp_path / "reasoning_gym"
        folder.mkdir()
        (folder / "__init__.py").write_text("")
        (folder / "factory.py").write_text(
            PACKAGE.format(body=textwrap.indent(textwrap.dedent(body), " " * 8))
        )
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    return write


def test_what_a_generator_and_its_child_processes_print_is_no_item(package, capfd):
    package(f"print('noise'); os.write(1, b'\\x1b[2J'); os.system('echo noise'); return {GOOD}")
    groups = ReasoningGymSource("gcd", size=4).load()
    assert [group.answer[0] for group in groups] == [group.question.split()[2] for group in groups]
    assert len(groups) == 4
    assert "\x1b" not in capfd.readouterr().err


def test_a_generator_with_fewer_items_ends(package):
    package(f"if number > 2: raise RuntimeError('none')\nreturn {GOOD}")
    assert 0 < len(ReasoningGymSource("gcd", size=9).load()) < 4


@pytest.mark.parametrize(
    "item",
    [
        "3", "None", "{}", "{'question': 3, 'answer': '1', 'metadata': {}}",
        "{'question': 'q', 'answer': 1, 'metadata': {}}",
        "{'question': 'q', 'answer': None, 'metadata': {}}", "{'question': '\\ud800', 'answer': '1', 'metadata': {}}",
        "{'question': 'q', 'answer': '1', 'metadata': {'valid_answers': 'abc'}}",
        "{'question': 'q', 'answer': '1', 'metadata': {'valid_answers': [['a']]}}",
        "{'question': 'q', 'answer': '1', 'metadata': {'valid_answers': {'a': 1}}}",
        "{'question': 'q', 'answer': '1', 'metadata': {'difficulty': float('nan')}}",
        "{'question': 'q', 'answer': '1', 'metadata': 5}", "os._exit(0)", "sys.exit(0)", "1 / 0",
        "os.kill(os.getpid(), 9)",
        "[os.closerange(3, 64), time.sleep(3600)]", "[os.write(fd, b'3\\n') for fd in range(3, 64)]",
        "[os.write(3, b'{' * 9999) for _ in range(9999)]",
    ],
)  # fmt: skip
def test_items_that_are_no_questions_are_one_error_that_names_the_task_and_the_setting(package, item):
    package(f"return {item}")
    with pytest.raises(ValueError, match=r"gcd.*data\.(options|task)") as error:
        ReasoningGymSource("gcd", size=4).load()
    assert str(error.value).isprintable()


def test_an_item_has_a_time_limit(package):
    package("time.sleep(3600)")
    with pytest.raises(ForeignDataError, match=r"data\.load_seconds"):
        ReasoningGymSource("gcd", size=4, load_seconds=1.0).load()
    with pytest.raises(ValueError, match=r"data\.load_seconds"):
        ReasoningGymSource("gcd", load_seconds=0)
