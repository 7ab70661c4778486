"""The whole matrix of layouts, by the number of processes it takes."""

from __future__ import annotations

from dataclasses import replace

from data.packing.settings import PackingMode
from sft.launch import ALONE
from sft.parallel_settings import ParallelSettings as Layout
from sft.settings import LossAverage
from tests.conftest import make_sample
from tests.models.parallel.cells import SHAPE, SILENT, Cell, Difference, difference, measure
from tests.ranks import on_ranks

NONE, TRAINER, LOADER = PackingMode.NONE, PackingMode.TRAINER, PackingMode.LOADER
EIGHT_LAYERS = replace(SHAPE, num_layers=8)
TIED = replace(SHAPE, tie_embeddings=True)
QWEN = replace(SHAPE, qkv_bias=True, qk_norm=True)
ONE_SAMPLE = (make_sample(50),)
LITTLE = (make_sample(9),)  # some ranks of a row then have nothing but padding

LAYOUTS: dict[int, dict[str, Layout]] = {
    2: {
        "dp2": Layout(),
        "tp2": Layout(tp=2),
        "tp2+sp": Layout(tp=2, sp=True),
        "pp2": Layout(pp=2),
        "pp2 virtual 2": Layout(pp=2, virtual_stages=2),
        "cp2": Layout(cp=2),
    },
    4: {
        "dp4": Layout(),
        "pp4": Layout(pp=4),
        "pp4 virtual 2": Layout(pp=4, virtual_stages=2),
        "cp4": Layout(cp=4),
        "tp2 cp2": Layout(tp=2, cp=2),
        "tp2 pp2": Layout(tp=2, pp=2),
        "dp2 cp2": Layout(cp=2),
    },
    8: {
        "dp2 tp2 pp2": Layout(tp=2, pp=2),
        "tp2+sp pp2 cp2": Layout(tp=2, sp=True, pp=2, cp=2),
    },
}

# Beyond the layouts with either kind of row: what only some layouts could get wrong.
SPECIAL: dict[int, dict[str, Cell]] = {
    2: {
        "dp2 none": Cell(mode=NONE),
        "pp2 none": Cell(parallel=Layout(pp=2), mode=NONE),
        "cp2 none": Cell(parallel=Layout(cp=2), mode=NONE),
        "dp2 by sample": Cell(average=LossAverage.SAMPLE),
        "cp2 by sample": Cell(parallel=Layout(cp=2), average=LossAverage.SAMPLE),
        "dp2 a rank without loss": Cell(samples=(make_sample(120, seed=1), SILENT)),
        "dp2 one sample": Cell(samples=ONE_SAMPLE),
        "dp2 one sample, loader": Cell(samples=ONE_SAMPLE, mode=LOADER),
        "dp2 distributed optimizer": Cell(parallel=Layout(distributed_optimizer=True)),
        "tp2 distributed optimizer": Cell(parallel=Layout(tp=2, distributed_optimizer=True)),
        "pp2 tied": Cell(parallel=Layout(pp=2), shape=TIED),
        "tp2+sp tied": Cell(parallel=Layout(tp=2, sp=True), shape=TIED),
        "tp2+sp qwen": Cell(parallel=Layout(tp=2, sp=True), shape=QWEN),
        "cp2 little in a row": Cell(parallel=Layout(cp=2), samples=LITTLE, mode=LOADER),
        "cp2 padded boundaries": Cell(parallel=Layout(cp=2), real=False),
        "dp2 lora": Cell(low_rank=True),
        "tp2+sp lora": Cell(parallel=Layout(tp=2, sp=True), low_rank=True),
    },
    4: {
        "dp4 one sample": Cell(samples=ONE_SAMPLE),
        "cp4 little in a row": Cell(parallel=Layout(cp=4), samples=LITTLE, mode=LOADER),
        "dp4 none": Cell(mode=NONE),
        "tp2 pp2 none": Cell(parallel=Layout(tp=2, pp=2), mode=NONE),
        "tp2 pp2 lora": Cell(parallel=Layout(tp=2, pp=2), low_rank=True),
        "dp2 pp2 distributed optimizer": Cell(parallel=Layout(pp=2, distributed_optimizer=True)),
        "dp2 cp2 distributed optimizer": Cell(parallel=Layout(cp=2, distributed_optimizer=True)),
        "tp2 cp2 by sample": Cell(parallel=Layout(tp=2, cp=2), average=LossAverage.SAMPLE),
    },
    8: {
        "dp2 tp2 pp2 distributed optimizer": Cell(
            parallel=Layout(tp=2, pp=2, distributed_optimizer=True)
        ),
    },
}


def cells(world_size: int) -> dict[str, Cell]:
    """All cells of so many processes."""
    found = {}
    for name, layout in LAYOUTS[world_size].items():
        deep = layout.pp * layout.virtual_stages > 4
        shape = EIGHT_LAYERS if deep else SHAPE
        for mode in (TRAINER, LOADER):
            found[f"{name} {mode.value}"] = Cell(parallel=layout, mode=mode, shape=shape)
    return found | SPECIAL[world_size]


def differences(world_size: int) -> dict[str, Difference]:
    """What every cell differs from one process by."""
    named = cells(world_size)
    alone = measure(ALONE, [cell.alone for cell in named.values()])
    ranks = on_ranks(world_size, measure, list(named.values()), timeout_seconds=900)
    by_cell = zip(named, zip(*ranks, strict=True), alone, strict=True)
    return {name: difference(found, one) for name, found, one in by_cell}
