"""What a person is told about a run before it starts."""

from __future__ import annotations

from data.packing.settings import PackingMode
from data.sources.base import PreparedData
from models.lora_settings import LoRASettings
from sft.build import Trainee
from sft.checks import Derived
from sft.config import RunConfig
from sft.feed import StepPlan
from sft.launch import Place
from sft.parallel_settings import ParallelSettings
from sft.resume import Start


def header(
    config: RunConfig,
    derived: Derived,
    data: PreparedData,
    trainee: Trainee,
    plan: StepPlan,
    kernels: str,
    place: Place,
    start: Start,
) -> dict[str, str]:
    """What a run is, a fact a line.

    Args:
        config: the run's.
        derived: what follows from it.
        data: what is trained on.
        trainee: the model.
        plan: the steps.
        kernels: whose, and why.
        place: of this process among those of the run.
        start: where it begins.
    """
    packing, train = config.packing, config.train
    if packing.mode is PackingMode.NONE:
        who = f"none: rectangles of {derived.micro_batch_size} conversations"
    else:
        who = f"{packing.mode.value}, {type(config.packer).__name__}"
        if packing.mode is PackingMode.LOADER:
            who += f", over up to {packing.loader_buffer_size} samples at a time"
    if plan.real_tokens is not None:
        batch = f"{float(plan.real_tokens):,.0f} real tokens"
    elif train.global_batch_tokens is not None:
        batch = f"{train.global_batch_tokens:,} slots"
    else:
        batch = f"{train.global_batch_samples:,} conversations"
    return {
        "model": f"{trainee.parameters + trainee.frozen_parameters:,} parameters, "
        f"{config.model.num_layers} layers of {config.model.hidden_size}",
        **({"weights": config.model.init_from} if config.model.init_from else {}),
        **_lora_facts(config.lora, trainee),
        "kernels": kernels,
        **_layout(config.parallel, place),
        "data": f"{data.name}: {len(data.train):,} conversations to train on, "
        f"{len(data.val):,} to validate on",
        "packing": who,
        "capacity": f"{packing.capacity:,} tokens, pad multiple {derived.pad_multiple}",
        "batch": f"{batch} per step, {plan.steps:,} steps",
        "run": str(config.run_dir),
        **({"goes on": f"after step {start.steps:,}, {start.checkpoint}"} if start.steps else {}),
    }


def _lora_facts(lora: LoRASettings, trainee: Trainee) -> dict[str, str]:
    if lora.rank is None:
        return {}
    share = trainee.parameters / (trainee.parameters + trainee.frozen_parameters)
    return {
        "lora": f"{trainee.parameters:,} parameters trained, {share:.2%} of all: rank {lora.rank}, "
        f"alpha {lora.resolved_alpha:g}, on {', '.join(lora.matrices)}"
    }


def _layout(parallel: ParallelSettings, place: Place) -> dict[str, str]:
    if place.alone:
        return {}
    names = {
        "tensor": parallel.tp,
        "pipeline": parallel.pp,
        "context": parallel.cp,
        "data": parallel.data_parallel(place.world_size),
    }
    sizes = ", ".join(f"{name} {size}" for name, size in names.items() if size > 1)
    extras = [
        text
        for text, there in (
            ("sequence parallel", parallel.sp),
            (f"{parallel.virtual_stages} virtual stages", parallel.virtual_stages > 1),
            ("distributed optimizer", parallel.distributed_optimizer),
        )
        if there
    ]
    return {"processes": f"{place.world_size}: " + ", ".join([f"{sizes} parallel", *extras])}
