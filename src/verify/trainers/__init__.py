"""Adapters of other trainers: each sends a batch of rollouts through one trainer's own code.

An adapter runs in a process of its own, under the Python of an environment that has the trainer:
`PYTHON src/verify/trainers NAME IN OUT`. It imports that trainer, torch, numpy, safetensors and transformers,
and nothing of tagrpo but this folder.
"""
