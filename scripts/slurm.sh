#!/bin/bash
# sbatch scripts/slurm.sh experiment=ta_grpo scale=paper model=qwen3_1.7b data.train.path=… name=my_run
# One task per GPU; srun starts them, Lightning finds rank, world size and address in SLURM's variables.
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
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR

srun --kill-on-bad-exit=1 tagrpo-train "$@" name="$name" hydra.run.dir="$run" resume=auto \
    trainer.num_nodes="$SLURM_NNODES" trainer.devices="$SLURM_NTASKS_PER_NODE"

# A run that has ended by itself leaves `finished`, with or without a test; without it the job goes back into the queue.
[[ -e $run/finished ]] || scontrol requeue "$SLURM_JOB_ID"
