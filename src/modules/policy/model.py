"""Loading and writing a Hugging Face causal language model."""

import math
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from ...files import folder_written_whole
from ...packing.noise import without_noise
from .lora import LoraSettings, add_adapters
from .sharding import decoder_layers, full_tensors


def resolve_model_path(path: str | Path) -> str:
    """Check a model path before anything expensive starts, and return `path` with the home folder expanded.

    Raises:
        FileNotFoundError: if `path` is neither a folder with a `config.json` nor of the form of a hub name
            (`owner/name`).
    """
    folder = Path(path).expanduser()
    if (folder / "config.json").is_file():
        return str(folder)
    looks_like_hub_name = len(Path(path).parts) <= 2 and not str(path).startswith((".", "/", "~"))
    if folder.exists() or not looks_like_hub_name:
        found = "nothing"
        if folder.is_dir():
            found = "a folder without one"
        elif folder.exists():
            found = "a file"
        raise FileNotFoundError(
            f"Expected `model.path` to be a folder with a config.json or a hub name such as Qwen/Qwen3-1.7B, "
            f"but found {found} at {path!s}. Set model.path to a Hugging Face model folder."
        )
    return str(path)


def load_causal_lm(
    path: str | Path, *, gradient_checkpointing: bool | float = False, lora: LoraSettings | None = None
) -> PreTrainedModel:
    """Load a causal language model for training, on the CPU.

    Under `torch.device("meta")`, the model has no values. The weights are float32: an update of 1e-6 vanishes
    in bfloat16. Dropout and other noise are off, also in the model's configuration.

    Args:
        path: Folder or hub name; see `resolve_model_path`.
        gradient_checkpointing: Layers whose activations are recomputed in the backward: all (true), none
            (false), or this share of the layers, from the first. Each layer that keeps its activations costs
            memory and saves a fourth of its work.
        lora: Freeze the weights and train low-rank adapters; None trains the weights.

    Raises:
        FileNotFoundError: if nothing is found at `path`.
        ValueError: if `gradient_checkpointing` is not a share.
    """
    path = resolve_model_path(path)
    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=False)
        config._attn_implementation = None  # it could name code on the hub
        if torch.get_default_device().type == "meta":
            model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        else:
            model = AutoModelForCausalLM.from_pretrained(
                path, config=config, dtype=torch.float32, trust_remote_code=False
            )
    except OSError as error:
        raise FileNotFoundError(
            f"Expected a Hugging Face model at `{path}`, but it could be read neither from disk nor from the "
            f"hub: {error}. Check model.path, the network, and HF_HUB_OFFLINE."
        ) from error
    if gradient_checkpointing:
        share = float(gradient_checkpointing)
        if not 0 < share <= 1:
            raise ValueError(
                f"Expected model.load.gradient_checkpointing to be true, false or the share of layers, but got {share}."
            )
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.config.use_cache = False
        layers: list[Any] = decoder_layers(model) if share < 1 else []
        for layer in layers[math.ceil(share * len(layers)) :]:
            layer.gradient_checkpointing = False
    without_noise(model)  # dropout would make the ratio of the first mini-batch differ from one
    if lora is not None:
        add_adapters(model, lora)
    return model


def save_model(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: str | Path, *, write: bool = True
) -> None:
    """Write a Hugging Face folder: safetensors, full tensors, adapters merged. Collective with FSDP2.

    Ranks with `write=False` only take part in gathering the tensors, and keep one tensor at a time.
    """
    tensors = {name: tensor.cpu() for name, tensor in full_tensors(model) if write}
    if write:
        with folder_written_whole(Path(folder)) as partial:
            model.save_pretrained(partial, state_dict=tensors)
            tokenizer.save_pretrained(partial)
