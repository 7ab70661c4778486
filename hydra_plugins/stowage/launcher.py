"""The launchers: each job in a process of its own, or all in this one."""

from __future__ import annotations

import json
import sys
import traceback
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus, configure_log, run_job
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

from sft.cli import FAILED, exit_code_of, job_starts
from sft.explain import CONF_DIR
from sft.sweep.finish import JobFailed
from sft.sweep.jobs import key_of
from sft.sweep.names import differences, safe_name, safe_path, told_apart
from sft.sweep.outcome import Outcome
from sft.sweep.process import own_script, run_process
from sft.sweep.record import DONE, JobRecord, SweepRecord
from sft.sweep.run import closing_table, run_jobs

# Of Hydra's own settings these are about the sweep, not about a job.
_OF_THE_SWEEP = ("hydra.mode", "hydra.sweep", "hydra.sweeper", "hydra.launcher", "hydra.run")


class JobLauncher(Launcher):
    """What both launchers share: names, ``sweep.json``, the closing table."""

    name: str

    def __init__(self, fail_fast: bool = False) -> None:
        super().__init__()
        self._fail_fast = fail_fast
        self._record: SweepRecord | None = None
        self._taken: set[str] = set()
        self._composed: dict[tuple[str, ...], DictConfig] = {}

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Called by Hydra before :meth:`launch`."""
        self._context, self._task, self._config = hydra_context, task_function, config

    def compose(self, words: Sequence[str]) -> DictConfig:
        """The tree of a job, which :meth:`launch` will take up again.

        Args:
            words: of the job.
        """
        tree: DictConfig = self._context.config_loader.load_sweep_config(self._config, list(words))
        self._composed[tuple(words)] = tree
        return tree

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Run jobs, in the order given.

        Args:
            job_overrides: the words of each.
            initial_job_idx: how many the sweeper has had run before.
        """
        record = self._record or SweepRecord(
            directory=Path(str(self._config.hydra.sweep.dir)).absolute(),
            command=[Path(sys.argv[0]).name, *sys.argv[1:]],
            launcher=self.name,
        )
        self._record = record
        trees = self._named_trees(job_overrides, initial_job_idx)
        jobs = [
            JobRecord(
                name=str(tree.hydra.sweep.subdir),
                overrides=list(words),
                order=initial_job_idx + i,
            )
            for i, (words, tree) in enumerate(zip(job_overrides, trees, strict=True), start=1)
        ]
        record.jobs += jobs
        job_starts()
        by_order = {job.order: tree for job, tree in zip(jobs, trees, strict=True)}
        run_jobs(
            record,
            jobs,
            lambda job: self._start(job, by_order[job.order], record.directory / job.name),
            fail_fast=self._fail_fast,
            log_name=f"{self._config.hydra.job.name}.log",
        )
        print("\n" + "\n".join(closing_table(record)), flush=True)
        return [_job_return(job, record.directory / job.name) for job in jobs]

    def _named_trees(self, jobs: Sequence[Sequence[str]], first: int) -> list[DictConfig]:
        """Each job's tree, its directory named after what differs."""
        naming = self._config.hydra.job.config.override_dirname
        texts = differences([tuple(words) for words in jobs], naming.exclude_keys)
        trees = []
        for i, (words, text) in enumerate(zip(jobs, texts, strict=True), start=first):
            tree = self._composed.get(tuple(words)) or self.compose(words)
            del self._composed[tuple(words)]  # who asks for a job twice gets two
            with open_dict(tree):
                tree.hydra.job.id, tree.hydra.job.num = str(i), i
                tree.hydra.job.override_dirname = safe_name(text)
                tree.hydra.sweep.dir = self._config.hydra.sweep.dir
                wanted = _resolved(tree, "hydra.sweep.subdir")
                tree.hydra.sweep.subdir = told_apart(safe_path(wanted), self._taken)
            trees.append(tree)
        return trees

    @abstractmethod
    def _start(self, job: JobRecord, tree: DictConfig, directory: Path) -> Outcome:
        """Run a job to its end."""


class ProcessLauncher(JobLauncher):
    """Each job is a run of its own: the same program, with its words and its directory."""

    name = "processes"

    def _start(self, job: JobRecord, tree: DictConfig, directory: Path) -> Outcome:
        quoted = str(directory).replace("\\", "\\\\").replace('"', '\\"')
        words = [*self._shared_words(), *job.overrides, f'run_dir="{quoted}"', "hydra.mode=RUN"]
        return run_process([sys.executable, own_script(), *words])

    def _shared_words(self) -> list[str]:
        """What this process was told that holds for every job."""
        hydra = self._config.hydra
        name = str(hydra.job.config_name)
        words = [] if name == "config" else ["--config-name", name]
        for source in hydra.runtime.config_sources:
            if source.provider == "command-line":
                words += ["--config-dir", source.path]
            elif source.provider == "main" and source.path != CONF_DIR:
                words += ["--config-path", source.path]
        return words + [
            word
            for word in hydra.overrides.hydra
            if not key_of(word).replace("/", ".").startswith(_OF_THE_SWEEP)
        ]


class InProcessLauncher(JobLauncher):
    """All jobs in this process, by Hydra's own means."""

    name = "in_process"

    def _start(self, job: JobRecord, tree: DictConfig, directory: Path) -> Outcome:
        try:
            ended = run_job(
                hydra_context=self._context,
                task_function=self._task,
                config=tree,
                job_dir_key="hydra.sweep.dir",
                job_subdir_key="hydra.sweep.subdir",
            )
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
            return Outcome(exit_code=code, error=f"ended with exit code {code}" if code else None)
        finally:
            # Lets go of the job's log.
            configure_log(self._config.hydra.hydra_logging, self._config.hydra.verbose)
        if ended.status is JobStatus.COMPLETED:
            return Outcome(exit_code=0)
        return _failure(ended._return_value)


def _failure(error: Exception) -> Outcome:
    line = " ".join(str(error).split())
    code = exit_code_of(error)
    if code is None:
        said = "".join(traceback.format_exception(error))
        line = f"{type(error).__name__}: {line}" if line else type(error).__name__
    else:
        said = f"stowage: {error}\n"
    sys.stderr.write(said)
    return Outcome(exit_code=code or FAILED, error=line, said=said)


def _job_return(job: JobRecord, directory: Path) -> JobReturn:
    """What Hydra's sweepers read: the final validation loss, or the failure."""
    returned = JobReturn(overrides=job.overrides)
    if job.status == DONE:
        returned.status, returned.return_value = JobStatus.COMPLETED, _final_loss(directory)
    else:
        returned.status = JobStatus.FAILED
        returned.return_value = JobFailed(job.error or "not started", job.exit_code)
    return returned


def _final_loss(directory: Path) -> float | None:
    try:
        summary: Mapping[str, Any] = json.loads((directory / "summary.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return summary.get("final_val_loss")


def _resolved(tree: DictConfig, key: str) -> str:
    """A value that may refer to Hydra's own node, by its resolver too."""
    before = HydraConfig.instance().cfg
    HydraConfig.instance().set_config(tree)
    try:
        return str(OmegaConf.select(tree, key))
    finally:
        HydraConfig.instance().cfg = before
        OmegaConf.set_readonly(tree.hydra, False)  # which asking for it has set
