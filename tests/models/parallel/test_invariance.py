"""Many processes train as one does: every layout; ``make test-parallel``."""

from __future__ import annotations

import functools

import pytest

from tests.models.parallel import matrix
from tests.models.parallel.cells import Difference

pytestmark = pytest.mark.parallel

ALL = [(size, name) for size in matrix.LAYOUTS for name in matrix.cells(size)]


@functools.cache
def differences(world_size: int) -> dict[str, Difference]:
    return matrix.differences(world_size)


@pytest.mark.parametrize(("world_size", "name"), ALL)
def test_many_processes_train_as_one(world_size: int, name: str) -> None:
    found = differences(world_size)[name]
    assert found.loss < 1e-6
    assert found.norm < 1e-6
    assert found.gradient is None or found.gradient < 1e-6
    assert found.weights < 1e-6
    assert found.loss_after < 1e-6
