"""What a run leaves in its directory besides the metrics: JSON files, each written whole."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from enum import Enum
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch

from data.jsonl import Records
from data.packing.settings import PackingSettings
from data.sources.base import PreparedData
from models.lora_settings import LoRASettings
from sft.config import RunConfig
from sft.errors import ConfigError
from sft.launch import ALONE, Place
from sft.parallel_settings import ParallelSettings
from sft.settings import EvalSettings, LossSettings, ResumeSettings, TrainSettings

# Parts of the settings that are always of one class, so that no key names it.
_SECTIONS = (
    RunConfig,
    LoRASettings,
    PackingSettings,
    ParallelSettings,
    LossSettings,
    TrainSettings,
    EvalSettings,
    ResumeSettings,
)
_PACKAGES = (
    "torch",
    "megatron-core",
    "megatron-energon",
    "transformer-engine",
    "numpy",
    "hydra-core",
)


def claim_run_dir(run_dir: Path) -> None:
    """Make the directory, or refuse one that already holds a run.

    Raises:
        ConfigError: ``run_dir`` holds a run, or cannot be written.
    """
    if run_dir.exists() and not run_dir.is_dir():
        raise ConfigError(f"run_dir={run_dir}: is a file; name a directory")
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        (run_dir / "run.json").open("x").close()
    except FileExistsError:
        raise ConfigError(
            f"run_dir={run_dir}: already holds a run; choose another directory or remove it, or "
            "use resume=auto to go on with it"
        ) from None
    except OSError as error:
        raise ConfigError(f"run_dir={run_dir}: cannot be written ({error.strerror})") from error


def describe_run(
    config: RunConfig,
    kernels: str,
    data: PreparedData,
    started_at: datetime.datetime,
    place: Place = ALONE,
) -> dict[str, Any]:
    """The content of ``run.json``: enough to know what was run, on what, and to run it again.

    Args:
        config: resolved.
        kernels: whose, and why.
        data: what is trained and validated on.
        started_at: when the run started, with its time zone.
        place: of this process among those of the run.
    """
    return {
        "config": plain(config),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "started_at": started_at.isoformat(),
        "data": {"train": describe_records(data.train), "val": describe_records(data.val)},
        "tokenizer": config.data.tokenizer or config.model.init_from or "bytes",
        "versions": {"python": platform.python_version(), **_versions()},
        "git_commit": _git_commit(),
        "hardware": _hardware(),
        "kernels": kernels,
        "processes": {"count": place.world_size, "on_this_machine": place.local_world_size},
    }


def plain(value: Any) -> Any:
    """Settings as JSON, as they can be given: components with their class, enums by value."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        content = {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        if isinstance(value, _SECTIONS):
            return content
        return {"_target_": f"{type(value).__module__}.{type(value).__qualname__}", **content}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {k: plain(v) for k, v in value.items()}
    return value


def describe_records(records: Records) -> dict[str, Any]:
    """How many conversations, and a hash: equal for equal ones in one order, as often each."""
    digest = blake2b(records.fingerprints.astype("<u8").tobytes(), digest_size=16)
    for share in records.shares:
        digest.update(f"{share.rows} rows {share.per_epoch} times\n".encode())
    return {"conversations": len(records), "fingerprint": digest.hexdigest()}


def _versions() -> dict[str, str]:
    found = {}
    for name in ("stowage", *_PACKAGES):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _git_commit() -> str | None:
    root = Path(__file__).resolve().parent.parent
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None  # not a checkout, or no git: an image, say
    return done.stdout.strip()


def _hardware() -> dict[str, Any]:
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "cpu": _cpu_name(),
        "cpu_cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "gpus": gpus,
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
