"""`tagrpo-export`: a checkpoint, one file or a folder of shards, as a Hugging Face folder."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from hydra.utils import instantiate
from lightning.pytorch import Trainer
from omegaconf import DictConfig, OmegaConf
from transformers import AutoTokenizer

from .checkpoints import check, check_metadata, newest
from .modules.policy import PolicyModule


def export(checkpoint: str | Path, folder: str | Path, config: DictConfig | None = None) -> Path:
    """Write the policy of a checkpoint so that `AutoModelForCausalLM.from_pretrained` loads it.

    Needs no GPU and no process group, whatever the checkpoint was trained on; adapters are merged. Only the weights are
    read, optimizer states are not.

    Args:
        checkpoint: A checkpoint, or the directory of a run, of which the newest complete one is taken.
        folder: Where to write; made when it is missing.
        config: The run's configuration; None reads the `config.yaml` of the run that the checkpoint lies in.

    Returns:
        The checkpoint that was exported.

    Raises:
        FileNotFoundError: there is no checkpoint, or no `config.yaml` beside its folder.
        TornCheckpointError: the checkpoint is not complete.
        RuntimeError: the weights are not those of the model that the configuration names.
    """
    path = _checkpoint_of(Path(checkpoint).expanduser())
    if config is None:
        config = _config_of(path)
    module: PolicyModule = instantiate(config.policy)
    module.kl_coef = 0.0  # no reference is needed
    module.trainer = Trainer(
        accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    module.configure_model()
    _load_weights(module, path)
    module.export(folder, AutoTokenizer.from_pretrained(config.data.tokenizer, trust_remote_code=False))
    return path


def _checkpoint_of(path: Path) -> Path:
    if path.is_dir() and (path / "checkpoints").is_dir():
        found = newest(path / "checkpoints")
        if found is None:
            raise FileNotFoundError(
                f"Expected a complete checkpoint in {path / 'checkpoints'}, but there is none. Did the run end before "
                "its first one? Lower callbacks.checkpoint.every."
            )
        return found
    check(path)
    return path


def _config_of(path: Path) -> DictConfig:
    file = path.absolute().parent.parent / "config.yaml"
    if not file.is_file():
        raise FileNotFoundError(
            f"Expected the configuration of the run at {file}, but there is none. Leave checkpoints in the directory "
            "of their run, or give `--config`."
        )
    config = OmegaConf.load(file)
    assert isinstance(config, DictConfig)
    return config


def _load_weights(module: PolicyModule, path: Path) -> None:
    if path.is_dir():
        check_metadata(path)
        weights = module.state_dict()
        dcp.load({"state_dict": weights}, checkpoint_id=path, no_dist=True)
    else:
        # Memory-mapped: optimizer states are never read.
        weights = torch.load(path, map_location="cpu", weights_only=True, mmap=True)["state_dict"]
    module.load_state_dict(weights)


def main() -> None:
    """Console entry point."""
    parser = argparse.ArgumentParser(prog="tagrpo-export", description=__doc__)
    parser.add_argument("checkpoint", help="a checkpoint, or the directory of a run (its newest complete checkpoint)")
    parser.add_argument("folder", help="where to write the Hugging Face folder")
    parser.add_argument("--config", help="config.yaml of the run; found beside the checkpoint's folder by default")
    arguments = parser.parse_args()
    config = OmegaConf.load(arguments.config) if arguments.config else None
    path = export(arguments.checkpoint, arguments.folder, config)  # type: ignore[arg-type]
    print(f"{path} -> {arguments.folder}")


if __name__ == "__main__":
    main()
