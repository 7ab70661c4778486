"""``python -m data.show data=jsonl data.path=chats.jsonl n=5``: samples, their targets coloured.

Only the name is here, where one looks for it. Which samples there are follows from the settings of
a run, which this package does not know: the command is :mod:`sft.show`.
"""

import importlib
import sys

if __name__ == "__main__":
    sys.exit(importlib.import_module("sft.show.cli").main(sys.argv[1:]))
