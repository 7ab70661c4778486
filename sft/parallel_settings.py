"""How a model and its rows are shared out over processes: the ``parallel`` group. No torch here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ParallelSettings:
    """The ``parallel`` group. Processes beyond the product of its sizes are data parallel.

    Attributes:
        tp: tensor parallelism; processes that share each weight matrix.
        sp: sequence parallelism; activations between the matrices are shared by position too.
        pp: pipeline parallelism; processes that share the layers.
        virtual_stages: parts of the layers on each process of a pipeline; more than 1 interleaves
            them, which shortens the wait at a step's ends.
        cp: context parallelism; processes that share each row.
        distributed_optimizer: each data-parallel process keeps its part of the optimizer's state.
    """

    tp: int = 1
    sp: bool = False
    pp: int = 1
    virtual_stages: int = 1
    cp: int = 1
    distributed_optimizer: bool = False

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "virtual_stages", "cp"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")
        if self.sp and self.tp == 1:
            raise ValueError(
                "sp=true: the processes that share the positions are those of parallel.tp, which "
                "is 1; use parallel.tp=2 or more, or parallel.sp=false"
            )
        if self.virtual_stages > 1 and self.pp == 1:
            raise ValueError(
                f"virtual_stages={self.virtual_stages}: there is no pipeline to interleave, "
                "parallel.pp is 1; use parallel.pp=2 or more, or parallel.virtual_stages=1"
            )

    @property
    def model_ranks(self) -> int:
        """Processes that train the same rows together."""
        return self.tp * self.pp * self.cp

    def data_parallel(self, world_size: int) -> int:
        """How many times that is there; ``world_size`` is a multiple of :attr:`model_ranks`."""
        assert world_size % self.model_ranks == 0
        return world_size // self.model_ranks

    def replicas(self, world_size: int) -> tuple[int, ...]:
        """The data-parallel index of every process, in Megatron-Core's order: tp, cp, dp, pp.

        Args:
            world_size: processes.

        Returns:
            For each rank of the world its replica, from 0.
        """
        inner, data = self.tp * self.cp, self.data_parallel(world_size)
        return tuple(rank // inner % data for rank in range(world_size))
