"""Checkpoints as Hugging Face folders."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import ClassVar
from unittest import mock

import pytest
import torch
import torch.distributed.checkpoint as dcp
import yaml
from huggingface_hub.utils import filter_repo_objects
from hypothesis import example, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3ForCausalLM

from tagrpo.cli.export import export, main
from tagrpo.files import begin_folder
from tagrpo.modules.policy.lora import LoraSettings
from tagrpo.modules.policy.model import load_causal_lm
from tagrpo.runs.checkpoints import DamagedFileError, commit_folder
from tagrpo.starter import starter_path


def config_of(lora: LoraSettings | None = None):
    load = {
        "_target_": "tagrpo.modules.policy.model.load_causal_lm",
        "_partial_": True,
        "path": str(starter_path()),
    }
    if lora is not None:
        load["lora"] = {"_target_": "tagrpo.modules.policy.lora.LoraSettings", "rank": lora.rank}
    return OmegaConf.create({"model": {"load": load}, "data": {"tokenizer": str(starter_path())}})


def trained_weights(lora: LoraSettings | None = None) -> dict[str, torch.Tensor]:
    """A state dict as a checkpoint has it, every tensor unlike what the starter comes with."""
    model = load_causal_lm(starter_path(), lora=lora)
    generator = torch.Generator().manual_seed(1)
    return {
        f"policy.model.{name}": tensor + 0.1 * torch.randn(tensor.shape, generator=generator)
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"
    }


def run_with_checkpoint(directory: Path, weights: dict[str, torch.Tensor], sharded: bool, lora=None) -> Path:
    if (
        "policy.model.model.embed_tokens.weight" in weights
    ):  # the head is tied to it, and both are in a state dict
        weights = {
            **weights,
            "policy.model.lm_head.weight": weights["policy.model.model.embed_tokens.weight"],
        }
    (directory / "checkpoints").mkdir(parents=True)
    OmegaConf.save(config_of(lora), directory / "config.yaml")
    path = directory / "checkpoints" / "iteration-000002.ckpt"
    if sharded:
        partial = directory / "checkpoints" / ".partial-x"
        begin_folder(partial)
        dcp.save({"state_dict": weights}, checkpoint_id=partial, no_dist=True)
        torch.save({"global_step": 4}, partial / "meta.pt")
        commit_folder(partial, path)
    else:
        torch.save({"state_dict": weights, "optimizer_states": [torch.zeros(3)]}, path)
    return path


@pytest.mark.parametrize("sharded", [False, True], ids=["file", "shards"])
def test_an_exported_folder_loads_with_transformers_and_holds_the_checkpoint_exactly(sharded, tmp_path):
    weights = trained_weights()
    path = run_with_checkpoint(tmp_path / "run", weights, sharded)
    assert export(tmp_path / "run", tmp_path / "model") == path
    exported = dict(AutoModelForCausalLM.from_pretrained(tmp_path / "model").named_parameters())
    assert {f"policy.model.{name}" for name in exported} == set(weights)
    for name, parameter in exported.items():
        assert torch.equal(parameter, weights[f"policy.model.{name}"]), name
    start = AutoTokenizer.from_pretrained(starter_path())
    assert AutoTokenizer.from_pretrained(tmp_path / "model").get_vocab() == start.get_vocab()


def test_an_export_that_failed_or_was_killed_leaves_nothing_behind(tmp_path, monkeypatch):
    path = run_with_checkpoint(tmp_path / "run", trained_weights(), sharded=False)
    model = tmp_path / "model"
    export(path, model)
    (model / "notes.txt").write_text("mine")
    before = {file.name: file.read_bytes() for file in model.iterdir()}
    save = Qwen3ForCausalLM.save_pretrained

    def killed(self, folder, **options):
        save(self, folder, **options)
        (folder / ".tmpAbCdEf").touch()  # as safetensors leaves behind
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Qwen3ForCausalLM, "save_pretrained", killed)
        with pytest.raises(KeyboardInterrupt):
            export(path, model)
    assert {file.name: file.read_bytes() for file in model.iterdir()} == before
    assert {file.name for file in tmp_path.iterdir()} == {"run", "model"}
    (tmp_path / ".partial-model").mkdir()
    (tmp_path / ".partial-model" / ".tmpAbCdEf").touch()  # of a process that could not clean up
    export(path, model)
    assert {file.name: file.read_bytes() for file in model.iterdir()} == before, (
        "with the file of somebody else"
    )
    assert {file.name for file in tmp_path.iterdir()} == {"run", "model"}


def test_adapters_are_merged(tmp_path):
    lora = LoraSettings(rank=2)
    weights = trained_weights(lora)
    path = run_with_checkpoint(tmp_path / "run", weights, sharded=False, lora=lora)
    export(path, tmp_path / "model")
    exported = dict(AutoModelForCausalLM.from_pretrained(tmp_path / "model").named_parameters())
    layer = "policy.model.model.layers.0.self_attn.q_proj"
    a, b = weights[f"{layer}.lora_A.default.weight"], weights[f"{layer}.lora_B.default.weight"]
    # W' = W + (α / r) · B A, α = 32, r = 2
    expected = weights[f"{layer}.base_layer.weight"] + 16 * b @ a
    torch.testing.assert_close(exported["model.layers.0.self_attn.q_proj.weight"], expected)
    assert not any("lora" in name for name in exported)


def test_the_command_says_what_it_took_and_refuses_what_is_torn(tmp_path, monkeypatch, capsys):
    path = run_with_checkpoint(tmp_path / "run", trained_weights(), sharded=False)
    monkeypatch.setattr(sys, "argv", ["tagrpo-export", str(tmp_path / "run"), str(tmp_path / "model")])
    main()
    assert str(path) in capsys.readouterr().out
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DamagedFileError):
        export(path, tmp_path / "other")
    with pytest.raises(DamagedFileError, match=path.name):
        export(tmp_path / "run", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_weights_of_another_model_are_refused(tmp_path):
    weights = trained_weights()
    weights.pop("policy.model.model.norm.weight")
    path = run_with_checkpoint(tmp_path / "run", weights, sharded=False)
    with pytest.raises(RuntimeError, match="norm.weight"):
        export(path, tmp_path / "model")


def test_a_checkpoint_apart_from_its_run_needs_the_configuration(tmp_path):
    path = run_with_checkpoint(tmp_path / "run", trained_weights(), sharded=False)
    (tmp_path / "run" / "config.yaml").unlink()
    with pytest.raises(FileNotFoundError, match="--config"):
        export(path, tmp_path / "model")
    export(path, tmp_path / "model", config_of())
    assert (tmp_path / "model" / "model.safetensors").exists()


FOREIGN = st.recursive(
    st.sampled_from(["canary.called", "${oc.env:HOME}", "${canary.called:1}", "starter"])
    | st.none()
    | st.integers(0, 9),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["_target_", "_args_", "_partial_", "path", "rank", "alpha"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)
LOADS = st.dictionaries(
    st.sampled_from(["_target_", "lora", "dtype", "_args_", "trust_remote_code"]), FOREIGN
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return run_with_checkpoint(
        tmp_path_factory.mktemp("foreign") / "run", {"policy.x": torch.zeros(1)}, sharded=False
    )


@given(load=LOADS, other=FOREIGN)
@example(load={"_target_": "canary.called"}, other=None)
@example(load={"lora": {"_target_": "canary.called", "rank": 2}}, other={"_target_": "canary.called"})
@settings(max_examples=40)
def test_of_a_strangers_configuration_nothing_is_called(checkpoint, load, other):
    canary = mock.Mock()
    content = {"model": {"load": {**load, "path": "missing"}}, "loss": other, "data": {"tokenizer": "x"}}
    (checkpoint.parents[1] / "config.yaml").write_text(yaml.safe_dump(content))
    with (
        mock.patch.dict(sys.modules, canary=canary),
        pytest.raises((FileNotFoundError, TypeError, ValueError)),
    ):
        export(checkpoint, checkpoint.parent / "out")
    assert not canary.mock_calls


def test_a_strangers_configuration_reads_no_variable(checkpoint, monkeypatch):
    monkeypatch.setenv("SECRET_OF_MINE", "value-of-the-secret")
    content = {"model": {"load": {"path": "${oc.env:SECRET_OF_MINE}/x"}}, "data": {"tokenizer": "x"}}
    (checkpoint.parents[1] / "config.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(ValueError, match=r"model.load.path holds an interpolation") as refused:
        export(checkpoint, checkpoint.parent / "out")
    assert "value-of-the-secret" not in str(refused.value)
    with pytest.raises(ValueError, match="'data.tokenizer' among the settings"):
        export(checkpoint, checkpoint.parent / "out", {"model": {"load": {"path": "x"}}})


class Hub:
    """Stands for the hub's client: notes what it is asked."""

    asked: ClassVar[list] = []

    def create_repo(self, repo_id, *, repo_type, private, exist_ok):
        self.asked.append(("create", repo_type, repo_id, private, exist_ok))
        return f"https://huggingface.co/{repo_id}"

    def upload_folder(self, *, repo_id, repo_type, folder_path, allow_patterns):
        names = filter_repo_objects(
            [path.name for path in Path(folder_path).iterdir()], allow_patterns=allow_patterns
        )
        self.asked.append(("upload", repo_type, repo_id, sorted(names)))


