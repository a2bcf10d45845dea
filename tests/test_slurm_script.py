"""`scripts/slurm.sh`, with stand-ins for the commands of SLURM and for the training."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "slurm.sh"
STANDINS = {
    "scontrol": 'if [[ $1 == requeue ]]; then echo "$2" >> requeued; else echo node0; fi',
    "srun": 'shift; exec "$@"',
    "tagrpo-train": 'printf "%s\\n" "$@" > arguments; run=$(grep hydra.run.dir= arguments); run=${run#*=}\n'
    "mkdir -p $run; eval $LEAVES",
}


def submitted(folder: Path, leaves: str, *overrides: str) -> tuple[list[str], bool]:
    """What the training was told, and whether the job went back into the queue."""
    for name, code in STANDINS.items():
        (folder / name).write_text(f"#!/bin/bash\n{code}\n")
        (folder / name).chmod(0o755)
    variables = {"SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "node[0-1]", "SLURM_NNODES": "2"}
    variables |= {"SLURM_NTASKS_PER_NODE": "8", "PATH": f"{folder}:{os.environ['PATH']}", "LEAVES": leaves}
    subprocess.run(["bash", SCRIPT, *overrides], cwd=folder, env={**os.environ, **variables}, check=True)
    return (folder / "arguments").read_text().splitlines(), (folder / "requeued").exists()


@pytest.mark.parametrize(
    ("leaves", "again"),
    [
        ("touch $run/finished", False),  # test=false: there is no test.json
        ("touch $run/test.json", True),  # of a shorter run in the same directory
        ("true", True),
    ],
)
def test_the_job_goes_back_into_the_queue_until_the_run_has_finished(leaves, again, tmp_path):
    assert submitted(tmp_path, leaves)[1] is again


def test_the_run_has_the_directory_of_its_name_and_seed(tmp_path):
    arguments, _ = submitted(tmp_path, "touch $run/finished", "name=mine", "seed=4", "experiment=grpo")
    assert {"hydra.run.dir=runs/mine/seed4", "resume=auto", "experiment=grpo", "trainer.num_nodes=2"} <= set(arguments)
    arguments, _ = submitted(tmp_path, "touch $run/finished")
    assert {"name=tagrpo-77", "hydra.run.dir=runs/tagrpo-77/seed0"} <= set(arguments)
