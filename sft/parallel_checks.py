"""Whether the parallel layout fits the processes and the model. No torch here."""

from __future__ import annotations

from sft.config import RunConfig
from sft.errors import ConfigError
from sft.parallel_settings import ParallelSettings


def check_parallel(config: RunConfig, world_size: int) -> None:
    """Refuse a layout that does not fit the number of processes, or the model.

    Args:
        config: the run's.
        world_size: processes of the run.

    Raises:
        ConfigError: naming the sizes, and numbers that would do.
    """
    _check_processes(config.parallel, world_size)
    _check_model(config)


def _check_processes(parallel: ParallelSettings, world_size: int) -> None:
    needed = parallel.model_ranks
    if world_size % needed:
        sizes = {"tp": parallel.tp, "pp": parallel.pp, "cp": parallel.cp}
        named = [f"parallel.{name}={size}" for name, size in sizes.items() if size > 1]
        product = "" if len(named) == 1 else f" take {needed} together, and"
        raise ConfigError(
            f"{' '.join(named)}:{product} the number of processes must be a multiple of {needed}; "
            f"there {'is 1' if world_size == 1 else f'are {world_size}'}. Start them with torchrun "
            f"--nproc-per-node {needed} train.py ..., or make the sizes smaller"
        )


def _check_model(config: RunConfig) -> None:
    parallel, model = config.parallel, config.model
    for what, value in (
        ("num_attention_heads", model.num_attention_heads),
        ("ffn_hidden_size", model.ffn_hidden_size),
        ("hidden_size", model.hidden_size if parallel.sp else 0),
    ):
        if value % parallel.tp:
            raise ConfigError(
                f"parallel.tp={parallel.tp}: must divide model.{what}={value}; use "
                f"{_divisors(value)}"
            )
    tp, groups = parallel.tp, model.num_query_groups
    if tp % groups and groups % tp:
        raise ConfigError(
            f"parallel.tp={tp}: must divide model.num_query_groups={groups} or be a multiple of "
            f"it; use {_divisors(groups)}"
        )
    if model.vocab_multiple % parallel.tp:
        raise ConfigError(
            f"parallel.tp={parallel.tp}: must divide model.vocab_multiple={model.vocab_multiple}, "
            "to which the embedding is padded; use model.vocab_multiple="
            f"{model.vocab_multiple * parallel.tp}"
        )
    stages = parallel.pp * parallel.virtual_stages
    if model.num_layers % stages:
        virtual = f" parallel.virtual_stages={parallel.virtual_stages}"
        raise ConfigError(
            f"parallel.pp={parallel.pp}{virtual if parallel.virtual_stages > 1 else ''}: "
            f"{stages} must divide model.num_layers={model.num_layers}; use "
            f"{_divisors(model.num_layers)} stages"
        )


def _divisors(number: int) -> str:
    found = [str(n) for n in range(1, number + 1) if number % n == 0]
    return found[0] if len(found) == 1 else f"{', '.join(found[:-1])} or {found[-1]}"
