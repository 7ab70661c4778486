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
    if not init_from:  # as a path it would be the directory that the program was started in
        raise ValueError(
            "init_from=: must name a directory as transformers saves it, a model on the Hugging "
            "Face Hub, or a GGUF file"
        )
    path, is_dir, is_file = _look_at(init_from)
    if is_dir:
        return path
    if is_file:
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


def _look_at(init_from: str) -> tuple[Path, bool, bool]:
    """The path, and whether it is a directory or a file."""
    try:
        path = Path(init_from).expanduser()
        return path, path.is_dir(), path.is_file()
    except RuntimeError as error:  # from expanduser
        raise ValueError(
            f"init_from={init_from}: there is no such home directory; write the path without ~"
        ) from error
    except OSError as error:  # no permission on the way there, a name that is too long
        raise ValueError(
            f"init_from={init_from}: cannot be read ({error.strerror or error}); name a directory "
            "or a GGUF file that this user may read"
        ) from error


def _from_hub(name: str, weights: bool) -> Path:
    import huggingface_hub
    from huggingface_hub import errors

    patterns = _CONFIG_FILES + (_WEIGHT_FILES if weights else [])
    cache = huggingface_hub.constants.HF_HUB_CACHE
    advice = f"fetch it where there is a network (hf download {name}), or name a directory"
    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=patterns))
    except errors.GatedRepoError as error:
        why = "the Hub gives it to those only whom its owner admits; ask for that there, then run "
        raise ValueError(f"init_from={name}: {why}hf auth login") from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise ValueError(
            f"init_from={name}: neither a directory here nor a model on the Hugging Face Hub; "
            "correct the name, or run hf auth login if the model is private"
        ) from error
    except Exception as error:  # its own, its HTTP library's and the system's have no common class
        is_missing = isinstance(error, errors.LocalEntryNotFoundError)
        cause = error.__cause__ if is_missing else error
        if is_missing and not isinstance(cause, errors.HfHubHTTPError):
            why = f"is not in the Hub's cache ({cache}), and the Hub cannot be reached; {advice}"
            raise ValueError(f"init_from={name}: is no directory here, {why}") from error
        raise ValueError(
            f"init_from={name}: cannot be fetched from the Hub into its cache at {cache} "
            f"({_said(cause)}); mend that, or {advice}"
        ) from error


def _said(error: BaseException | None) -> str:
    """What an error says, without the advice that the Hub's client writes below."""
    reason = error.strerror if isinstance(error, OSError) else None
    return reason or str(error).strip().partition("\n")[0]
