"""From Hydra's composed tree to frozen, typed settings; everything wrong is refused here.

A component (packer, data source, model shape, optimizer, schedule, logger) is a frozen dataclass
that is its own schema: ``_target_`` names the class, and the class says which keys there are and
what type they have. There is no list of components anywhere. No torch is imported here: a wrong
setting costs no waiting.
"""

from __future__ import annotations

import importlib
import inspect
import re
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException, ValidationError

from data.packers.base import Packer
from data.packing.settings import PackingSettings
from data.sources.base import DataSource
from models.lora_settings import LoRASettings
from models.shapes import GPTShape, ModelSource
from sft.errors import ConfigError
from sft.loggers.base import MetricLogger
from sft.optimizers import Optimizer
from sft.parallel_settings import ParallelSettings
from sft.schedules import Schedule
from sft.settings import EvalSettings, LossSettings, ResumeSettings, TrainSettings
from sft.wording import alternatives, first_line, show, type_name, unknown_key, with_key


class Attention(Enum):
    """Whose layers and attention kernels to use."""

    AUTO = "auto"
    TRANSFORMER_ENGINE = "transformer_engine"
    TORCH = "torch"


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything a run needs to know, resolved. The fields are the top-level keys.

    Attributes:
        seed: of the weights and of the order of the conversations.
        run_dir: the run's directory.
        attention: whose kernels; ``auto`` takes Transformer Engine's where they can run.
        model: its shape.
        lora: which of its matrices get low-rank adapters, all else frozen.
        data: where the conversations come from.
        packing: who packs, and into what.
        packer: with which algorithm.
        parallel: how model and rows are shared out over processes.
        optimizer: with its peak learning rate.
        schedule: of the learning rate.
        loss: how it is averaged.
        train: how long, and how much per step.
        eval: how validation is packed.
        resume: where the run begins.
        logger: where metrics go besides ``metrics.jsonl``, by name.
    """

    seed: int
    run_dir: Path
    attention: Attention
    model: GPTShape
    lora: LoRASettings
    data: DataSource
    packing: PackingSettings
    packer: Packer
    parallel: ParallelSettings
    optimizer: Optimizer
    schedule: Schedule
    loss: LossSettings
    train: TrainSettings
    eval: EvalSettings
    resume: ResumeSettings
    logger: Mapping[str, MetricLogger]


_COMPONENTS: dict[str, type[Any]] = {
    "model": ModelSource,
    "data": DataSource,
    "packer": Packer,
    "optimizer": Optimizer,
    "schedule": Schedule,
}
_SECTIONS: dict[str, type[Any]] = {
    "lora": LoRASettings,
    "packing": PackingSettings,
    "parallel": ParallelSettings,
    "loss": LossSettings,
    "train": TrainSettings,
    "eval": EvalSettings,
    "resume": ResumeSettings,
}


_MAX_SEED = 2**32 - 1  # what every generator that is seeded with it takes


def resolve(tree: DictConfig) -> RunConfig:
    """Turn the composed tree into typed settings.

    Args:
        tree: without the ``hydra`` node.

    Raises:
        ConfigError: an unknown key, a wrong type, a value out of range, a missing value.
    """
    plain = _plain(tree)
    _refuse_unknown(plain, [f.name for f in fields(RunConfig)], prefix="")
    values: dict[str, Any] = {
        "seed": _scalar(plain, "seed", int),
        "run_dir": Path(_scalar(plain, "run_dir", str)),
        "attention": _scalar(plain, "attention", Attention),
    }
    if not 0 <= values["seed"] <= _MAX_SEED:
        raise ConfigError(f"seed={values['seed']}: must be from 0 to {_MAX_SEED}")
    if not plain["run_dir"]:
        raise ConfigError("run_dir=: must name a directory")
    for name, base in _COMPONENTS.items():
        values[name] = component(plain.get(name), base, name)
    values["model"] = _resolved(values["model"])
    for name, schema in _SECTIONS.items():
        values[name] = structured(_mapping(plain.get(name), name), schema, name)
    values["logger"] = {
        name: component(node, MetricLogger, f"logger.{name}")
        for name, node in _mapping(plain.get("logger", {}), "logger").items()
    }
    return RunConfig(**values)


def _resolved(model: ModelSource) -> GPTShape:
    """The shape that the settings of a model come to, its own configuration read if it has one."""
    try:
        return model.resolve()
    except ValueError as error:
        raise ConfigError(with_key(str(error), "model")) from error


def component(node: Any, base: Any, key: str) -> Any:
    """Build the component that ``node`` describes.

    The class is checked before it is called, so a tree cannot make anything else run.

    Args:
        node: a mapping with ``_target_`` and the class's own keys.
        base: what the class must derive from.
        key: where the node stands, for messages.

    Raises:
        ConfigError: not a component of this kind, or its settings are wrong.
    """
    settings = dict(_mapping(node, key))
    target = settings.pop("_target_", None)
    if not isinstance(target, str) or not all(target.split(".")) or "." not in target:
        raise ConfigError(
            f"{key}._target_={show(target)}: must name a class, as package.module.Class"
        )
    return structured(settings, _component_class(target, base, key), key)


def _component_class(target: str, base: type[Any], key: str) -> type[Any]:
    module_name, _, class_name = target.rpartition(".")
    wanted = f"{key}._target_={target}: must name a {base.__name__} dataclass"
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(
            f"{wanted}, and {module_name} cannot be imported ({error}). A module outside this "
            "repository must be on PYTHONPATH"
        ) from error
    except Exception as error:  # the module may be the user's own, and raise anything
        raise ConfigError(
            f"{wanted}, and {module_name} cannot be imported ({type(error).__name__}: "
            f"{first_line(error)}); mend the module"
        ) from error
    found = getattr(module, class_name, None)
    if found is None:
        raise ConfigError(f"{wanted}, and {module_name} has no {class_name}")
    if not (isinstance(found, type) and issubclass(found, base) and is_dataclass(found)):
        raise ConfigError(wanted)
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise ConfigError(f"{wanted}, and {class_name} is abstract: it does not define {missing}")
    return found


def structured[T](settings: Mapping[str, Any], schema: type[T], key: str) -> T:
    """Make a ``schema`` of ``settings``, with OmegaConf checking keys and types.

    Raises:
        ConfigError: naming the key, the value, and what is allowed.
    """
    hints = typing.get_type_hints(schema)
    known = [f.name for f in fields(typing.cast(Any, schema)) if f.init]
    _refuse_unknown(settings, known, prefix=f"{key}.")
    for f in fields(typing.cast(Any, schema)):
        has_default = f.default is not MISSING or f.default_factory is not MISSING
        if settings.get(f.name, "???" if not has_default else None) == "???":
            raise ConfigError(
                f"{key}.{f.name}: has no value and needs one: {key}.{f.name}=... "
                f"({type_name(hints[f.name])})"
            )
    parts = _nested(settings, hints, key)
    converted = {}
    for name, value in settings.items():
        if name in parts:
            continue
        converted[name] = _enum_member(value, hints[name], f"{key}.{name}")
        if hints[name] is bool and isinstance(value, int) and value not in (0, 1):
            raise ConfigError(f"{key}.{name}={value}: must be {type_name(bool)}")
    try:
        merged = OmegaConf.merge(OmegaConf.structured(schema), converted)
        made = typing.cast(T, OmegaConf.to_object(merged))
        return replace(typing.cast(Any, made), **parts) if parts else made
    except ValidationError as error:
        # Of a value within a value, as columns.prompt or targets[0], the whole is shown.
        name = next((n for n in re.split(r"[.\[]", str(error.full_key)) if n in hints), "")
        raise ConfigError(
            f"{key}.{name}={show(settings.get(name))}: must be {type_name(hints.get(name))}"
        ) from error
    except ValueError as error:
        raise ConfigError(with_key(str(error), key)) from error
    except OmegaConfBaseException as error:
        raise ConfigError(f"{key}: {first_line(error)}") from error


def _nested(settings: Mapping[str, Any], hints: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Fields that are components of their own, built; OmegaConf takes no frozen ones as values."""
    built = {}
    for name, value in settings.items():
        kinds = [a for a in alternatives(hints[name]) if is_dataclass(a)]
        if kinds and value is not None:
            built[name] = component(value, kinds[0], f"{key}.{name}")
    return built


