"""A layout that does not fit is refused with the numbers, before anything is loaded."""

from __future__ import annotations

from collections import Counter

import pytest
from hydra import compose, initialize_config_dir

from sft.checks import check
from sft.config import RunConfig, resolve
from sft.errors import ConfigError
from sft.launch import Place
from sft.parallel_settings import ParallelSettings
from tests.conftest import CONF_DIR


def config(*overrides: str) -> RunConfig:
    with initialize_config_dir(CONF_DIR, version_base="1.3"):
        return resolve(compose("config", ["run_dir=runs/test", *overrides]))


def refusal(world_size: int, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        check(config(*overrides), Place(world_size=world_size))
    return str(caught.value)


@pytest.mark.parametrize(
    ("world_size", "overrides", "words"),
    [
        (1, ["parallel=tp2"], ["parallel.tp=2", "multiple of 2", "there is 1", "torchrun"]),
        (6, ["parallel=tp2_pp2"], ["parallel.tp=2 parallel.pp=2", "multiple of 4", "there are 6"]),
        (3, ["parallel.cp=3", "model.num_layers=4", "packing.capacity=4095"], ["capacity=4095"]),
        (
            2,
            ["parallel=tp2", "model.num_attention_heads=6", "model.num_query_groups=3"],
            ["num_query_groups=3 or be a multiple", "use 1 or 3"],
        ),
        (2, ["parallel=tp2", "model.ffn_hidden_size=63"], ["ffn_hidden_size=63", "use 1, 3"]),
        (4, ["parallel.pp=4", "model.num_layers=6"], ["num_layers=6", "1, 2, 3 or 6 stages"]),
        (2, ["parallel.pp=2", "parallel.virtual_stages=4"], ["virtual_stages=4", "num_layers"]),
        (2, ["parallel=tp2", "model.vocab_multiple=1"], ["vocab_multiple=1", "vocab_multiple=2"]),
        (1, ["parallel.sp=true"], ["sp=true", "parallel.tp=2"]),
        (1, ["parallel.virtual_stages=2"], ["virtual_stages=2", "parallel.pp=2"]),
        (1, ["parallel.tp=0"], ["parallel.tp=0", "at least 1"]),
        (1, ["+parallel.dp=2"], ["parallel.dp=2: there is no such key", "Keys in parallel: cp"]),
        (2, ["parallel=cp2", "packing.pad_multiple=6"], ["pad_multiple=6", "multiple of 4", "8"]),
        (2, ["parallel=cp2", "packing.capacity=4094"], ["capacity=4094", "4092 or 4096"]),
    ],
)
def test_refused_with_the_numbers(world_size: int, overrides: list[str], words: list[str]) -> None:
    if any("dp" in o or "=0" in o or "sp=" in o or "stages=2" in o for o in overrides):
        with pytest.raises(ConfigError) as caught:
            config(*overrides)
        message = str(caught.value)
    else:
        message = refusal(world_size, *overrides)
    for word in words:
        assert word in message, message


@pytest.mark.parametrize(
    ("name", "world_size", "multiple"),
    [
        ("default", 8, 1),
        ("tp2", 4, 1),
        ("tp2_sp", 2, 2),
        ("pp2", 2, 1),
        ("cp2", 2, 4),
        ("tp2_cp2", 4, 4),
        ("tp2_pp2", 8, 1),
    ],
)
def test_every_layout_composes_and_pads_as_it_must(
    name: str, world_size: int, multiple: int
) -> None:
    derived = check(config(f"parallel={name}"), Place(world_size=world_size))
    assert derived.pad_multiple == multiple


@pytest.mark.parametrize(
    ("settings", "world_size"),
    [({"tp": 2, "cp": 2, "pp": 2}, 16), ({"tp": 2}, 4), ({"pp": 2}, 4), ({}, 3)],
)
def test_every_replica_has_as_many_processes(settings: dict[str, int], world_size: int) -> None:
    parallel = ParallelSettings(**settings)  # type: ignore[arg-type]
    replicas = parallel.replicas(world_size)
    count = Counter(replicas)
    assert len(replicas) == world_size
    assert sorted(count) == list(range(parallel.data_parallel(world_size)))
    assert set(count.values()) == {parallel.model_ranks}
