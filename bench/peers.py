"""Everything the packer benchmark can measure: this project's packers and those of other packages.

Nothing here imports a packer's package before that packer is made, so that a fresh process can time
the import of the one it measures, and a package that is not installed is in nobody's way.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

type Csr = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
type Call = Callable[[Any, int], Any]


@dataclass(frozen=True, kw_only=True)
class Package:
    """Where packers come from.

    Attributes:
        distribution: what pip calls it.
        module: what ``import`` calls it.
        install: what to do about it if it is not installed.
    """

    distribution: str
    module: str
    install: str

    @property
    def version(self) -> str | None:
        """The installed version, or none."""
        if importlib.util.find_spec(self.module) is None:
            return None
        return importlib.metadata.version(self.distribution)


_EXTRA = "pip install -e '.[bench]'"
STOWAGE = Package(distribution="stowage", module="data", install="pip install -e .")
LIGHTBINPACK = Package(
    distribution="lightbinpack", module="lightbinpack", install=f"{_EXTRA} (needs a C++ compiler)"
)
SEQPACKER = Package(
    distribution="seqpacker",
    module="seqpacker",
    install="pip install seqpacker (no wheel for Linux on x86-64: needs a Rust compiler)",
)
SEQ_LEN_BALANCE = Package(
    distribution="seq-len-balance",
    module="seq_len_balance",
    install="pip install seq-len-balance (no wheel for Linux: needs a Rust compiler)",
)
BINPACKING = Package(distribution="binpacking", module="binpacking", install=_EXTRA)
BINPACKP = Package(distribution="bin-packing-problem", module="binpackp", install=_EXTRA)
PRTPY = Package(
    distribution="prtpy", module="prtpy", install="pip install prtpy (brings a 190 MB solver along)"
)
PEERS = (LIGHTBINPACK, SEQPACKER, SEQ_LEN_BALANCE, BINPACKING, BINPACKP, PRTPY)


def _to_list(lengths: npt.NDArray[np.int64]) -> list[int]:
    return lengths.tolist()


def _to_dict(lengths: npt.NDArray[np.int64]) -> dict[int, int]:
    return dict(enumerate(lengths.tolist()))


def _as_is(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return lengths


def _csr_of_bins(bins: Sequence[Sequence[int]], lengths: npt.NDArray[np.int64]) -> Csr:
    """Two flat arrays of bins of indices; iterating a dict gives its keys, so it may be a bin."""
    offsets = np.zeros(len(bins) + 1, dtype=np.int64)
    np.cumsum([len(samples) for samples in bins], out=offsets[1:])
    indices = np.fromiter(chain.from_iterable(bins), dtype=np.int64, count=int(offsets[-1]))
    return indices, offsets


def _csr_of_values(bins: Sequence[Sequence[float]], lengths: npt.NDArray[np.int64]) -> Csr:
    """Bins of lengths made into bins of indices: equal lengths are handed out in input order.

    Raises:
        ValueError: if the lengths in the bins are not those that were given.
    """
    values, offsets = _csr_of_bins(bins, lengths)  # type: ignore[arg-type]
    by_length, by_value = (np.argsort(array, kind="stable") for array in (lengths, values))
    if not np.array_equal(lengths[by_length], values[by_value]):
        raise ValueError("the lengths in the bins are not those given")
    indices = np.empty(values.size, dtype=np.int64)
    indices[by_value] = by_length
    return indices, offsets


def _csr_of_ends(flat: Csr, lengths: npt.NDArray[np.int64]) -> Csr:
    """Flat indices, and where every bin but the first begins."""
    indices, begins = flat
    return indices, np.concatenate(([0], begins, [len(indices)])).astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One packer in one form of input and output.

    Attributes:
        name: what the tables and ``--packers`` call it.
        package: where it comes from.
        form: what it takes and gives: Python lists, or arrays.
        make: imports it and answers with what is timed: input and capacity in, its own output out.
        prepare: the lengths as it takes them; not timed.
        to_csr: its output and the lengths in, ``(indices, offsets)`` out; not timed.
    """

    name: str
    package: Package
    form: Literal["lists", "arrays"]
    make: Callable[[], Call]
    prepare: Callable[[npt.NDArray[np.int64]], Any] = _to_list
    to_csr: Callable[[Any, npt.NDArray[np.int64]], Csr] = _csr_of_bins

    @property
    def ours(self) -> bool:
        """Whether it is this project's."""
        return self.package is STOWAGE


