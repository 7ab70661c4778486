"""Energon's YAML files, and what is said of one that is none."""

from __future__ import annotations

from typing import Any

from data.errors import DataError, first_line
from data.files.places import Place


def read_yaml(file: Place, *, key: str) -> Any:
    """The content of a YAML file.

    Args:
        file: the file.
        key: the configuration key that led to it, for messages.

    Raises:
        DataError: it is no YAML.
        OSError: it cannot be read.
    """
    import yaml  # type: ignore[import-untyped]

    try:
        return yaml.safe_load(file.read())
    except yaml.MarkedYAMLError as error:
        at = error.problem_mark
        where = f", line {at.line + 1}" if at else ""
        raise DataError(f"{key}={file.url}: is no valid YAML{where} ({error.problem})") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that there is not, say
        raise DataError(f"{key}={file.url}: is no valid YAML ({first_line(error)})") from error
