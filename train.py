"""Train, as configured: ``python train.py [group=option] [key=value]``; ``--help`` lists both."""

from __future__ import annotations

from omegaconf import DictConfig

from sft.checks import check
from sft.cli import launch, log_library_warnings
from sft.config import resolve
from sft.launch import place_of_this_process


def train(tree: DictConfig) -> float | None:
    """Compose, check, train.

    Returns:
        The final validation loss, for sweepers; None without validation data.
    """
    config, place = resolve(tree), place_of_this_process()
    derived = check(config, place)

    # From here on it is worth the seconds that importing torch takes.
    log_library_warnings()
    from sft.run import run

    return run(config, derived, place).final_val_loss


if __name__ == "__main__":
    launch(train)
