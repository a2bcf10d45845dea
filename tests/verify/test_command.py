"""`tagrpo-verify`: the whole command, and its settings."""

from __future__ import annotations

import json

import pytest
from omegaconf import OmegaConf
from rich.console import Console

from tagrpo.settings.methods import configs
from tagrpo.verify.command import as_settings
from tagrpo.verify.compare import Comparison
from tagrpo.verify.outcome import Difference
from tagrpo.verify.page import cell
from tagrpo.verify.session import python_of, verify


def settings(**change):
    cfg = OmegaConf.load(configs() / "verify.yaml")
    del cfg["hydra"], cfg["defaults"]
    return OmegaConf.merge(cfg, change)


def printed(cfg):
    console = Console(record=True, width=300)
    found = verify(cfg, console)
    return found, console.export_text()


def test_a_path_and_the_flag_of_the_page_become_settings():
    assert as_settings(["runs/a", "seed=1"]) == ["batch=runs/a", "seed=1"]
    assert as_settings(["seed=1", "--page"]) == ["seed=1", "page=docs/trainers.md"]
    assert as_settings(["--help", "rollout"]) == ["--help", "rollout"]
    assert as_settings([]) == []


def test_a_trainer_that_is_not_installed_is_named_with_the_line_that_installs_it(tmp_path, monkeypatch):
    monkeypatch.setenv("TAGRPO_TRAINERS", str(tmp_path))
    monkeypatch.setattr("tagrpo.verify.session.has_module", lambda *_: False)
    found, text = printed(settings(trainers={"trl": None}, methods=["grpo"]))
    assert found == []
    assert "trl: not installed" in text


def test_an_interpreter_that_is_not_there_is_refused():
    with pytest.raises(FileNotFoundError, match=r"trainers\.verl"):
        python_of("verl", "/no/such/python")


def test_an_unknown_method_or_trainer_is_refused():
    with pytest.raises(ValueError, match="methods"):
        verify(settings(methods=["none_such"]), Console())
    with pytest.raises(ValueError, match="trainers"):
        verify(settings(trainers={"nobody": None}, methods=["grpo"]), Console())


def test_cells_of_the_page_have_settings_as_code():
    equal, other = Difference(0, 0, 0, 0), Difference(1, 1, 1, 1)
    assert cell(Comparison(trainer="trl", method="grpo", default=equal, conventional=equal)) == "equal"
    assert cell(Comparison(trainer="trl", method="kl_cov", reason="trl 1 has no kl_cov")) == "–"
    assert cell(Comparison(trainer="trl", method="rloo", reason="needs groups")) == "needs groups"
    both = Comparison(trainer="trl", method="grpo", default=other, conventional=other)
    assert cell(both) == "different: no known convention explains it"


@pytest.mark.runs
def test_the_whole_command_finds_trl_equal_and_writes_the_page(tmp_path):
    pytest.importorskip("trl", reason="needs TRL, the extra `bench`")
    page = tmp_path / "page.md"
    page.write_text("<!-- begin trainers -->\n<!-- end trainers -->\n")
    methods = ["grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "gmpo", "kl_cov"]
    found, text = printed(settings(trainers={"trl": None}, methods=methods, page=str(page)))
    assert [each.method for each in found if each.conventional and each.conventional.equal] == methods[:-1]
    assert "loss.kl_ratio=true changes the gradient by: grpo" in text
    rows = page.read_text().splitlines()
    assert sum(row.startswith("| `") for row in rows) == len(methods)
    assert "| `dr_grpo` | equal |" in rows


@pytest.mark.runs
def test_a_batch_with_rephrasings_and_a_missing_reward_is_compared_and_explained(tmp_path):
    pytest.importorskip("trl", reason="needs TRL, the extra `bench`")
    from tagrpo.verify.batch import small_batch

    rows = [row.model_dump() for row in small_batch().rows]
    rows[1]["reward"] = None
    rows[1]["sampled_logprobs"] = [-0.5] * len(rows[1]["response_ids"])
    path = tmp_path / "b.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (found,), _ = printed(settings(trainers={"trl": None}, methods=["dapo"], batch=str(path)))
    assert "left out of their pool" in found.verdict
    assert found.ours == []
