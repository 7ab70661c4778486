"""From Hydra's composed tree to frozen, typed settings; everything wrong is refused here.

A component (packer, data source, model shape, optimizer, schedule, logger) is a frozen dataclass
that is its own schema: ``_target_`` names the class, and the class says which keys there are and
what type they have. There is no list of components anywhere. No torch is imported here: a wrong
setting costs no waiting.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException, ValidationError

from data.packers.base import Packer
from data.packing.settings import PackingSettings
from data.sources.base import DataSource
from models.shapes import GPTShape
from sft.errors import ConfigError
from sft.loggers.base import MetricLogger
from sft.optimizers import Optimizer
from sft.schedules import Schedule
from sft.settings import LossSettings, TrainSettings


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
        data: where the conversations come from.
        packing: who packs, and into what.
        packer: with which algorithm.
        optimizer: with its peak learning rate.
        schedule: of the learning rate.
        loss: how it is averaged.
        train: how long, and how much per step.
        logger: where metrics go besides ``metrics.jsonl``, by name.
    """

    seed: int
    run_dir: Path
    attention: Attention
    model: GPTShape
    data: DataSource
    packing: PackingSettings
    packer: Packer
    optimizer: Optimizer
    schedule: Schedule
    loss: LossSettings
    train: TrainSettings
    logger: Mapping[str, MetricLogger]


_COMPONENTS: dict[str, type[Any]] = {
    "model": GPTShape,
    "data": DataSource,
    "packer": Packer,
    "optimizer": Optimizer,
    "schedule": Schedule,
}
_SECTIONS: dict[str, type[Any]] = {
    "packing": PackingSettings,
    "loss": LossSettings,
    "train": TrainSettings,
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
    for name, schema in _SECTIONS.items():
        values[name] = structured(_mapping(plain.get(name), name), schema, name)
    values["logger"] = {
        name: component(node, MetricLogger, f"logger.{name}")
        for name, node in _mapping(plain.get("logger", {}), "logger").items()
    }
    return RunConfig(**values)


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
            f"{key}._target_={_show(target)}: must name a class, as package.module.Class"
        )
    return structured(settings, _component_class(target, base, key), key)


def _component_class(target: str, base: type[Any], key: str) -> type[Any]:
    module_name, _, class_name = target.rpartition(".")
    wanted = f"{key}._target_={target}: must name a {base.__name__} dataclass"
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except ImportError as error:
        raise ConfigError(
            f"{wanted}, and {module_name} cannot be imported ({error}). A module outside this "
            "repository must be on PYTHONPATH"
        ) from error
    except AttributeError:
        raise ConfigError(f"{wanted}, and {module_name} has no {class_name}") from None
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
                f"({_type_name(hints[f.name])})"
            )
    converted = {}
    for name, value in settings.items():
        converted[name] = _enum_member(value, hints[name], f"{key}.{name}")
        if hints[name] is bool and isinstance(value, int) and value not in (0, 1):
            raise ConfigError(f"{key}.{name}={value}: must be {_type_name(bool)}")
    try:
        merged = OmegaConf.merge(OmegaConf.structured(schema), converted)
        return typing.cast(T, OmegaConf.to_object(merged))
    except ValidationError as error:
        name = str(error.full_key or "").split(".")[-1]
        raise ConfigError(
            f"{key}.{name}={_show(settings.get(name))}: must be {_type_name(hints.get(name))}"
        ) from error
    except ValueError as error:
        raise ConfigError(_with_key(str(error), key)) from error
    except OmegaConfBaseException as error:
        raise ConfigError(f"{key}: {first_line(error)}") from error


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant."""
    by_lower = {k.lower(): k for k in known}
    matches = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[matches[0]] if matches else None


def first_line(error: OmegaConfBaseException) -> str:
    """What OmegaConf says, without the lines on its own types that follow."""
    return str(error).strip().partition("\n")[0]


def _plain(tree: DictConfig) -> dict[str, Any]:
    try:
        container = OmegaConf.to_container(tree, resolve=True)
    except OmegaConfBaseException as error:
        key = str(error.full_key or "")
        value: Any = OmegaConf.to_container(tree, resolve=False)
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        given = "" if value is None else f"={_show(value)}"
        raise ConfigError(f"{key}{given}: {first_line(error)}") from error
    return typing.cast(dict[str, Any], container)


def _mapping(node: Any, key: str) -> Mapping[str, Any]:
    if not isinstance(node, Mapping):
        why = "it cannot be removed or null" if node is None else "not one value"
        raise ConfigError(f"{key}={_show(node)}: a group of settings must stand here, {why}")
    return node


def _scalar[T](plain: Mapping[str, Any], key: str, kind: type[T]) -> T:
    value = plain.get(key)
    if issubclass(kind, Enum):
        return typing.cast(T, _enum_member(value, kind, key))
    if type(value) is not kind:
        raise ConfigError(f"{key}={_show(value)}: must be {_type_name(kind)}")
    return value


def _refuse_unknown(settings: Mapping[str, Any], known: list[str], *, prefix: str) -> None:
    for name, value in settings.items():
        if name not in known:
            raise ConfigError(unknown_key(f"{prefix}{name}", value, known))


def unknown_key(key: str, value: Any, known: Iterable[str]) -> str:
    """What a user is told about a key that does not exist."""
    known = sorted(known)
    prefix, _, name = key.rpartition(".")
    guess = closest(name, known)
    hint = f" Did you mean {prefix}{'.' if prefix else ''}{guess}?" if guess else ""
    where = f"in {prefix}" if prefix else "at the top level"
    keys = ", ".join(known) or "none"
    return f"{key}={_show(value)}: there is no such key.{hint} Keys {where}: {keys}"


def _enum_member(value: Any, hint: Any, key: str) -> Any:
    """Enums are typed by their values; OmegaConf would look for the members' names."""
    kinds = [a for a in _alternatives(hint) if isinstance(a, type) and issubclass(a, Enum)]
    if not kinds or (value is None and type(None) in _alternatives(hint)):
        return value
    try:
        return kinds[0](value)
    except ValueError:
        raise ConfigError(f"{key}={_show(value)}: must be {_type_name(hint)}") from None


def _alternatives(hint: Any) -> tuple[Any, ...]:
    is_union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    return typing.get_args(hint) if is_union else (hint,)


_TYPE_NAMES = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    type(None): "null",
}


def _type_name(hint: Any) -> str:
    return " or ".join(map(_kind_name, _alternatives(hint)))


def _kind_name(kind: Any) -> str:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "one of " + ", ".join(str(member.value) for member in kind)
    return _TYPE_NAMES.get(kind, getattr(kind, "__name__", "?"))


def _show(value: Any) -> str:
    """A value as it is written on the command line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}: {_show(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_show, value)) + "]"
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _with_key(message: str, key: str) -> str:
    """A component checks itself without knowing which key it stands under."""
    return message if message.startswith(f"{key}.") else f"{key}.{message}"