def _plain(tree: DictConfig) -> dict[str, Any]:
    try:
        container = OmegaConf.to_container(tree, resolve=True)
    except OmegaConfBaseException as error:
        key = str(error.full_key or "")
        value: Any = OmegaConf.to_container(tree, resolve=False)
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        given = "" if value is None else f"={show(value)}"
        raise ConfigError(f"{key}{given}: {first_line(error)}") from error
    return typing.cast(dict[str, Any], container)


def _mapping(node: Any, key: str) -> Mapping[str, Any]:
    if not isinstance(node, Mapping):
        why = "it cannot be removed or null" if node is None else "not one value"
        raise ConfigError(f"{key}={show(node)}: a group of settings must stand here, {why}")
    return node


def _scalar[T](plain: Mapping[str, Any], key: str, kind: type[T]) -> T:
    value = plain.get(key)
    if issubclass(kind, Enum):
        return typing.cast(T, _enum_member(value, kind, key))
    if type(value) is not kind:
        raise ConfigError(f"{key}={show(value)}: must be {type_name(kind)}")
    return value


def _refuse_unknown(settings: Mapping[str, Any], known: list[str], *, prefix: str) -> None:
    for name, value in settings.items():
        if name not in known:
            raise ConfigError(unknown_key(f"{prefix}{name}", value, known))


def _enum_member(value: Any, hint: Any, key: str) -> Any:
    """Enums are typed by their values; OmegaConf would look for the members' names."""
    kinds = [a for a in alternatives(hint) if isinstance(a, type) and issubclass(a, Enum)]
    if not kinds or (value is None and type(None) in alternatives(hint)):
        return value
    try:
        return kinds[0](value)
    except ValueError:
        raise ConfigError(f"{key}={show(value)}: must be {type_name(hint)}") from None
