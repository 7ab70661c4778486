"""Runs :func:`sft.preview.cli.main`."""

import sys

from sft.preview.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
