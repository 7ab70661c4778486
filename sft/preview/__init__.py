"""What training would meet, from lengths alone: ``python -m sft.preview``. No torch here.

A run's own order of conversations, windows, packers and grouping into steps are gone through on the
lengths of the samples, so what is said here is what a run then does, number for number. Only where
there is more to pack than the time allows are some windows packed for all, and that is said.
"""
