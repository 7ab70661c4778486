"""Megatron-Core models. Knows nothing of data or training."""
