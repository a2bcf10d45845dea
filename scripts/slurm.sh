#!/bin/bash
# sbatch scripts/slurm.sh experiment=ta_grpo scale=paper model=qwen3_1.7b data.train.path=… name=my_run
# One task per GPU; srun starts them, Lightning finds rank, world size and address in SLURM's variables.
#
# With vLLM servers of the model SERVED on the last SERVER_NODES nodes, each on GPUS_PER_SERVER (1) of their GPUs:
# SERVER_NODES=1 SERVED=Qwen/Qwen3-1.7B sbatch --nodes=3 scripts/slurm.sh … rollout.ahead=1
#SBATCH --job-name=tagrpo
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=12
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
# Ten minutes before the time is up, and when the job is preempted, every task gets SIGUSR1: it finishes its iteration,
# writes a checkpoint and exits with 0. Give it more than an iteration takes.
#SBATCH --signal=USR1@600
set -euo pipefail

name=tagrpo-$SLURM_JOB_ID seed=0
for override in "$@"; do
    [[ $override == name=* ]] && name=${override#name=}
    [[ $override == seed=* ]] && seed=${override#seed=}
done
run=runs/$name/seed$seed
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
export MASTER_ADDR=${nodes[0]}
# Since SLURM 22.05 srun does not take --cpus-per-task from sbatch: without this, a rank may get one core.
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-12}
servers=${SERVER_NODES:-0} tasks=$SLURM_NTASKS_PER_NODE
trainers=$((SLURM_NNODES - servers))

on() { # FIRST COUNT TASKS: srun's options for TASKS tasks on each of COUNT nodes
    local names
    names=$(IFS=, && echo "${nodes[*]:$1:$2}")
    where=(--kill-on-bad-exit=1 --nodelist="$names" --nodes="$2" --ntasks-per-node="$3" --ntasks=$(($2 * $3)))
}

if ((servers)); then
    export SERVED GPUS_PER_SERVER=${GPUS_PER_SERVER:-1}
    per_node=$((tasks / GPUS_PER_SERVER)) list=$PWD/runs/servers-$SLURM_JOB_ID.txt
    mkdir -p runs
    for node in "${nodes[@]:trainers}"; do
        for ((i = 0; i < per_node; i++)); do echo "http://$node:$((8000 + i))"; done
    done >"$list"
    set -- "$@" rollout=vllm_server rollout.engine.url="file:$list"
    on "$trainers" "$servers" "$per_node"
    # A server that dies is started again. SIGUSR1 is meant for the trainer, which still needs it for an iteration.
    # The token is TAGRPO_TOKEN or in the home directory, which all nodes share.
    # shellcheck disable=SC2016
    srun "${where[@]}" bash -c 'trap "" USR1
        first=$((SLURM_LOCALID * GPUS_PER_SERVER))
        export CUDA_VISIBLE_DEVICES=$(seq -s, $first $((first + GPUS_PER_SERVER - 1)))
        while sleep 1; do
            eval "$(python -m tagrpo.rollouts.transfer.flags "$SERVED" --host 0.0.0.0 --port $((8000 + SLURM_LOCALID)) \
                --tensor-parallel-size "$GPUS_PER_SERVER")"
        done' </dev/null &
    # shellcheck disable=SC2064
    trap "kill $! || true" EXIT
fi

on 0 "$trainers" "$tasks"
srun "${where[@]}" tagrpo-train "$@" name="$name" hydra.run.dir="$run" resume=auto \
    trainer.num_nodes="$trainers" trainer.devices="$tasks"

# A run that has ended by itself leaves `finished`, with or without a test; without it the job goes back into the queue.
[[ -e $run/finished ]] || scontrol requeue "$SLURM_JOB_ID"
