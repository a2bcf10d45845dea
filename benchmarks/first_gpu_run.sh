#!/usr/bin/env bash
# The first run on a GPU that one gets for some minutes: everything within TOTAL seconds (525), the most telling first.
#
#   make gpu-wheels                                # beforehand, where there is a package index: fills .whl
#   OUT=out bash benchmarks/first_gpu_run.sh       # on the machine with the GPU; copy the working tree and .whl there
#   bash benchmarks/first_gpu_run.sh short train   # these steps
#   SMALL=1 SKIP_INSTALL=1 PYTHON=.venv/bin/python bash benchmarks/first_gpu_run.sh    # a rehearsal on a CPU
#
# The machine needs Python 3.12 with torch (a CUDA build), triton, transformers, accelerate, httpx, lightning, peft, pandas,
# pyarrow, rich, scipy, pytest and hypothesis. It needs no package index, no weights and no vLLM: the starter policy trains,
# and transformers samples.
#
# Each step has a limit and writes its results at once; the next one starts whatever happened. The last thing printed is a
# page in Markdown with the machine, the steps and their figures, which is also in OUT/gpu-page.md after each step.
set -uo pipefail
cd "$(dirname "$0")/.."

TOTAL=${TOTAL:-525}
RESULTS=${OUT:-benchmarks/results/first}
WHEELS=${WHEELS:-.whl}
RUN=${RUN:-/tmp/first_gpu_run}
SITE=${SITE:-/tmp/first_gpu_site}
PYTHON=${PYTHON:-python3}
ALL="machine short same32 same16 train padded compiled tests resume 4b offload lora"
WANTED=${*:-$ALL}
mkdir -p "$RESULTS"
RESULTS=$(cd "$RESULTS" && pwd)
rm -rf "$RUN"
rm -f "$RESULTS"/gpu*
source benchmarks/steps.sh

if [ -n "${SMALL:-}" ]; then
    DEVICE=cpu DTYPE=float32 TRAINER=cpu CHECK=tiny LARGER=tiny
    SHAPE=("${TINY_SHAPE[@]}" --model tiny)
    export TORCH_COMPILE_DISABLE=1
else
    DEVICE=cuda DTYPE=bfloat16 TRAINER=gpu CHECK=20m LARGER=qwen3_4b
    SHAPE=("${PAPER_SHAPE[@]}" --model qwen3_1.7b)
    export TORCH_COMPILE_DISABLE=0
fi
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1 TORCH_LOGS=recompiles,graph_breaks
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0}
export NCCL_SOCKET_IFNAME=lo GLOO_SOCKET_IFNAME=lo MASTER_ADDR=127.0.0.1

step() { # step NAME LIMIT COMMAND…
    [[ " $WANTED " == *" $1 "* ]] || return 0
    run_step "$@"
    "$PYTHON" benchmarks/first_gpu_page.py "$RESULTS" >"$RESULTS/gpu-page.new" 2>/dev/null &&
        mv "$RESULTS/gpu-page.new" "$RESULTS/gpu-page.md"
    pack_results
}
update() { # update NAME LIMIT DTYPE OPTIONS…
    step "$1" "$2" "$PYTHON" benchmarks/update_step.py --device "$DEVICE" --dtype "$3" \
        --json "$RESULTS/gpu-$1.json" "${@:4}"
}
train() { # train NAME LIMIT DIRECTORY OVERRIDES…
    step "$1" "$2" "$PYTHON" -m tagrpo.cli.train "${TRAINING[@]}" trainer="$TRAINER" hydra.run.dir="$RUN/$3" "${@:4}"
    cp "$RUN/$3/metrics.csv" "$RESULTS/gpu-$1.csv" 2>/dev/null
}

if [ -z "${SKIP_INSTALL:-}" ]; then
    run_step install 60 "$PYTHON" -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --upgrade \
        --target "$SITE" "$WHEELS"/*.whl
    pack_results
    export PYTHONPATH=$SITE
fi
step machine 25 "$PYTHON" benchmarks/first_gpu_probe.py machine "$RESULTS/gpu-machine.json"
# Attention at lengths and ratios of heads that decide which kernel is taken; products of the head in float32.
TORCH_COMPILE_DISABLE=0 step short 90 "$PYTHON" benchmarks/first_gpu_probe.py kernels "$RESULTS/gpu-short.json"
# The gradient of a packed update is that of a padded one.
update same32 40 float32 --model "$CHECK" --rounds 1 --ways padded padding_free prefix_shared
update same16 60 "$DTYPE" --model "$CHECK" --rounds 1 --ways padded padding_free prefix_shared
train train 110 whole iterations=3 export=true
update padded 70 "$DTYPE" "${SHAPE[@]}" --token-budget 16384 --rounds 2 --ways padded prefix_shared
update compiled 110 "$DTYPE" "${SHAPE[@]}" --token-budget 32768 --rounds 3 --ways prefix_shared --compile
step tests 150 "$PYTHON" -m pytest -q -o addopts= -p no:cacheprovider -m gpu \
    tests/packing/test_attention.py tests/packing/test_head_costs.py tests/packing/test_policy.py
train resume 60 whole iterations=5 resume=auto
update 4b 120 "$DTYPE" "${SHAPE[@]}" --model "$LARGER" --token-budget 32768 --rounds 2 --ways prefix_shared --compile
train offload 60 offload iterations=2 strategy.cpu_offload=true
train lora 60 lora iterations=2 lora=default
# Weights by NCCL, where there is a second card and vLLM: SERVER_CARD=1 TOTAL=900 bash benchmarks/first_gpu_run.sh server
if [ -n "${SERVER_CARD:-}" ]; then
    command=$("$PYTHON" -m tagrpo.rollouts.transfer.flags src/starter --dtype "$DTYPE" --max-model-len 256 \
        --kv-cache-memory-bytes 67108864)
    PATH=$(dirname "$(command -v "$PYTHON")"):$PATH CUDA_VISIBLE_DEVICES=$SERVER_CARD \
        setsid bash -c "$command" >"$RESULTS/gpu-vllm.log" 2>&1 &
    WANTED="$WANTED server"
    train server 300 server iterations=3 rollout=vllm_server rollout.engine.dtype="$DTYPE" rollout.engine.check_weights=true
    kill -- -$!
fi

echo
cat "$RESULTS/gpu-page.md" 2>/dev/null || echo "No page could be written: look at $RESULTS/gpu-steps.tsv."
exit "$FAILED"
