"""The sweeper: a product of choices without what changes nothing, seeds interleaved, a report."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import HydraException
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from data.packing.settings import PackingMode
from hydra_plugins.stowage.launcher import JobLauncher
from sft.cli import canonical_override
from sft.errors import ConfigError
from sft.sweep.finish import sweep_failure, write_report
from sft.sweep.jobs import Job, key_of, plan_jobs
from sft.sweep.record import claim_sweep_dir


class StowageSweeper(Sweeper):
    """Runs every combination of the choices on the command line and in ``params``."""

    def __init__(self, params: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._params = dict(params or {})
        self._modes: dict[Job, PackingMode | None] = {}

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Called by Hydra before :meth:`sweep`."""
        self._context, self._config = hydra_context, config
        self._launcher: Launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Sequence[JobReturn]:
        """Run the sweep.

        Args:
            arguments: the words of the command line that are not Hydra's own.

        Raises:
            ConfigError: the sweep cannot be as it was asked for.
            SweepFailed: at least one job failed.
        """
        _refuse(arguments)
        offered = set(self._params) - set(map(key_of, arguments))
        plan = plan_jobs(self._product(arguments), self._mode_of, offered=offered)
        self._check(plan.jobs)
        for note in plan.notes:
            print(f"sweep: {note}")
        directory = self._claim()
        OmegaConf.save(self._config, directory / "multirun.yaml")
        returns = self._launcher.launch([list(job) for job in plan.jobs], initial_job_idx=0)
        write_report(directory)
        failures = [r._return_value for r in returns if r.status is not JobStatus.COMPLETED]
        if failures:
            raise sweep_failure(failures, len(returns), directory)
        return returns

    def _product(self, arguments: list[str]) -> list[Job]:
        given = [canonical_override(f"{key}={value}") for key, value in self._params.items()]
        parser = OverridesParser.create(config_loader=self._context.config_loader)
        overrides = parser.parse_overrides([*given, *arguments])
        (batch,) = BasicSweeper.split_arguments(overrides, max_batch_size=None)
        return [tuple(job) for job in batch]

    def _mode_of(self, job: Job) -> PackingMode | None:
        """Who packs, told by the groups that are chosen; None for choices that do not exist."""
        decides = tuple(
            word
            for word in job
            if key_of(word) == "packing.mode"
            or ("." not in key_of(word) and key_of(word) not in ("packer", "seed"))
        )
        if decides not in self._modes:
            try:
                mode = OmegaConf.select(self._compose(decides), "packing.mode")
                self._modes[decides] = PackingMode(mode)
            except (HydraException, OmegaConfBaseException, ValueError):
                self._modes[decides] = None
        return self._modes[decides]

    def _compose(self, job: Sequence[str]) -> DictConfig:
        return self._context.config_loader.load_sweep_config(self._config, list(job))

    def _check(self, jobs: Sequence[Job]) -> None:
        """Compose every job: what Hydra refuses is refused before any of them runs."""
        launcher = self._launcher
        compose = launcher.compose if isinstance(launcher, JobLauncher) else self._compose
        for job in jobs:
            if dict(compose(job).hydra.sweeper.params or {}) != self._params:
                which = next((w for w in job if key_of(w) == "experiment"), " ".join(job))
                raise ConfigError(
                    f"{which}: brings a sweep of its own and cannot be one of several"
                )

    def _claim(self) -> Path:
        sweep = self._config.hydra.sweep
        node = sweep._get_node("dir")
        from_clock = "${now:" in str(node._value())
        wanted = Path(str(sweep.dir)).absolute()
        directory = claim_sweep_dir(wanted, renamed=from_clock)
        sweep.dir = str(directory)
        return directory


def _refuse(arguments: Sequence[str]) -> None:
    for word in arguments:
        if key_of(word) == "run_dir":
            raise ConfigError(
                f"{word}: each job of a sweep has a directory of its own; use hydra.sweep.dir=..."
            )
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            "a sweep starts its jobs itself, and would be started by each of the "
            f"WORLD_SIZE={os.environ['WORLD_SIZE']} processes; run it without torchrun"
        )
