"""Checks of the data before the model is loaded."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf
from transformers import GenerationConfig, Qwen3Config

from tagrpo.datamodules.lightning.questions import QuestionDataModule
from tagrpo.datamodules.sources.base import Source
from tagrpo.datamodules.templates import ChatTemplate
from tagrpo.settings.checks import read_questions
from tagrpo.types import QuestionGroup, Verifier
from tests.chat_models import GEMMA, chat_model


class One(Source):
    """A source of one question."""

    def load(self):
        return [QuestionGroup("a", "1 + 1 = ?", (), ("2",))]


@pytest.mark.parametrize("known", [False, True])
def test_a_model_whose_turns_end_with_no_stop_token_is_told_of(tmp_path, known):
    tokenizer = chat_model(GEMMA)
    tokenizer.save_pretrained(tmp_path)
    Qwen3Config(vocab_size=len(tokenizer), max_position_embeddings=512).save_pretrained(tmp_path)
    end = tokenizer.convert_tokens_to_ids("<end_of_turn>")
    GenerationConfig(eos_token_id=[tokenizer.eos_token_id, *([end] if known else [])]).save_pretrained(
        tmp_path
    )
    data = QuestionDataModule(None, {"test": One()}, str(tmp_path), ChatTemplate())
    cfg = OmegaConf.create(
        {
            "model": {"path": str(tmp_path)},
            "rollout": {"engine": {}, "evaluation_sampling": {"max_new_tokens": 16}},
            "data": {"batch_size": 1},
        }
    )
    run = SimpleNamespace(
        datamodule=data,
        rollout=SimpleNamespace(pipeline=SimpleNamespace(verifier=type("Any", (Verifier,), {})())),
    )
    if known:
        read_questions(cfg, run, trains=False)
    else:
        with pytest.warns(UserWarning, match=rf"<end_of_turn>.*Add {end} to eos_token_id"):
            read_questions(cfg, run, trains=False)
    assert len(data.report["test"]["cautions"]) == (not known)
