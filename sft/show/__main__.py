"""Runs :func:`sft.show.cli.main`."""

import sys

from sft.show.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
