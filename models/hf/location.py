"""Where ``model.init_from`` points: a directory, the Hugging Face Hub, a GGUF file. No torch."""

from __future__ import annotations

import re
from pathlib import Path

# organisation/name, each as the Hub allows it; no path that starts with a dot.
_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_CONFIG_FILES = ["config.json", "generation_config.json"]
_WEIGHT_FILES = ["model*.safetensors", "model.safetensors.index.json"]


def locate(init_from: str, *, weights: bool = False) -> Path:
    """The directory or GGUF file that is meant; from the Hub, fetched into its cache if need be.

    Args:
        init_from: as configured.
        weights: whether more than the configuration is needed.

    Raises:
        ValueError: there is nothing of that name.
    """
    path = Path(init_from).expanduser()
    if path.is_dir():
        return path
    if path.is_file():
        if path.suffix == ".gguf":
            return path
        raise ValueError(
            f"init_from={init_from}: is a file, and no GGUF file (*.gguf); name the directory that "
            "holds config.json, or a GGUF file"
        )
    if _HUB_ID.fullmatch(init_from):
        return _from_hub(init_from, weights)
    raise ValueError(
        f"init_from={init_from}: does not exist, and is no id on the Hugging Face Hub, which has "
        "the form organisation/name"
    )


def _from_hub(name: str, weights: bool) -> Path:
    import huggingface_hub
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    patterns = _CONFIG_FILES + (_WEIGHT_FILES if weights else [])
    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=patterns))
    except GatedRepoError as error:
        why = "the Hub gives it to those only whom its owner admits; ask for that there, then run "
        raise ValueError(f"init_from={name}: {why}hf auth login") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ValueError(
            f"init_from={name}: neither a directory here nor a model on the Hugging Face Hub"
        ) from error
    except OSError as error:
        cache = huggingface_hub.constants.HF_HUB_CACHE
        raise ValueError(
            f"init_from={name}: is no directory here, is not in the Hub's cache ({cache}), and the "
            f"Hub cannot be reached; fetch it where there is a network (hf download {name}), or "
            "name a directory"
        ) from error
