"""`tagrpo-export`: write a checkpoint (one file or a folder of shards) as a Hugging Face folder."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..runs.directory import existing, flat, read_config
from .console import entry_point, explained

UPLOADED = {
    "model": ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "README.md"],
    "dataset": ["*.parquet"],
}
"""Patterns of the files that are uploaded; other files stay on this machine."""


def push(folder: str | Path, repository: str, public: bool = False, kind: str = "model") -> str:
    """Upload an exported folder, or a run's `rollouts` as a `dataset`, to the hub; return the address there.

    A missing repository is created. The hub's client takes the token from `hf auth login` or from the
    variable `HF_TOKEN`; this function neither reads nor shows the token.

    Raises:
        huggingface_hub.errors.HfHubHTTPError: if the hub refuses, for example because there is no token.
        huggingface_hub.errors.HFValidationError: if `repository` is not of the form `owner/name`.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    address = api.create_repo(repository, repo_type=kind, private=not public, exist_ok=True)
    api.upload_folder(repo_id=repository, repo_type=kind, folder_path=folder, allow_patterns=UPLOADED[kind])
    return str(address)


def export(checkpoint: str | Path, folder: str | Path, config: Mapping[str, Any] | None = None) -> Path:
    """Export a checkpoint's policy for `AutoModelForCausalLM.from_pretrained`; return the checkpoint's path.

    Neither a GPU nor a process group is needed, whatever machines the run trained on. Adapters are merged.

    `checkpoint` may be the directory of a run, whose newest complete checkpoint is taken. `folder` is created
    if missing. `config` is the run's resolved settings; None reads the run's `config.yaml`.

    Raises:
        FileExistsError: if `folder` has the final policy of a run, or the model that the run began with.
        FileNotFoundError: if there is no checkpoint, or no `config.yaml` beside its folder.
        ValueError: if the checkpoint is damaged, or the settings are not of the form that a run writes.
        pickle.UnpicklingError: if loading the checkpoint could run code.
        RuntimeError: if the weights do not fit the model that the settings name.
    """
    import torch
    from transformers import AutoTokenizer

    from ..modules.policy.lora import LoraSettings
    from ..modules.policy.model import load_causal_lm, save_model
    from ..packing.policy import CausalPolicy
    from ..runs.checkpoints import checkpoint_at, tensors_of

    _keep_models(Path(folder))
    path = checkpoint_at(checkpoint, "checkpoint")
    if config is None:
        config = read_config(path.absolute().parent.parent / "config.yaml")
    # Settings are read and nothing that they name is called: they may be a stranger's.
    settings = flat(config)
    try:
        model_path, tokenizer = (str(settings[name]) for name in ("model.load.path", "data.tokenizer"))
    except KeyError as missing:
        raise ValueError(
            f"Expected {missing} among the settings of the run of {path}, but it is not there."
        ) from None
    below = "model.load.lora."
    lora = {name.removeprefix(below): value for name, value in settings.items() if name.startswith(below)}
    lora.pop("_target_", None)
    if Path(model_path).is_dir() and Path(folder).resolve() == Path(model_path).resolve():
        raise FileExistsError(
            f"Expected a folder of its own for the exported policy, but {folder} holds the model that the "
            "run began with. Give another folder."
        )
    model = load_causal_lm(model_path, lora=LoraSettings(**lora) if lora else None)
    # as the module that wrote the checkpoint calls it
    holder = torch.nn.ModuleDict({"policy": CausalPolicy(model)})
    if path.is_dir():
        weights = tensors_of(path, "state_dict.")
    else:  # memory-mapped: optimizer states are never read
        weights = torch.load(path, map_location="cpu", weights_only=True, mmap=True)["state_dict"]
    holder.load_state_dict(weights)
    save_model(model, AutoTokenizer.from_pretrained(tokenizer, trust_remote_code=False), folder)
    return path


def _keep_models(folder: Path) -> None:
    """Raise a FileExistsError if `folder` has the final policy of a run (`<run>/model`)."""
    run = folder.absolute().parent
    if folder.name == "model" and (folder / "config.json").exists() and (run / "config.yaml").exists():
        raise FileExistsError(
            f"Expected a folder without a model, but {folder} holds the policy that the run in {run} has "
            "ended with. Give another folder, or move that one away."
        )


@entry_point()
def main() -> None:
    """Run `tagrpo-export`."""
    parser = argparse.ArgumentParser(prog="tagrpo-export", description=__doc__)
    parser.add_argument(
        "checkpoint", help="a checkpoint, or the directory of a run (its newest complete checkpoint)"
    )
    parser.add_argument("folder", help="where to write the Hugging Face folder")
    parser.add_argument(
        "--config", help="config.yaml of the run; found beside the checkpoint's folder by default"
    )
    parser.add_argument(
        "--push", metavar="OWNER/NAME", help="upload the folder to this repository of the hub, too"
    )
    parser.add_argument(
        "--push-responses", metavar="OWNER/NAME", help="upload the run's responses as a dataset"
    )
    parser.add_argument("--public", action="store_true", help="make newly created repositories public")
    arguments = parser.parse_args()
    with explained():
        existing(arguments.checkpoint, "`checkpoint`")
        config = read_config(Path(arguments.config)) if arguments.config else None
        path = export(arguments.checkpoint, arguments.folder, config)
        address = push(arguments.folder, arguments.push, arguments.public) if arguments.push else ""
        print(" -> ".join(filter(None, (str(path), arguments.folder, address))))
        if arguments.push_responses:
            responses = path.absolute().parent.parent / "rollouts"
            if not any(responses.glob("*.parquet")):
                raise FileNotFoundError(
                    f"Expected responses in {responses}, but there are none. callbacks.recorder writes them."
                )
            print(f"{responses} -> {push(responses, arguments.push_responses, arguments.public, 'dataset')}")
