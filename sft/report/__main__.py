"""``python -m sft.report DIR [DIR...]``: a report over any runs.

Exit codes: 0 done; 2 there is no run, or a directory cannot be used.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from sft.errors import ConfigError
from sft.report import write_report


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m sft.report",
        description="Put all runs below some directories side by side: which choice to use, "
        "tables, curves. Writes report.html, report.md, report.json and plots.",
    )
    parser.add_argument(
        "directories", nargs="+", type=Path, metavar="DIR", help="holds runs, at any depth"
    )
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="where to write; by default the first DIR"
    )
    given = parser.parse_args(words)
    try:
        page = write_report(given.directories, given.output or given.directories[0])
    except ConfigError as error:
        print(f"stowage: {error}", file=sys.stderr)
        return 2
    print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
