"""What the counts of an evaluation depend on: each part changes with its content, and with nothing else."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hydra import compose, initialize_config_module
from transformers import AutoTokenizer

from tagrpo.digests import bit_sums, json_digest, tokenizer_digest
from tagrpo.files import begin_folder
from tagrpo.modules.policy.model import load_causal_lm
from tagrpo.runs.checkpoints import AtomicCheckpointIO, commit_folder
from tagrpo.settings.identity import identity_of
from tagrpo.starter import starter_path
from tagrpo.types import QuestionGroup

GROUPS = [QuestionGroup("a", "1 + 1 ?", (), ("2",)), QuestionGroup("b", "1 + 2 ?", (), ("3",))]
VERIFIER = """
from tagrpo.rewards import FinalAnswerReward

class Own(FinalAnswerReward):
    limit = 1
"""


def composed(*overrides):
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        return compose("evaluate", list(overrides))


@pytest.fixture
def policy(tmp_path):
    shutil.copytree(starter_path(), tmp_path / "policy", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    return tmp_path / "policy"


def found(policy, *overrides, groups=GROUPS, checkpoint=None):
    cfg = composed(f"model.path={policy}", *overrides)
    model = load_causal_lm(cfg.model.path)
    module = SimpleNamespace(loaded=json_digest(bit_sums(model)), policy=SimpleNamespace(model=model))
    data = SimpleNamespace(
        tokenizer=AutoTokenizer.from_pretrained(cfg.data.tokenizer),
        evaluation_loaders=lambda: {"test": SimpleNamespace(groups=groups)},
    )
    return identity_of(cfg, module, data, checkpoint)


def differing(before, after):
    return [name for name in before if before[name] != after[name]]


def test_each_part_changes_with_its_own_settings_alone(policy):
    before = found(policy)
    assert found(policy) == before
    for override, part in (
        ("+reward.tolerance=1", "reward"),
        ("rollout.evaluation_sampling.temperature=0.5", "sampling"),
        ("seed=1", "sampling"),
        ("data.evaluation_samples=64", "protocol"),
        ("template=boxed", "protocol"),
    ):
        assert differing(before, found(policy, override)) == [part], override
    wrong = [group._replace(answer=("7",)) for group in GROUPS]
    for other in (GROUPS[::-1], GROUPS[:1], wrong):
        assert differing(before, found(policy, groups=other)) == ["data"]
    assert found(policy, "reward=math", "reward.workers=1") == found(
        policy, "reward=math", "reward.workers=2"
    )


def test_a_model_is_told_by_its_content_and_not_by_its_place(policy, tmp_path):
    before = found(policy)
    moved = shutil.copytree(policy, tmp_path / "elsewhere")
    assert found(moved) == before
    content = bytearray((policy / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (policy / "model.safetensors").write_bytes(content)
    assert differing(before, found(policy)) == ["weights"]
    config = json.loads((moved / "config.json").read_text())
    (moved / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-3}))
    assert differing(before, found(moved)) == ["model"]


def test_a_tokenizer_of_its_own_counts(policy, tmp_path):
    before = found(policy)
    other = shutil.copytree(policy, tmp_path / "other")
    assert found(policy, f"data.tokenizer={other}") == before
    content = json.loads((other / "tokenizer.json").read_text())
    content["normalizer"] = {"type": "Lowercase"}
    (other / "tokenizer.json").write_text(json.dumps(content))
    assert differing(before, found(policy, f"data.tokenizer={other}")) == ["tokenizer"]


def test_using_a_tokenizer_does_not_make_it_another(policy):
    tokenizer = AutoTokenizer.from_pretrained(policy)
    before = tokenizer_digest(tokenizer)
    tokenizer(["1", "1 + 1"], padding=True, truncation=True, max_length=2)
    assert tokenizer_digest(tokenizer) == before
    tokenizer.chat_template = "{{ messages }}"
    assert tokenizer_digest(tokenizer) != before


def test_the_code_of_a_verifier_inside_of_another_counts(policy, tmp_path, monkeypatch):
    folder = tmp_path / "code"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    (folder / "verifier_of_mine.py").write_text(VERIFIER)
    overrides = ["reward=mixed", "reward.free={_target_: verifier_of_mine.Own}"]
    before = found(policy, *overrides)
    (folder / "verifier_of_mine.py").write_text(VERIFIER.replace("1", "2"))
    assert differing(before, found(policy, *overrides)) == ["reward"]


def test_a_checkpoint_counts_whether_it_is_a_file_or_a_folder(policy, tmp_path):
    def written(name, value):
        AtomicCheckpointIO().save_checkpoint({"state_dict": torch.tensor([value])}, tmp_path / name)
        return found(policy, checkpoint=tmp_path / name)["checkpoint"]

    def sharded(name, value):
        begin_folder(tmp_path / "partial")
        dcp.save({"x": torch.tensor([value])}, checkpoint_id=tmp_path / "partial", no_dist=True)
        commit_folder(tmp_path / "partial", tmp_path / name)
        return found(policy, checkpoint=tmp_path / name)["checkpoint"]

    assert written("a.ckpt", 1.0) == written("b.ckpt", 1.0)
    values = [write(name, value) for write, name in ((written, "a"), (sharded, "c")) for value in (1.0, 2.0)]
    assert len({"", *values}) == 5


FUNCTIONS = """
from helper_of_mine import half

def graded(completions):
    return half(completions)
"""


def test_the_code_and_the_columns_of_a_reward_function_count(policy, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "functions_of_mine").mkdir()
    function = tmp_path / "functions_of_mine" / "rewards.py"
    helper = tmp_path / "helper_of_mine.py"
    function.write_text(FUNCTIONS)
    helper.write_text("def half(completions):\n    return [0.5 for _ in completions]\n")
    overrides = [
        "reward=function",
        "reward.target=[functions_of_mine.rewards.graded,trl.rewards.accuracy_reward]",
    ]
    before = found(policy, *overrides)
    assert found(policy, *overrides, "reward.workers=2") == before
    for override in (
        "reward.correct_above=0.7",
        "reward.weights=[1,2]",
        "reward.target=functions_of_mine.rewards.graded",
    ):
        assert differing(before, found(policy, *overrides, override)) == ["reward"]
    marked = [group._replace(metadata={"level": 1}) for group in GROUPS]
    assert differing(before, found(policy, *overrides, groups=marked)) == ["data"]
    assert found(policy, groups=marked) == found(policy), "other rewards do not read the columns"
    for file in (function, helper):
        file.write_text(file.read_text() + "\n# changed\n")
        after = found(policy, *overrides)
        assert differing(before, after) == ["reward"]
        before = after
