"""The training engine: configuration, loop, loss, metrics, reports."""
