"""From conversations to model-ready rows. Knows nothing of models or training."""
