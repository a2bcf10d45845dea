"""How long the verifiers of tasks with listed answers take with responses that mean harm.

    python tests/lab/tasks/hostile.py

Prints the slowest of 20 readings of each response, in milliseconds of processor time.
"""

from __future__ import annotations

import time

from tagrpo.lab.tasks.countdown import CountdownReward
from tagrpo.lab.tasks.shortest_path import ShortestPathReward

COUNTDOWN = {
    "python": '__import__("os").system("touch hacked")',
    "python of the right length": "eval('1+2')  ",
    "deep nesting": "( " * 200_000 + "9" + " )" * 200_000,
    "nesting of the right length": "( ( ( ( ( ( (",
    "huge number": "9" * 1_000_000,
    "huge power": "9 ** 9 ** 9 ** 9",
    "unicode digits": "( ٩ - ٣ ) * ٤",
    "wide digits": "( ９ - ３ ) * ４",
    "superscript": "( 9 - 3 ) * ⁴",
    "surrogate": "( 9 - 3 ) * \ud800",
    "nul": "( 9 - 3 ) * \x00",
    "a megabyte of spaces": " " * 1_000_000,
    "a megabyte of text": "( 9 - 3 ) * 4 " * 80_000,
    "format": "{0.__class__}",
    "underscore": "( 9 - 3 ) * _",
}
SHORTEST_PATH = {
    "python": '__import__("os").system("touch hacked")',
    "a megabyte of steps": "right down " * 100_000,
    "a megabyte without spaces": "right" * 200_000,
    "a megabyte of spaces": " " * 1_000_000,
    "unicode": "rіght down",  # a Cyrillic і
    "wide space": "right\u2003down",
    "huge number": "9" * 1_000_000,
    "deep nesting": "(" * 1_000_000,
    "surrogate": "right \ud800",
    "two words": "__class__ __init__",
}
CASES = {
    "countdown": (CountdownReward(), "( 9 - 3 ) * 4", COUNTDOWN),
    "shortest_path": (ShortestPathReward(), ("right down", "down right"), SHORTEST_PATH),
}


def main() -> None:
    for task, (reward, reference, hostile) in CASES.items():
        for name, response in hostile.items():
            readings = []
            for _ in range(20):
                start = time.process_time()
                assert not reward(response, reference).correct
                readings.append(1000 * (time.process_time() - start))
            print(f"{task:14s} {name:28s} {max(readings):.3f} ms")


if __name__ == "__main__":
    main()
