"""What the counts of an evaluation depend on: each part changes with its content, and with nothing else."""

from __future__ import annotations

import hashlib
import json
import os
import shutil

import pytest
from hydra import compose, initialize_config_module

from tagrpo import identity
from tagrpo.identity import FileDigests, identity_of
from tagrpo.starter import starter_path
from tagrpo.types import QuestionGroup

GROUPS = {"test": [QuestionGroup("a", "1 + 1 ?", (), ("2",)), QuestionGroup("b", "1 + 2 ?", (), ("3",))]}


def composed(*overrides):
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        return compose("evaluate", list(overrides))


@pytest.fixture
def policy(tmp_path):
    shutil.copytree(starter_path(), tmp_path / "policy", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    return tmp_path / "policy"


def found(tmp_path, policy, *overrides, groups=GROUPS, checkpoint=None):
    cfg = composed(f"model.path={policy}", *overrides)
    return identity_of(cfg, groups, checkpoint, tmp_path / "digests.json")


def test_each_part_changes_with_its_own_settings_alone(tmp_path, policy):
    before = found(tmp_path, policy)
    assert found(tmp_path, policy) == before
    for override, part in (
        ("+reward.tolerance=1", "reward"),
        ("rollout.evaluation_sampling.temperature=0.5", "sampling"),
        ("seed=1", "sampling"),
        ("data.evaluation_samples=64", "protocol"),
        ("template=boxed", "protocol"),
    ):
        after = found(tmp_path, policy, override)
        assert [name for name in before if before[name] != after[name]] == [part], override
    wrong = [group._replace(answer=("7",)) for group in GROUPS["test"]]
    for other in (GROUPS["test"][::-1], GROUPS["test"][:1], wrong):
        after = found(tmp_path, policy, groups={"test": other})
        assert [name for name in before if before[name] != after[name]] == ["data"]


def test_weights_are_told_by_their_content_and_not_by_their_place_or_time(tmp_path, policy):
    before = found(tmp_path, policy)["weights"]
    moved = shutil.copytree(policy, tmp_path / "elsewhere")
    assert found(tmp_path, moved)["weights"] == before
    file = policy / "model.safetensors"
    stat, content = file.stat(), bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # as large and as old as it was
    assert found(tmp_path, policy)["weights"] != before


def test_a_checkpoint_counts_whether_it_is_a_file_or_a_folder(tmp_path, policy):
    (tmp_path / "a.ckpt").write_bytes(b"1")
    (tmp_path / "b.ckpt").mkdir()
    (tmp_path / "b.ckpt" / "shard").write_bytes(b"1")
    names = [found(tmp_path, policy, checkpoint=tmp_path / name)["checkpoint"] for name in ("a.ckpt", "b.ckpt")]
    assert len({"", *names}) == 3
    (tmp_path / "b.ckpt" / "shard").write_bytes(b"2")
    assert found(tmp_path, policy, checkpoint=tmp_path / "b.ckpt")["checkpoint"] != names[1]


def test_a_settled_file_is_read_once_and_one_that_has_just_changed_each_time(tmp_path, monkeypatch):
    file, memo = tmp_path / "weights.bin", tmp_path / "memo.json"
    file.write_bytes(b"old")
    FileDigests(memo).of([file])
    assert json.loads(memo.read_text()) == {}, "it may change again within the same tick of the clock"
    monkeypatch.setattr(identity, "SETTLED_SECONDS", -1.0)
    first = FileDigests(memo).of([file])
    assert list(json.loads(memo.read_text()).values()) == [hashlib.sha256(b"old").hexdigest()]
    monkeypatch.setattr(identity.hashlib, "file_digest", lambda *_: pytest.fail("it was read again"))
    assert FileDigests(memo).of([file]) == first
