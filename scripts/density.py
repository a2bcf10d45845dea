"""Print how densely the code of `src` is written, by ring.

python scripts/density.py

The table has the numbers, per 1,000 statements, of comprehensions, conditional expressions (`a if b else c`),
assignment expressions (`:=`) and parallel assignments (`a, b = x, y`, a tuple on both sides). A comprehension within
another counts too. The rings are those of `scripts/rooms.py`; `tests/test_density.py` checks the limits.
"""

import ast
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import rooms

MAX_CORE = 100
"""Dense expressions per 1,000 statements of the core, at most."""
COLUMNS = 110
"""Columns of a line that is not too long."""
MAX_LONG_LINES = 400
"""Lines of `src` over `COLUMNS`, at most."""
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass
class Density:
    """Numbers of statements and of dense expressions in some files."""

    statements: int = 0
    comprehensions: int = 0
    conditionals: int = 0
    walruses: int = 0
    parallel: int = 0

    @property
    def per_thousand(self) -> float:
        """Dense expressions of all kinds per 1,000 statements; 0 without statements."""
        dense = self.comprehensions + self.conditionals + self.walruses + self.parallel
        return 1000 * dense / max(self.statements, 1)

    def count(self, source: str) -> None:
        """Add the statements and expressions of a file."""
        for node in ast.walk(ast.parse(source)):
            self.statements += isinstance(node, ast.stmt)
            self.comprehensions += isinstance(node, COMPREHENSIONS)
            self.conditionals += isinstance(node, ast.IfExp)
            self.walruses += isinstance(node, ast.NamedExpr)
            self.parallel += is_parallel(node)


def is_parallel(node: ast.AST) -> bool:
    """Check if a statement assigns a tuple to a tuple of targets, such as `a, b = x, y`."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
        return False
    return any(isinstance(target, ast.Tuple | ast.List) for target in node.targets)


def densities() -> dict[str, Density]:
    """Return ring → density of its files."""
    found = {ring: Density() for ring in rooms.RINGS}
    for path in sorted(rooms.SRC.rglob("*.py")):
        found[rooms.ring_of(rooms.room_of(path))].count(path.read_text(encoding="utf-8"))
    return found


def long_lines(paths: Iterable[Path]) -> list[str]:
    """Return `file:line` of each line over `COLUMNS`."""
    found = []
    for path in paths:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if len(line) > COLUMNS:
                found.append(f"{path}:{number}")
    return found


def main() -> None:
    """Print a table of the rings, and the number of long lines."""
    kinds = ["comprehensions", "conditionals", "walruses", "parallel"]
    print(f"{'per 1,000':10} statements {' '.join(kinds)} together")
    for ring, density in densities().items():
        cells = []
        for kind in kinds:
            value = 1000 * getattr(density, kind) / max(density.statements, 1)
            cells.append(f"{value:{len(kind)}.1f}")
        print(f"{ring:10} {density.statements:10,} {' '.join(cells)} {density.per_thousand:8.1f}")
    print(f"{len(long_lines(sorted(rooms.SRC.rglob('*.py'))))} lines over {COLUMNS} columns")


if __name__ == "__main__":
    main()
