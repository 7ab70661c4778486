"""Layouts: what a packer is given, and what happens when it cannot make the bins it should."""

import logging

import pytest

from data.packers import load_packer
from data.packing.microbatches import Layout
from data.packing.settings import PackingMode


def layout(packer, pad_multiple=1):
    return Layout(
        mode=PackingMode.TRAINER,
        packer=packer,
        capacity=10,
        pad_multiple=pad_multiple,
        pad_id=0,
        micro_batch_size=1,
    )


def test_packers_see_padded_lengths():
    # 3 and 5 take 4 and 8: together too many. One function, so packer and layout cannot differ.
    assert layout(load_packer("ffd")).bins([3, 5]) == [[1, 0]]
    assert layout(load_packer("ffd"), pad_multiple=4).bins([3, 5]) == [[1], [0]]
    assert layout(load_packer("ffd"), pad_multiple=4).fewest_rows([3, 5]) == 2


def test_the_fewest_rows_heed_the_limit_on_samples():
    assert layout(load_packer("ffd", max_samples_per_bin=2)).fewest_rows([1] * 7) == 4
    assert layout(load_packer("ffd")).fewest_rows([1] * 7) == 1


def test_rows_are_a_multiple_where_they_can_be_and_else_the_log_says_so(caplog):
    spread = layout(load_packer("ffd", bins_multiple=4, max_samples_per_bin=9))
    with caplog.at_level(logging.INFO, logger="data"):
        assert len(spread.bins([3] * 6)) == 4
        assert not caplog.records
        assert sorted(map(len, spread.bins([3, 3, 3]))) == [3]
        assert sorted(map(len, spread.bins([9, 3]))) == [1, 1]
    first, second = caplog.records
    assert (first.levelname, second.levelname) == ("WARNING", "INFO")
    assert "3 samples cannot fill the 4 bins that bins_multiple=4 would need" in first.getMessage()
    assert first.getMessage().endswith("they are packed into 1")
    assert second.getMessage().endswith("they are packed into 2")


@pytest.mark.parametrize("name", ["ffd", "concatenative", "tight"])
def test_no_samples_need_no_rows(name):
    assert layout(load_packer(name, bins_multiple=4)).fewest_rows([]) == 0
