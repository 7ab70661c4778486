"""Made-up sequence lengths that look like the data people fine-tune on."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

type LengthArray = npt.NDArray[np.int64]
type Draw = Callable[[np.random.Generator, int, int], npt.NDArray[np.float64]]


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """How lengths are drawn, as numbers that are rounded and clipped to ``[1, capacity]`` after.

    Attributes:
        name: what the command line and the tables call it.
        definition: the same as ``draw``, for people.
        draw: a generator, a number of lengths and a capacity in, as many numbers out.
        capacities: the only ones it makes sense at; none for all.
    """

    name: str
    definition: str
    draw: Draw
    capacities: tuple[int, ...] = ()

    def sample(self, n: int, capacity: int, seed: int = 0) -> LengthArray:
        """Lengths int64 ``[n]``, the same for the same arguments on every machine.

        Args:
            n: how many.
            capacity: the longest there may be, in tokens.
            seed: of the generator; distributions do not share a stream.
        """
        rng = np.random.default_rng([seed, n, capacity, zlib.crc32(self.name.encode())])
        drawn = np.rint(self.draw(rng, n, capacity))
        return np.clip(drawn, 1, capacity).astype(np.int64)


def _mixture(
    rng: np.random.Generator,
    share: float,
    often: npt.NDArray[np.float64],
    seldom: npt.NDArray[np.float64],
) -> npt.NDArray[np.float64]:
    """``often`` with probability ``share``, else ``seldom``, for each element."""
    return np.where(rng.random(often.size) < share, often, seldom)


def _uniform(rng: np.random.Generator, n: int, capacity: int) -> npt.NDArray[np.float64]:
    return rng.integers(1, capacity + 1, n).astype(np.float64)


def _bimodal(rng: np.random.Generator, n: int, capacity: int) -> npt.NDArray[np.float64]:
    long = rng.normal(0.63 * capacity, 0.12 * capacity, n)
    return _mixture(rng, 0.7, rng.normal(250, 80, n), long)


def _longmix(rng: np.random.Generator, n: int, capacity: int) -> npt.NDArray[np.float64]:
    return _mixture(rng, 0.97, rng.lognormal(6.9, 1.1, n), rng.lognormal(9.3, 0.6, n))


DISTRIBUTIONS: dict[str, Distribution] = {
    distribution.name: distribution
    for distribution in (
        Distribution(
            name="chat",
            definition="lognormal(mu 6.2, sigma 1.0)",
            draw=lambda rng, n, capacity: rng.lognormal(6.2, 1.0, n),
        ),
        Distribution(
            name="bimodal",
            definition="70 % N(250, 80), 30 % N(.63 C, .12 C)",
            draw=_bimodal,
        ),
        Distribution(name="uniform", definition="uniform on 1 to C", draw=_uniform),
        Distribution(
            name="triplet",
            definition="uniform between C/4 and C/2",
            draw=lambda rng, n, capacity: rng.uniform(capacity / 4, capacity / 2, n),
        ),
        Distribution(
            name="code",
            definition="N(1500, 350)",
            draw=lambda rng, n, capacity: rng.normal(1500, 350, n),
            capacities=(4096,),
        ),
        Distribution(
            name="longmix",
            definition="97 % lognormal(6.9, 1.1), 3 % lognormal(9.3, .6)",
            draw=_longmix,
            capacities=(32768,),
        ),
    )
}
