#!/usr/bin/env bash
# The GPU path on one GPU, from tests to figures; neither weights nor a network are needed.
#
#   bash benchmarks/gpu.sh                        # every step: correctness, speed, peers; an hour at most
#   bash benchmarks/gpu.sh attention head train   # these steps
#   bash benchmarks/gpu.sh list                   # their names
#   SIZE=tiny bash benchmarks/gpu.sh              # the same steps on a small model, also without a GPU
#
# PYTHON names the interpreter (.venv/bin/python by default) of an environment with this package, its extra `bench`
# and a CUDA build of torch: `make gpu` makes one. On a machine without a network that has torch, triton, transformers,
# lightning, accelerate, peft, pytest, hypothesis, httpx, pandas, pyarrow, rich and scipy, install the small wheels of
# requirements/gpu_offline.txt and this package, as that file says. Nothing here needs vLLM.
#
# A step may take STEP_SECONDS (540 by default), all together TOTAL (3,600 by default). What a step writes is there when it
# ends, gpu-<step>.log and .json in RESULTS, and a line in gpu-steps.tsv; after each step gpu.tar.gz holds all of them. A
# step that fails or takes too long is reported and the next one goes on; the exit status is the number of failed steps.
# benchmarks/tables.py writes the figures into benchmarks/RESULTS.md. On a machine that one has for some minutes only, run
# benchmarks/first_gpu_run.sh instead.
set -uo pipefail
cd "$(dirname "$0")/.."

PYTHON="${PYTHON:-.venv/bin/python}"
RESULTS="${RESULTS:-benchmarks/results}"
RUNS="${RUNS:-runs/gpu}"
SIZE="${SIZE:-paper}"
STEP_SECONDS="${STEP_SECONDS:-540}"
TOTAL="${TOTAL:-3600}"
ALL="attention head policy train resume lora offload update compiled dropping 4b sdpa peers"
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false PYTORCH_CUDA_ALLOC_CONF="${PYTORCH_CUDA_ALLOC_CONF:-expandable_segments:True}"
export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES:-0}"  # one GPU: TRL would spread over all
export TORCH_COMPILE_DISABLE=0                            # the tests switch compilation off where nothing is said
export TORCH_LOGS="${TORCH_LOGS:-recompiles,graph_breaks}"

if [ "${1:-}" = list ]; then
    tr ' ' '\n' <<<"$ALL"
    exit 0
fi
for name in "$@"; do
    if [[ " $ALL " != *" $name "* ]]; then
        echo "Expected steps among: $ALL; but got $name." >&2
        exit 64
    fi
done
WANTED="${*:-$ALL}"
mkdir -p "$RESULTS"
source benchmarks/steps.sh

"$PYTHON" -c 'import sys, torch; sys.exit(0 if torch.cuda.is_available() else 3)'
FOUND=$?
if [ "$FOUND" != 0 ] && [ "$FOUND" != 3 ]; then
    echo "Expected PYTHON to be an interpreter that has torch, but got $PYTHON. Set it, or make one with: make gpu" >&2
    exit 64
elif [ "$FOUND" = 0 ]; then
    DEVICE=cuda DTYPE=bfloat16 TRAINER=gpu
    nvidia-smi --query-gpu=name,memory.total,clocks.max.sm,driver_version --format=csv | tee "$RESULTS/gpu.txt"
else
    DEVICE=cpu DTYPE=float32 TRAINER=cpu
    export TORCH_COMPILE_DISABLE=1
    if [ "$SIZE" != tiny ]; then
        echo "No CUDA device: SIZE=tiny runs the same steps on a CPU." >&2
        exit 64
    fi
    echo "No CUDA device: on the CPU, to see that every step runs. The figures mean nothing for a GPU."
fi

case "$SIZE" in
paper) # Qwen3, prompts of 512, responses to 3,072, 32 a question; the mean is that of math answers
    SHAPE=("${PAPER_SHAPE[@]}")
    MODEL=qwen3_1.7b LARGER=qwen3_4b BUDGET=32768 ROUNDS=5
    ;;
tiny)
    SHAPE=("${TINY_SHAPE[@]}")
    MODEL=tiny LARGER=tiny BUDGET=512 ROUNDS=1
    ;;
*)
    echo "Expected SIZE to be paper or tiny, but got $SIZE." >&2
    exit 64
    ;;
esac

step() { # step <name> <command…>
    [[ " $WANTED " == *" $1 "* ]] || return 0
    run_step "$1" "$STEP_SECONDS" "${@:2}"
    pack_results
}
update() { # update <name> <options…>
    local name="$1"
    shift
    step "$name" "$PYTHON" benchmarks/update_step.py "${SHAPE[@]}" --model "$MODEL" --device "$DEVICE" --dtype "$DTYPE" \
        --rounds "$ROUNDS" --json "$RESULTS/gpu-$name.json" "$@"
}
train() { # train <name> <run directory> <overrides…>
    local name="$1" run="$RUNS/$2"
    shift 2
    step "$name" "$PYTHON" -m tagrpo.cli.train "${TRAINING[@]}" trainer="$TRAINER" export=true \
        hydra.run.dir="$run" "$@"
}

# Correctness first: each kernel, the compiled policy, then training as users do it. The options that pyproject.toml gives
# pytest name a plugin that a bare machine need not have.
step attention "$PYTHON" -m pytest -q -o addopts= tests/packing/test_attention.py
step head "$PYTHON" -m pytest -q -o addopts= tests/packing/test_head.py tests/packing/test_head_costs.py
step policy "$PYTHON" -m pytest -q -o addopts= tests/packing/test_policy.py
[[ " $WANTED " == *" train "* ]] && rm -rf "$RUNS/whole"
train train whole iterations=4
train resume whole iterations=8 resume=auto
train lora lora iterations=4 lora=default
train offload offload iterations=4 strategy.cpu_offload=true
# Then speed: layers one operation at a time and compiled, the larger model.
update update --token-budget "$BUDGET" --ways padding_free prefix_shared
update compiled --token-budget "$BUDGET" --ways padding_free prefix_shared --compile
update dropping --token-budget "$BUDGET" --ways prefix_shared --dropping
update 4b --model "$LARGER" --token-budget "$BUDGET" --ways prefix_shared --compile
# The way back where FlexAttention fails: SDPA in blocks.
TORCH_COMPILE_DISABLE=1 update sdpa --token-budget "$BUDGET" --ways prefix_shared
# Peers last: TRL and the plain padded forward, with as many padded tokens per micro-batch as fit beside their logits.
update peers --token-budget $((BUDGET / 2)) --ways trl padded prefix_shared

echo "$FAILED steps failed; figures in $RESULTS, all of them in $RESULTS/gpu.tar.gz."
exit "$FAILED"
