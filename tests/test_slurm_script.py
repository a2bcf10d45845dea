"""`scripts/slurm.sh`, with stand-ins for the commands of SLURM and for the training."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tagrpo.rollouts.servers.server_calls import listed
from tests.helpers import wait_until

pytestmark = pytest.mark.pages

SCRIPT = Path(__file__).parents[1] / "scripts" / "slurm.sh"
STANDINS = {
    "scontrol": 'if [[ $1 == requeue ]]; then echo "$2" >> requeued; else printf "node%s\\n" 0 1 2; fi',
    "srun": """
while [[ $1 == --* ]]; do options+=("${1#--}"); shift; done
echo "${SRUN_CPUS_PER_TASK-}" >> cores
echo "${options[@]} $1" >> steps
[[ $1 == bash ]] || exec "$@"
for ((i = 0; i < 4; i++)); do SLURM_LOCALID=$i "$@" & done
trap 'kill $(jobs -p)' TERM
wait""",
    "python": 'echo "MODE=1 vllm $*"',
    # A server that ends at once, if SIGUSR1 has not ended it before.
    "vllm": 'kill -USR1 $PPID $$; echo "$CUDA_VISIBLE_DEVICES $MODE $*" >> served',
    "tagrpo-train": """
printf "%s\\n" "$@" > arguments; run=$(grep hydra.run.dir= arguments); run=${run#*=}; echo "$MASTER_ADDR" > address
if [[ $SERVER_NODES ]]; then until [[ $(cat served | wc -l) -ge 8 ]]; do sleep 0.1; done; fi
mkdir -p "$run"
eval $LEAVES""",
}


def alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def submitted(folder: Path, leaves: str, *overrides: str, **settings: str) -> tuple[list[str], bool]:
    """What the training was told, and whether the job went back into the queue."""
    for name, code in STANDINS.items():
        (folder / name).write_text(f"#!/bin/bash\n{code}\n")
        (folder / name).chmod(0o755)
    variables = {
        "SLURM_JOB_ID": "77",
        "SLURM_JOB_NODELIST": "node[0-2]",
        "SLURM_NNODES": "3",
        "LEAVES": leaves,
    }
    variables |= {"SLURM_NTASKS_PER_NODE": "8", "PATH": f"{folder}:{os.environ['PATH']}", **settings}
    job = subprocess.Popen(
        ["bash", SCRIPT, *overrides], cwd=folder, env={**os.environ, **variables}, start_new_session=True
    )
    assert job.wait(600) == 0
    wait_until(lambda: not alive(job.pid))  # nothing outlives the job
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
    assert {"hydra.run.dir=runs/mine/seed4", "resume=auto", "experiment=grpo", "trainer.num_nodes=3"} <= set(
        arguments
    )
    arguments, _ = submitted(tmp_path, "touch $run/finished")
    assert {"name=tagrpo-77", "hydra.run.dir=runs/tagrpo-77/seed0"} <= set(arguments)


@pytest.mark.parametrize(("given", "cores"), [({}, "12"), ({"SLURM_CPUS_PER_TASK": "7"}, "7")])
def test_every_rank_gets_the_cores_that_the_job_asked_for(given, cores, tmp_path):
    submitted(tmp_path, "touch $run/finished", **given)
    assert (tmp_path / "cores").read_text().split() == [cores]


def test_the_last_nodes_serve_and_the_first_ones_train_from_the_servers_in_the_file(tmp_path):
    settings = {"SERVER_NODES": "1", "SERVED": "Qwen/Qwen3-1.7B", "GPUS_PER_SERVER": "2"}
    arguments, again = submitted(tmp_path, "touch $run/finished", "experiment=grpo", **settings)
    file = tmp_path / "runs" / "servers-77.txt"
    assert not again
    assert (tmp_path / "address").read_text() == "node0\n"
    assert {"trainer.num_nodes=2", "trainer.devices=8", "experiment=grpo"} <= set(arguments)
    assert {"rollout=vllm_server", f"rollout.engine.url=file:{file}"} <= set(arguments)
    assert listed(f"file:{file}") == [f"http://node2:{port}" for port in (8000, 8001, 8002, 8003)]
    steps = {line.rpartition(" ")[2]: line for line in (tmp_path / "steps").read_text().splitlines()}
    assert "nodelist=node0,node1 nodes=2 ntasks-per-node=8 ntasks=16" in steps["tagrpo-train"]
    assert "nodelist=node2 nodes=1 ntasks-per-node=4 ntasks=4" in steps["bash"]
    served = (tmp_path / "served").read_text().splitlines()
    command = "1 -m tagrpo.rollouts.transfer.flags Qwen/Qwen3-1.7B --host 0.0.0.0 --port {} --tensor-parallel-size 2"
    gpus = {"0,1": 8000, "2,3": 8001, "4,5": 8002, "6,7": 8003}
    assert set(served) == {f"{pair} {command.format(port)}" for pair, port in gpus.items()}
    assert len(served) > 4, "a server that has ended is started again"
