"""`tagrpo-report RUN…`: write all records of runs as one HTML file that opens without server or network."""

import argparse
import sys
from pathlib import Path

from ..cli.console import entry_point


@entry_point()
def main() -> None:
    """Run `tagrpo-report`."""
    parser = argparse.ArgumentParser(prog="tagrpo-report", description=__doc__)
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="a run directory, or a folder with several"
    )
    parser.add_argument(
        "-o", "--output", type=Path, help="the file; default: report.html in the first directory"
    )
    said = (
        "size of the file, unless its numbers alone need more; further responses have no text (default: 25)"
    )
    parser.add_argument("--megabytes", type=float, default=25, help=said)
    given = parser.parse_args()
    try:
        for at in given.runs:
            if not at.is_dir():
                raise FileNotFoundError(
                    f"Expected a run directory, or a folder with some, at {at}, but there is none."
                )
        if given.output is not None and given.output.suffix.lower() not in (".html", ".htm"):
            raise ValueError(
                f"Expected --output to end in .html, since the report is a page, but got {given.output}. It "
                "would replace a file of another kind."
            )
        from .assemble import explore

        output = given.output or given.runs[0] / "report.html"
        print(explore(*given.runs, output=output, megabytes=given.megabytes))
    except (FileNotFoundError, ValueError, ImportError) as error:
        sys.exit(f"tagrpo-report: {error}")
