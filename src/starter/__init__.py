"""Shell: the starter policy of this package, a Hugging Face folder that `examples/starters` makes."""

from pathlib import Path


def starter_path() -> Path:
    """Return the folder of the starter policy (configuration, weights, tokenizer, `warmstart.json`)."""
    return Path(__file__).parent