@pytest.mark.parametrize("public", [False, True])
def test_a_policy_is_pushed_without_what_else_lies_in_its_folder(tmp_path, monkeypatch, capsys, public):
    run_with_checkpoint(tmp_path / "run", trained_weights(), sharded=False)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.md").write_text("not for others")
    monkeypatch.setenv("HF_TOKEN", "hf_" + "s" * 34)
    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    monkeypatch.setattr(Hub, "asked", [])
    arguments = [str(tmp_path / "run"), str(tmp_path / "out"), "--push", "me/policy", *["--public"] * public]
    with mock.patch.object(sys, "argv", ["tagrpo-export", *arguments]):
        main()
    (created, uploaded) = Hub.asked
    assert created == ("create", "model", "me/policy", not public, True)
    names = {path.name for path in (tmp_path / "out").iterdir()} - {"notes.md"}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    assert uploaded == ("upload", "model", "me/policy", sorted(names))
    out, err = capsys.readouterr()
    assert out.endswith("-> https://huggingface.co/me/policy\n")
    assert "s" * 34 not in out + err


def test_the_responses_of_a_run_are_pushed_as_a_dataset(tmp_path, monkeypatch, capsys):
    run_with_checkpoint(tmp_path / "run", trained_weights(), sharded=False)
    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    monkeypatch.setattr(Hub, "asked", [])
    arguments = [str(tmp_path / "run"), str(tmp_path / "out"), "--push-responses", "me/responses"]
    monkeypatch.setattr(sys, "argv", ["tagrpo-export", *arguments])
    with pytest.raises(SystemExit, match=r"callbacks.recorder"):
        main()
    (tmp_path / "run" / "rollouts").mkdir()
    for name in ("000001-0.parquet", "000002-0.parquet", "notes.txt"):
        (tmp_path / "run" / "rollouts" / name).touch()
    main()
    files = ["000001-0.parquet", "000002-0.parquet"]
    assert Hub.asked == [
        ("create", "dataset", "me/responses", True, True), ("upload", "dataset", "me/responses", files),
    ]  # fmt: skip
    assert capsys.readouterr().out.endswith("rollouts -> https://huggingface.co/me/responses\n")
