"""Which process of a run this one is, as torchrun or Slurm says. No torch here."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

from sft.errors import ConfigError

_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, kw_only=True)
class Place:
    """A process among those of a run.

    Attributes:
        rank: of this process, from 0.
        world_size: processes of the run.
        local_rank: of this process among those of its machine; the number of its device.
        local_world_size: processes of the run on this machine.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1

    @property
    def leads(self) -> bool:
        """Whether it decides for all, and writes what is written once."""
        return self.rank == 0

    @property
    def alone(self) -> bool:
        """Whether there is no other."""
        return self.world_size == 1


ALONE = Place()


def place_of_this_process(environ: MutableMapping[str, str] | None = None) -> Place:
    """The place that the environment gives this process.

    torchrun's variables come first. Those of Slurm count where a step has started several tasks;
    then ``MASTER_ADDR`` and ``MASTER_PORT`` are set from the step's nodes and its job's number
    unless they are there already.

    Args:
        environ: the environment; None: this process's.

    Raises:
        ConfigError: variables that are half there, no numbers, or contradict each other.
    """
    environ = os.environ if environ is None else environ
    if "RANK" in environ or "WORLD_SIZE" in environ:
        return _of_torchrun(environ)
    if _slurm_tasks(environ) > 1:
        return _of_slurm(environ)
    return ALONE


def _of_torchrun(environ: Mapping[str, str]) -> Place:
    missing = [name for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK") if name not in environ]
    world_size = _number(environ, "WORLD_SIZE", 1) if "WORLD_SIZE" in environ else 1
    if world_size > 1 or "WORLD_SIZE" not in environ:
        missing += [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in environ]
    if missing:
        there = [name for name in _TORCHRUN if name in environ]
        raise ConfigError(
            f"the environment has {', '.join(there)} and lacks {', '.join(missing)}: start the run "
            "with torchrun, which sets them all, or remove them for a run of one process"
        )
    place = Place(
        rank=_number(environ, "RANK", 0),
        world_size=world_size,
        local_rank=_number(environ, "LOCAL_RANK", 0),
        local_world_size=_number(environ, "LOCAL_WORLD_SIZE", 1)
        if "LOCAL_WORLD_SIZE" in environ
        else world_size,
    )
    return _checked(place, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def _of_slurm(environ: MutableMapping[str, str]) -> Place:
    missing = [n for n in ("SLURM_PROCID", "SLURM_LOCALID") if n not in environ]
    if "MASTER_ADDR" not in environ and not _node_list(environ):
        missing.append("SLURM_STEP_NODELIST")
    if missing:
        raise ConfigError(
            f"SLURM_NTASKS={environ.get('SLURM_STEP_NUM_TASKS') or environ.get('SLURM_NTASKS')}: "
            f"the environment lacks {', '.join(missing)}; start the processes with srun, which "
            "sets them"
        )
    tasks = _slurm_tasks(environ)
    on_node = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE") or ""
    local_rank = _number(environ, "SLURM_LOCALID", 0)
    place = Place(
        rank=_number(environ, "SLURM_PROCID", 0),
        world_size=tasks,
        local_rank=local_rank,
        local_world_size=_tasks_of_node(on_node, _number(environ, "SLURM_NODEID", 0))
        if on_node and "SLURM_NODEID" in environ
        else max(local_rank + 1, 1),
    )
    environ.setdefault("MASTER_ADDR", _first_host(_node_list(environ)))
    # Jobs that share a machine must not meet at one port; a job's processes must.
    job = re.sub(r"\D", "", environ.get("SLURM_JOB_ID", "0")) or "0"
    environ.setdefault("MASTER_PORT", str(20000 + int(job) % 20000))
    return _checked(place, "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_TASKS_PER_NODE")


def _slurm_tasks(environ: Mapping[str, str]) -> int:
    """How many tasks the step has that this process is of; 1 where it is of none.

    Under salloc and sbatch without srun the variables describe the job, and nothing has been
    started several times.
    """
    if "SLURM_STEP_ID" not in environ or "SLURM_PROCID" not in environ:
        return 1
    name = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS"
    return _number(environ, name, 1) if name in environ else 1


def _node_list(environ: Mapping[str, str]) -> str:
    return environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_NODELIST") or ""


def _first_host(nodes: str) -> str:
    """The first of Slurm's short form: ``gpu[07-09,12],login1`` is ``gpu07``."""
    match = re.match(r"([^,\[]+)(?:\[([^\]]*)\])?", nodes)
    assert match is not None, nodes
    return match[1] + re.split(r"[-,]", match[2] or "")[0]


def _tasks_of_node(counts: str, node: int) -> int:
    """Of ``4(x2),3``: 4 for the nodes 0 and 1, 3 for the next."""
    expanded: list[int] = []
    for part in counts.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match is None:
            raise ConfigError(f"SLURM_TASKS_PER_NODE={counts}: cannot be read; start with srun")
        expanded += [int(match[1])] * int(match[2] or 1)
    return expanded[min(node, len(expanded) - 1)]


def _number(environ: Mapping[str, str], name: str, least: int) -> int:
    text = environ[name]
    if not re.fullmatch(r"\d+", text.strip()) or int(text) < least:
        raise ConfigError(
            f"{name}={text}: must be a whole number of at least {least}; torchrun and srun set it"
        )
    return int(text)


def _checked(place: Place, rank: str, size: str, local_rank: str, local_size: str) -> Place:
    for name, value, of, most in (
        (rank, place.rank, size, place.world_size),
        (local_rank, place.local_rank, local_size, place.local_world_size),
    ):
        if value >= most:
            raise ConfigError(
                f"{name}={value}: must be below {of}={most}; torchrun and srun set both"
            )
    if place.local_world_size > place.world_size:
        raise ConfigError(
            f"{local_size}={place.local_world_size}: must be at most {size}={place.world_size}; "
            "torchrun and srun set both"
        )
    return place
