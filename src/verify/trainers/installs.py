"""Shell lines that make an environment of each trainer, in a folder `.trainers`.

Trainers that no index has are put on the path of their environment from their sources.
"""

INSTALL: dict[str, str] = {
    "trl": "pip install trl==1.16.0",
    "verl": (
        "uv venv --python 3.11 .trainers/verl && uv pip install --python .trainers/verl/bin/python "
        "--torch-backend=cpu verl==0.9.1 torch==2.13.0"
    ),
    "skyrl": (
        "uv venv --python 3.12 .trainers/skyrl && uv pip install --python .trainers/skyrl/bin/python "
        "--torch-backend=cpu skyrl==0.4.0 torch==2.13.0 ray==2.57.0 jaxtyping loguru omegaconf pandas"
    ),
    "nemo_rl": (
        "uv venv --python 3.12 .trainers/nemo_rl && uv pip install --python .trainers/nemo_rl/bin/python "
        "--torch-backend=cpu torch==2.13.0 'transformers>=5.5,<5.9' 'ray[default]>=2.55.1' numpy safetensors "
        "pydantic pyzmq omegaconf wandb rich pillow nvidia-ml-py uvicorn fastapi mlflow swanlab tensorboard "
        "prometheus-client hydra-core matplotlib nvtx datasets math-verify torchdata tiktoken sentencepiece "
        "accelerate num2words && git clone https://github.com/NVIDIA-NeMo/RL .trainers/nemo_rl/source && "
        "git -C .trainers/nemo_rl/source checkout 7ea279abfbeb698b092856d0dab61e7cf39bc909 && "
        "realpath .trainers/nemo_rl/source > .trainers/nemo_rl/lib/python3.12/site-packages/source.pth"
    ),
    "prime_rl": (
        "uv venv --python 3.12 .trainers/prime_rl && uv pip install --python .trainers/prime_rl/bin/python "
        "--torch-backend=cpu torch==2.13.0 transformers==5.6.2 verifiers==0.4.0 numpy safetensors beartype "
        "jaxtyping loguru prime-pydantic-config pyzmq msgspec rich wandb && "
        "git clone https://github.com/PrimeIntellect-ai/prime-rl .trainers/prime_rl/source && "
        "git -C .trainers/prime_rl/source checkout 559b44772e471d1538537b8805cc77f3824a5e64 && "
        "realpath .trainers/prime_rl/source/src .trainers/prime_rl/source/packages/prime-rl-configs/src "
        "> .trainers/prime_rl/lib/python3.12/site-packages/source.pth"
    ),
}
"""Trainer → shell line."""
