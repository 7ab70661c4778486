"""Which process of a run this is, from the variables of torchrun and Slurm."""

from __future__ import annotations

import pytest

from sft.errors import ConfigError
from sft.launch import ALONE, Place, place_of_this_process

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
}
SRUN = {
    "SLURM_JOB_ID": "123456",
    "SLURM_STEP_ID": "0",
    "SLURM_NTASKS": "8",
    "SLURM_PROCID": "6",
    "SLURM_LOCALID": "2",
    "SLURM_NODEID": "1",
    "SLURM_TASKS_PER_NODE": "4(x2)",
    "SLURM_STEP_NODELIST": "gpu[07-08],login1",
}


def test_alone() -> None:
    assert place_of_this_process({}) == ALONE
    assert ALONE.alone and ALONE.leads


def test_torchrun() -> None:
    place = place_of_this_process(dict(TORCHRUN))
    assert place == Place(rank=5, world_size=8, local_rank=1, local_world_size=4)
    assert not place.leads and not place.alone


def test_torchrun_with_one_process_needs_no_meeting_place() -> None:
    one = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    assert place_of_this_process(one) == ALONE


@pytest.mark.parametrize("missing", ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR"])
def test_half_of_torchruns_variables(missing: str) -> None:
    environ = {k: v for k, v in TORCHRUN.items() if k != missing}
    with pytest.raises(ConfigError, match=f"lacks {missing}.*torchrun"):
        place_of_this_process(environ)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("RANK", "8", "RANK=8: must be below WORLD_SIZE=8"),
        ("LOCAL_RANK", "4", "LOCAL_RANK=4: must be below LOCAL_WORLD_SIZE=4"),
        ("LOCAL_WORLD_SIZE", "9", "LOCAL_WORLD_SIZE=9: must be at most WORLD_SIZE=8"),
        ("RANK", "one", "RANK=one: must be a whole number"),
        ("WORLD_SIZE", "0", "WORLD_SIZE=0: must be a whole number of at least 1"),
    ],
)
def test_numbers_that_cannot_be(name: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        place_of_this_process({**TORCHRUN, name: value})


def test_a_slurm_step() -> None:
    environ = dict(SRUN)
    place = place_of_this_process(environ)
    assert place == Place(rank=6, world_size=8, local_rank=2, local_world_size=4)
    assert environ["MASTER_ADDR"] == "gpu07"
    assert environ["MASTER_PORT"] == str(20000 + 123456 % 20000)


def test_what_the_user_has_set_stays() -> None:
    environ = {**SRUN, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1234"}
    place_of_this_process(environ)
    assert (environ["MASTER_ADDR"], environ["MASTER_PORT"]) == ("10.0.0.1", "1234")


def test_an_allocation_without_srun_is_one_process() -> None:
    allocated = {k: v for k, v in SRUN.items() if k not in ("SLURM_STEP_ID", "SLURM_PROCID")}
    assert place_of_this_process(allocated) == ALONE


def test_a_slurm_step_of_one_task() -> None:
    assert place_of_this_process({**SRUN, "SLURM_NTASKS": "1", "SLURM_PROCID": "0"}) == ALONE


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("login1", "login1"), ("gpu[3,7]", "gpu3"), ("a[001-004],b2", "a001"), ("x,y", "x")],
)
def test_the_first_host(nodes: str, first: str) -> None:
    environ = {**SRUN, "SLURM_STEP_NODELIST": nodes}
    place_of_this_process(environ)
    assert environ["MASTER_ADDR"] == first


@pytest.mark.parametrize(("node", "tasks"), [("0", 4), ("1", 4), ("2", 3)])
def test_tasks_of_a_node(node: str, tasks: int) -> None:
    environ = {
        **SRUN,
        "SLURM_NODEID": node,
        "SLURM_NTASKS": "11",
        "SLURM_TASKS_PER_NODE": "4(x2),3",
    }
    assert place_of_this_process(environ).local_world_size == tasks