def _ours() -> list[Contender]:
    """Every packer of this project, with lists and with arrays."""
    from data.packers import load_packer, packer_names

    contenders = []
    for name in packer_names():
        contenders += [
            Contender(
                name=f"{name}.pack", package=STOWAGE, form="lists",
                make=lambda name=name: load_packer(name).pack,
            ),
            Contender(
                name=f"{name}.pack_csr", package=STOWAGE, form="arrays",
                make=lambda name=name: load_packer(name).pack_csr,
                prepare=_as_is, to_csr=lambda csr, lengths: csr,
            ),
        ]  # fmt: skip
    return contenders


def _lightbinpack() -> list[Contender]:
    """Its plain packers, called as functions: its ``pack`` cannot call obfdp."""
    return [
        Contender(
            name=f"lightbinpack {name}", package=LIGHTBINPACK, form="lists",
            make=lambda name=name: getattr(importlib.import_module("lightbinpack"), name),
        )
        for name in ("nf", "ffd", "bfd", "obfd", "obfdp")
    ]  # fmt: skip


def _seqpacker_call(strategy: str, form: str) -> Call:
    """``bins`` is a property that builds the lists, so it is part of the work."""
    packer = importlib.import_module("seqpacker").Packer
    if form == "arrays":
        return lambda lengths, capacity: packer(capacity, strategy=strategy).pack_flat(lengths)
    return lambda lengths, capacity: packer(capacity, strategy=strategy).pack(lengths).bins


def _seqpacker() -> list[Contender]:
    """All its algorithms with arrays, the two best known with lists too."""
    lists = [
        Contender(
            name=f"seqpacker {name}", package=SEQPACKER, form="lists",
            make=lambda name=name: _seqpacker_call(name, "lists"),
        )
        for name in ("ffd", "obfd")
    ]  # fmt: skip
    algorithms = ("nf", "ff", "bf", "wf", "ffd", "bfd", "ffs", "mffd", "obfd", "obfdp", "hk")
    return lists + [
        Contender(
            name=f"seqpacker {name} flat", package=SEQPACKER, form="arrays",
            make=lambda name=name: _seqpacker_call(name, "arrays"),
            prepare=_as_is, to_csr=_csr_of_ends,
        )
        for name in algorithms
    ]  # fmt: skip


def _seq_len_balance() -> list[Contender]:
    """Its two packers, which give lengths back, not indices."""
    return [
        Contender(
            name=f"seq-len-balance {name}", package=SEQ_LEN_BALANCE, form="lists",
            make=lambda name=name: getattr(importlib.import_module("seq_len_balance"), name),
            to_csr=_csr_of_values,
        )
        for name in ("ffd", "bfd")
    ]  # fmt: skip


def _binpacking() -> list[Contender]:
    """Worst-fit decreasing, in plain Python and with numpy; both take a dict to give keys back."""
    return [
        Contender(
            name=f"{module} wfd", package=BINPACKING, form="lists",
            make=lambda module=module: importlib.import_module(module).to_constant_volume,
            prepare=_to_dict,
        )
        for module in ("binpacking", "binpacking.numpy")
    ]  # fmt: skip


def _binpackp_call() -> Call:
    module = importlib.import_module("binpackp")
    return lambda lengths, capacity: module.Fit.ffd(module.NumberBin, capacity, lengths).bins


def _prtpy_call() -> Call:
    module = importlib.import_module("prtpy")
    ffd = module.packing.ffd
    return lambda lengths, capacity: module.pack(algorithm=ffd, binsize=capacity, items=lengths)


def _others() -> list[Contender]:
    """Packages with one packer each; the first gives lengths back."""
    return [
        Contender(
            name="bin-packing-problem ffd", package=BINPACKP, form="lists",
            make=_binpackp_call, to_csr=_csr_of_values,
        ),
        Contender(
            name="prtpy ffd", package=PRTPY, form="lists", make=_prtpy_call, prepare=_to_dict,
        ),
    ]  # fmt: skip


def contenders(patterns: Sequence[str] = ("*",)) -> list[Contender]:
    """The packers that match a pattern, as in a shell, installed or not; ours come first."""
    everyone = [
        *_ours(), *_lightbinpack(), *_seqpacker(), *_seq_len_balance(), *_binpacking(), *_others(),
    ]  # fmt: skip
    return [
        contender
        for contender in everyone
        if any(fnmatchcase(contender.name, pattern.lower()) for pattern in patterns)
    ]
