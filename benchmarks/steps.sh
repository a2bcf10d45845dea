# Sourced by gpu.sh and first_gpu_run.sh: steps within limits, whose results survive whatever happens next.
#
#   run_step NAME LIMIT COMMAND…    run COMMAND for at most LIMIT seconds, and for at most what is left of TOTAL
#   pack_results                    pack all results into gpu.tar.gz
#
# RESULTS is the folder of results, TOTAL the seconds for all steps together; STEP_SECONDS lowers every LIMIT. A step
# writes gpu-NAME.log and a line in gpu-steps.tsv (name, outcome, seconds). A failed step does not stop the next.
PAPER_SHAPE=(--vocabulary 151936 --prompt 512 --mean 1000 --max 3072 --responses 32 --checkpointing)
TINY_SHAPE=(--vocabulary 512 --prompt 24 --mean 20 --max 60 --responses 4)
# TA-GRPO on the embedded task, under FSDP2 on one device.
TRAINING=(
    experiment=ta_grpo strategy=fsdp2 trainer.devices=1 logger=csv test=false trainer.limit_val_batches=0
    data.train.size=24 data.batch_size=4 data.samples_per_prompt=4
    "callbacks=[throughput,zero_gradient,checkpoint]" callbacks.checkpoint.every=2
)
STARTED=$SECONDS
FAILED=0
LEAST=15 # seconds below which no step is begun

pack_results() {
    (cd "$RESULTS" && tar -czf .gpu.tar.gz --exclude=gpu.tar.gz gpu* 2>/dev/null && mv .gpu.tar.gz gpu.tar.gz)
}

run_step() {
    local name=$1 limit=$2
    local left=$((TOTAL - SECONDS + STARTED)) began=$SECONDS outcome=done
    shift 2
    echo "== $name"
    if ((left < LEAST)); then
        outcome="no time left"
        : >"$RESULTS/gpu-$name.log"
    else
        ((limit > left)) && limit=$left
        ((limit > ${STEP_SECONDS:-$limit})) && limit=$STEP_SECONDS
        timeout --kill-after=5 "$limit" "$@" >"$RESULTS/gpu-$name.log" 2>&1
        case $? in
        0) ;;
        124 | 137) outcome="too long" ;;
        *) outcome=FAILED ;;
        esac
    fi
    echo "   $outcome after $((SECONDS - began)) s"
    printf '%s\t%s\t%s\n' "$name" "$outcome" "$((SECONDS - began))" >>"$RESULTS/gpu-steps.tsv"
    if [ "$outcome" != done ]; then
        FAILED=$((FAILED + 1))
        tail -n 5 "$RESULTS/gpu-$name.log" | cut -c 1-220 | sed 's/^/   /'
    fi
}
