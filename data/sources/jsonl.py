"""The older name of :mod:`data.sources.files`, which runs and configurations still use."""

from data.sources.files import FilesSource as JsonlSource

__all__ = ["JsonlSource"]
