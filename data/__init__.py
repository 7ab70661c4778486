"""From conversations to model-ready rows. Knows nothing of models or training."""

import os

# Energon draws a progress bar per worker while a buffer fills. tqdm reads this once, when it is
# first imported, and other libraries import it too: so it stands here, before all of them.
os.environ.setdefault("TQDM_DISABLE", "1")
