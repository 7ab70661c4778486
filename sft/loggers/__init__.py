"""Where metrics go; ``metrics.jsonl`` is the record, everything else mirrors it."""
