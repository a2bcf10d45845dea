#!/usr/bin/env bash
# The update on one GPU at the paper's shape, from tests to figures; no weights and no network are needed.
#
#   bash benchmarks/gpu.sh                 # an hour at most; writes benchmarks/results/gpu-*.json
#   SIZE=tiny bash benchmarks/gpu.sh       # minutes: the same steps on a small model, also without a GPU
#
# PYTHON names the interpreter (.venv/bin/python by default) of an environment with this package, its extra `bench`
# and a CUDA build of torch. A step that fails, for instance for lack of memory, is reported and the next one goes on;
# the exit status is the number of failed steps. benchmarks/tables.py writes the figures into
# docs/performance.md.
set -uo pipefail
cd "$(dirname "$0")/.."

PYTHON="${PYTHON:-.venv/bin/python}"
RESULTS="${RESULTS:-benchmarks/results}"
SIZE="${SIZE:-paper}"
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false PYTORCH_CUDA_ALLOC_CONF="${PYTORCH_CUDA_ALLOC_CONF:-expandable_segments:True}"
export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES:-0}"  # one GPU: TRL would spread over all
unset TORCH_COMPILE_DISABLE  # FlexAttention must compile
mkdir -p "$RESULTS"

if "$PYTHON" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    DEVICE=cuda DTYPE=bfloat16
    nvidia-smi --query-gpu=name,memory.total,clocks.max.sm,driver_version --format=csv | tee "$RESULTS/gpu.txt"
else
    DEVICE=cpu DTYPE=float32
    if [ "$SIZE" != tiny ]; then
        echo "No CUDA device: SIZE=tiny runs the same steps on a CPU." >&2
        exit 64
    fi
    echo "No CUDA device: on the CPU, to see that every step runs. The figures mean nothing for a GPU."
fi

case "$SIZE" in
paper) # Qwen3-1.7B, prompts of 512, responses to 3,072, 32 a question; the mean is that of math answers
    SHAPE=(--model qwen3_1.7b --vocabulary 151936 --prompt 512 --mean 1000 --max 3072 --responses 32 --checkpointing)
    BUDGET=32768 ROUNDS=5
    ;;
tiny)
    SHAPE=(--model tiny --vocabulary 512 --prompt 24 --mean 20 --max 60 --responses 4)
    BUDGET=512 ROUNDS=1
    ;;
*)
    echo "Expected SIZE to be paper or tiny, but got $SIZE." >&2
    exit 64
    ;;
esac

FAILED=0
step() { # step <name> <command…>
    local name="$1" start=$SECONDS
    shift
    echo "== $name"
    if "$@" >"$RESULTS/gpu-$name.log" 2>&1; then
        echo "   done in $((SECONDS - start)) s"
    else
        FAILED=$((FAILED + 1))
        echo "   FAILED after $((SECONDS - start)) s; the end of $RESULTS/gpu-$name.log:"
        tail -n 5 "$RESULTS/gpu-$name.log" | sed 's/^/   /'
    fi
}
update() { # update <name> <options…>
    local name="$1"
    shift
    step "$name" "$PYTHON" benchmarks/update_step.py "${SHAPE[@]}" --device "$DEVICE" --dtype "$DTYPE" \
        --rounds "$ROUNDS" --json "$RESULTS/gpu-$name.json" "$@"
}

# First that the compiled attention is right, then how fast it is.
step attention "$PYTHON" -m pytest -q tests/modules/test_attention.py
update update --token-budget "$BUDGET" --ways padding_free prefix_shared --no-dropping
update dropping --token-budget "$BUDGET" --ways prefix_shared --dropping-only
# TRL and the plain padded forward, with as many padded tokens per micro-batch as fit beside their logits.
update peers --token-budget $((BUDGET / 2)) --ways trl padded prefix_shared --no-dropping
# The way back where FlexAttention fails: SDPA in blocks.
TORCH_COMPILE_DISABLE=1 update sdpa --token-budget "$BUDGET" --ways prefix_shared --no-dropping
step scaling "$PYTHON" benchmarks/scaling.py "${SHAPE[@]}" --device "$DEVICE" --dtype "$DTYPE" --token-budget "$BUDGET" \
    --rounds 1 --axes rephrasings samples --json "$RESULTS/gpu-scaling.json"

echo "$FAILED steps failed; figures in $RESULTS."
exit "$FAILED"
