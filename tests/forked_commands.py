"""Runs console scripts with wrong arguments, each in a fork of one process, and says what became of it, as JSON.

`python forked_commands.py` reads a case a line. Nothing heavy has been imported, so that what a command has imported by
its end can be seen.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import traceback
from pathlib import Path

from tagrpo.cli import diff, export, train
from tagrpo.planning import plan
from tagrpo.rephrasing import command as rephrase
from tagrpo.report import command as report
from tagrpo.study import compare, evaluate
from tagrpo.verify import command as verify

COMMANDS = {
    "tagrpo-train": train.main,
    "tagrpo-eval": evaluate.main,
    "tagrpo-compare": compare.main,
    "tagrpo-rephrase": rephrase.main,
    "tagrpo-plan": plan.main,
    "tagrpo-verify": verify.main,
    "tagrpo-export": export.main,
    "tagrpo-diff": diff.main,
    "tagrpo-report": report.main,
}
HEAVY = (
    "torch", "transformers", "lightning", "vllm", "pandas", "pyarrow", "datasets", "scipy", "matplotlib", "openai",
    "sentence_transformers", "tensorboard", "wandb", "torchmetrics", "peft",
)  # fmt: skip
LOADED = "A MODEL WAS LOADED"


def refuse_models() -> None:
    """Import what commands need, and have models say so when they are loaded."""
    import lightning.pytorch  # noqa: F401
    import transformers

    import tagrpo.callbacks
    import tagrpo.modules.lightning.policy_module
    import tagrpo.modules.lightning.strategy  # noqa: F401

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError(LOADED)

    transformers.AutoModelForCausalLM.from_pretrained = refuse
    transformers.AutoModelForCausalLM.from_config = refuse


def child(command: str, arguments: list[str], folder: str, modules: Path) -> None:
    """Be the command; never return."""
    signal.alarm(300)  # one that was not refused would go on and train
    os.chdir(folder or ".")
    sys.argv = [command, *arguments]
    code = 0
    try:
        COMMANDS[command]()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 70
    modules.write_text(" ".join(sorted({name.split(".")[0] for name in sys.modules} & set(HEAVY))))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def outcome(command: str, arguments: list[str], folder: str) -> dict[str, object]:
    """Exit code, output and heavy modules of a command."""
    with tempfile.TemporaryDirectory() as place:
        output, modules = Path(place) / "output", Path(place) / "modules"
        sys.stdout.flush()
        pid = os.fork()
        if not pid:
            file = os.open(output, os.O_WRONLY | os.O_CREAT)
            os.dup2(file, 1)
            os.dup2(file, 2)
            child(command, arguments, folder, modules)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        heavy = modules.read_text().split() if modules.exists() else []
        return {"code": code, "output": output.read_text(), "heavy": heavy}


if __name__ == "__main__":
    import composition  # of this folder

    composition.parse()
    for line in sys.stdin:
        print(json.dumps(outcome(*json.loads(line))), flush=True)
