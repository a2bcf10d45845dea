#!/bin/bash
# NODES=2 GPUS=8 HEAD=node0:29500 scripts/torchrun.sh experiment=ta_grpo scale=paper model=qwen3_1.7b data.train.path=…
# The same line on every node, at about the same time; HEAD is one of them.
set -euo pipefail
exec torchrun --nnodes="${NODES:-1}" --nproc-per-node="${GPUS:-8}" \
    --rdzv-backend=c10d --rdzv-endpoint="${HEAD:-localhost:29500}" --rdzv-id="${RUN_ID:-tagrpo}" \
    --no-python tagrpo-train "$@" resume=auto trainer.num_nodes="${NODES:-1}" trainer.devices="${GPUS:-8}"
