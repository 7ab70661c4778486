"""How far a run has come, and what a checkpoint keeps of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from data.accounting import Accounting
from sft.metrics import Histograms, Speed
from sft.validate import Validation


@dataclass
class Progress:
    """How far a run has come.

    Attributes:
        speed: counts and times.
        histograms: of what was trained on.
        steps: optimizer steps done.
        last_loss: of the last step.
        validations: (step, result), in order.
        rows: that the trainer has packed.
        fewest_rows: a lower bound on the rows those steps need, by any packer.
    """

    speed: Speed
    histograms: Histograms
    steps: int = 0
    last_loss: float | None = None
    validations: list[tuple[int, Validation]] = field(default_factory=list)
    rows: int = 0
    fewest_rows: int = 0

    def to_state(self) -> dict[str, Any]:
        """As JSON, for a checkpoint."""
        return {
            "steps": self.steps,
            "last_loss": self.last_loss,
            "rows": self.rows,
            "fewest_rows": self.fewest_rows,
            "speed": self.speed.to_state(),
            "histograms": self.histograms.to_state(),
            "validations": [
                {
                    "step": step,
                    "loss": result.loss,
                    "loss_tokens": result.loss_tokens,
                    "seconds": result.seconds,
                    "accounting": result.accounting.to_json(),
                }
                for step, result in self.validations
            ],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`to_state` gave."""
        self.steps, self.last_loss = state["steps"], state["last_loss"]
        self.rows, self.fewest_rows = state["rows"], state["fewest_rows"]
        self.speed.restore(state["speed"])
        self.histograms.restore(state["histograms"])
        self.validations = [
            (
                found["step"],
                Validation(
                    loss=found["loss"],
                    loss_tokens=found["loss_tokens"],
                    seconds=found["seconds"],
                    accounting=Accounting.from_json(found["accounting"]),
                ),
            )
            for found in state["validations"]
        ]

    @property
    def best_steps(self) -> list[int]:
        """The steps that were validated, that with the lowest loss first."""
        return [s for s, _ in sorted(self.validations, key=lambda v: (v[1].loss, v[0]))]
