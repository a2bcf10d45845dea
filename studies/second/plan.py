"""The plan as it was frozen before the runs: `python -m studies.second.plan` writes `plan.json`, from a clean commit.

It names the commit, the fingerprint of every file that says what is claimed, how it is judged and what is run, and the
power that the pilot's noise gives each claim. A test compares all of them with what lies here now, and with the commit.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tagrpo.files import write_json

from .claims import GROUPS
from .digest import FOLDER, read
from .run import SETTINGS
from .tables import Setting, settings_of
from .verdicts import power

HERE = Path(__file__).parent
PLAN = HERE / "plan.json"
SEEDS = {"factors": 10, "pass_at_k": 10, "prompt_augmentation": 10, "k_and_lr": 5, "rephrasings": 5}
"""Grid → how many seeds it has."""
STANDS_FOR = {
    "grpo": "grpo_long",
    "grpo_matched": "grpo_matched_few grpo_data exposure ta_grpo_corrected pass_at_1 pass_at_1_twice noisy_rewards "
    "entropy_bonus k1 n1 wrong_50 control",
    "ta_grpo": "gate ta_grpo_random bootstrap k8 k16_high n3 prompt_augmentation pass_at_k_then_1",
    "pass_at_k": "grpo_ds anchored pooled full k2 k16 without_format",
    "questions_before": "questions_after_grpo questions_after_ta_grpo",
}
"""Method of the pilot → methods whose noise is taken to be its own, so that no claim compares one with itself."""


def fingerprints() -> dict[str, str]:
    """File → SHA-256 of its content: claims, verdicts, controls, grids."""
    files = [HERE / f"{name}.py" for name in ("claims", "verdicts", "controls", "questions")]
    files += sorted((HERE / "configs").rglob("*.yaml"))
    return {str(file.relative_to(HERE)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def pilot_settings(entries: Sequence[Mapping[str, Any]]) -> dict[str, Setting]:
    """The settings of the pilot, with its methods under the names of those that they stand for too."""
    copies = [{**entry, "method": name} for entry in entries for name in STANDS_FOR.get(entry["method"], "").split()]
    return settings_of([*entries, *copies])


def powers(entries: Sequence[Mapping[str, Any]], rounds: int = 200) -> list[dict[str, Any]]:
    """For each claim and setting, how often an effect of twice the smallest, and none, have the verdict they should.

    The whole procedure is simulated, with the correction over all claims.
    """
    settings = pilot_settings(entries)
    tested = [
        (grid, claim, claim.tables({name: settings[name] for name in SETTINGS[grid] if name in settings}))
        for grid, claims in GROUPS.items()
        for claim in claims
    ]
    rates = power([(claim, tables) for _, claim, tables in tested], [SEEDS[grid] for grid, *_ in tested], rounds=rounds)
    return [
        {"grid": grid, "statement": claim.statement, "smallest": claim.smallest}
        | {verdict: {setting: round(x, 3) for setting, x in found.items()} for verdict, found in rate.items()}
        for (grid, claim, _), rate in zip(tested, rates, strict=True)
    ]


def main() -> None:
    """Write the plan.

    Raises:
        RuntimeError: something is not committed.
    """
    if subprocess.run(["git", "status", "--porcelain", "--", str(HERE)], capture_output=True, check=True).stdout:
        raise RuntimeError(f"Expected everything in {HERE} to be committed. Commit it, then freeze the plan.")
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, check=True, text=True).stdout.strip()
    entries = read(FOLDER / "pilot.jsonl.gz")
    found = powers(entries)
    write_json(PLAN, {"commit": commit, "files": fingerprints(), "power": found})
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
