"""Policy that ships with the package: a Hugging Face folder, made by `examples/starters`."""

from pathlib import Path


def starter_path() -> Path:
    """Return the folder of the starter policy (configuration, weights, tokenizer, `warmstart.json`)."""
    return Path(__file__).parent
