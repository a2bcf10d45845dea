#!/usr/bin/env python3
"""The commands of SLURM as far as submitit uses them, with this machine as the cluster: called by the name of each.

Jobs are really executed: `sbatch` starts the submission file in the background, and `srun` the task in it, in a process
group of its own, which is what gets the signals. State lies in the folder `jobs` beside the commands.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

JOBS = Path(__file__).absolute().parent / "jobs"


def read(job, name, default=""):
    path = JOBS / job / name
    return path.read_text() if path.exists() else default


def write(job, name, text):
    partial = JOBS / job / f".{name}.{os.getpid()}"
    partial.write_text(str(text))
    partial.replace(JOBS / job / name)


def kill(job, number):
    with suppress(ProcessLookupError):
        if group := read(job, "group"):
            os.killpg(int(group), number)


def sbatch(script):
    if (JOBS / "refused").exists() and (JOBS / "refused").read_text() in Path(script).read_text():
        sys.exit("sbatch: error: QOSMaxSubmitJobPerUserLimit")
    job = str(time.time_ns() // 1000 % 10**10)
    (JOBS / job).mkdir(parents=True)
    write(job, "script", Path(script).read_text())
    write(job, "state", "PENDING")
    null = subprocess.DEVNULL
    command = [sys.executable, __file__, "node", job]
    subprocess.Popen(command, start_new_session=True, stdin=null, stdout=null, stderr=null)
    print(f"Submitted batch job {job}")


def node(job):
    """What runs a job: again each time that it was put back into the queue meanwhile."""
    for restarts in range(10):
        while (JOBS / "closed").exists():
            time.sleep(0.05)
        if read(job, "state") == "CANCELLED":
            return
        write(job, "state", "RUNNING")
        environment = {
            **os.environ,
            "SLURM_JOB_ID": job,
            "SLURM_NTASKS": "1",
            "SLURM_RESTART_COUNT": str(restarts),
        }
        with (JOBS / job / "batch.out").open("ab") as output:
            code = subprocess.call(
                ["bash", JOBS / job / "script"], env=environment, stdout=output, stderr=output
            )
        if read(job, "state") != "REQUEUED":
            break
    if read(job, "state") == "RUNNING":
        write(job, "state", "FAILED" if code else "COMPLETED")


def srun(*arguments):
    job, rest = os.environ["SLURM_JOB_ID"], [a for a in arguments if a != "--unbuffered"]
    places = {}
    while rest[0] in ("--output", "--error"):
        places[rest[0]] = rest[1].replace("%j", job).replace("%t", "0")
        rest = rest[2:]
    environment = {**os.environ, "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_JOB_NUM_NODES": "1"}
    with open(places["--output"], "ab") as out, open(places["--error"], "ab") as error:
        process = subprocess.Popen(rest, stdout=out, stderr=error, env=environment, start_new_session=True)
    write(job, "group", process.pid)
    sys.exit(process.wait() and 1)


def sacct(*arguments):
    print("JobID|State|NodeList")
    for job in arguments[4::2]:
        if read(job, "state"):
            print(f"{job}|{read(job, 'state')}|node1")


def scancel(job):
    write(job, "state", "CANCELLED")
    kill(job, signal.SIGTERM)
    time.sleep(0.3)
    kill(job, signal.SIGKILL)


def scontrol(command, job):
    assert command == "requeue", command
    write(job, "state", "REQUEUED")


if __name__ == "__main__":
    name, *arguments = sys.argv[1:] if sys.argv[1] == "node" else [Path(sys.argv[0]).name, *sys.argv[1:]]
    {f.__name__: f for f in (sbatch, node, srun, sacct, scancel, scontrol)}[name](*arguments)
