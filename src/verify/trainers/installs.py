"""Shell lines that make an environment of each trainer."""

INSTALL: dict[str, str] = {
    "trl": "pip install trl==1.16.0",
    "verl": (
        "uv venv --python 3.11 .trainers/verl && uv pip install --python .trainers/verl/bin/python "
        "--torch-backend=cpu verl==0.9.1 torch==2.13.0"
    ),
}
"""Trainer → shell line."""
