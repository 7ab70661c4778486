"""Many processes train as one does: the layouts that every run of the tests goes through."""

from __future__ import annotations

import pytest

from data.packing.settings import PackingMode
from sft.launch import ALONE
from sft.parallel_settings import ParallelSettings
from tests.models.parallel.cells import Cell, Difference, difference, measure
from tests.models.parallel.matrix import LITTLE
from tests.ranks import on_ranks

LOADER, TRAINER = PackingMode.LOADER, PackingMode.TRAINER

CELLS = {
    "dp4 trainer": Cell(),
    "dp4 loader": Cell(mode=LOADER, real=False),
    "dp4 distributed optimizer": Cell(parallel=ParallelSettings(distributed_optimizer=True)),
    "tp2+sp pp2 trainer": Cell(parallel=ParallelSettings(tp=2, sp=True, pp=2)),
    "dp2 cp2 loader": Cell(parallel=ParallelSettings(cp=2), mode=LOADER),
    "cp4 little in a row": Cell(parallel=ParallelSettings(cp=4), mode=LOADER, samples=LITTLE),
    "pp2 cp2 trainer": Cell(parallel=ParallelSettings(pp=2, cp=2)),
}


@pytest.fixture(scope="module")
def differences() -> dict[str, Difference]:
    cells = list(CELLS.values())
    alone = measure(ALONE, [cell.alone for cell in cells])
    ranks = on_ranks(4, measure, cells)
    by_cell = zip(CELLS, zip(*ranks, strict=True), alone, strict=True)
    return {name: difference(found, one) for name, found, one in by_cell}


@pytest.mark.parametrize("name", CELLS)
def test_many_processes_train_as_one(differences: dict[str, Difference], name: str) -> None:
    found = differences[name]
    assert found.loss < 1e-6
    assert found.norm < 1e-6
    assert found.gradient is None or found.gradient < 1e-6
    assert found.weights < 1e-6
    assert found.loss_after < 1e-6
