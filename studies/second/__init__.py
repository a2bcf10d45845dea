"""The second study: the papers' claims on three tasks, with verdicts that can go either way."""

import importlib
import sys

# Frozen settings and the digest's commands name the sources of tasks where they were when the runs were made.
for _task in ("arithmetic", "countdown", "shortest_path"):
    sys.modules[f"tagrpo.datamodules.sources.{_task}"] = importlib.import_module(f"tagrpo.lab.tasks.{_task}")
