"""How inner loops are compiled: by numba, once, and kept on disk for the next process."""

from __future__ import annotations

import hashlib
import os
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numba
from llvmlite import ir
from numba.extending import intrinsic

_SOURCES = Path(__file__).parent


def compiled[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """Compiles a function at its first call and keeps the machine code on disk.

    numba notices a change in the function's own file, but not in a file whose functions it calls
    (its documentation says so). So the directory is named after the contents of all files here: a
    changed kernel can never run inside an old caller.

    Where nothing can be written, each process compiles for itself, and a warning says so.
    """
    if _CACHE is None:
        return cast(Callable[P, R], numba.njit(function, error_model="numpy"))
    before, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(_CACHE)
    try:
        return cast(Callable[P, R], numba.njit(cache=True, error_model="numpy")(function))
    finally:
        numba.config.CACHE_DIR = before


def _cache_directory() -> Path | None:
    """Where the machine code goes: NUMBA_CACHE_DIR, beside the sources, or the user's cache."""
    digest = hashlib.sha256()
    for source in sorted(_SOURCES.glob("*.py")):
        digest.update(source.name.encode() + source.read_bytes())
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    configured = numba.config.CACHE_DIR
    tried = [Path(configured)] if configured else [_SOURCES / "__pycache__", Path(home) / "stowage"]
    for parent in tried:
        directory = parent / f"packers-{digest.hexdigest()[:16]}"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=directory):
                return directory
        except OSError:
            continue
    warnings.warn(
        f"cannot write to {' or '.join(str(parent) for parent in tried)}: the packers are compiled "
        "anew in every process, which takes seconds; set NUMBA_CACHE_DIR to a directory that can "
        "be written to",
        RuntimeWarning,
        stacklevel=2,
    )
    return None


_CACHE = _cache_directory()


def _count_zeros(instruction: str) -> Callable[..., Any]:
    """The processor's own instruction, which numba does not offer by itself."""

    def typed(context: Any, word: Any) -> tuple[Any, Any]:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            zero_is_undefined = ir.Constant(ir.IntType(1), 1)
            return getattr(builder, instruction)(arguments[0], zero_is_undefined)

        return numba.int64(numba.uint64), generate

    return typed


leading_zeros = intrinsic(_count_zeros("ctlz"))
trailing_zeros = intrinsic(_count_zeros("cttz"))


@intrinsic  # type: ignore[untyped-decorator]
def prefetch(context: Any, array: Any, index: Any) -> tuple[Any, Any]:
    """Asks the processor to bring ``array[index]`` into its cache; any index is allowed.

    Lengths and places of millions of samples do not fit into the caches, and a processor that walks
    along thousands of streams at once does not see them coming by itself.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        address = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
        word = ir.IntType(32)
        name = "llvm.prefetch.p0"
        function = builder.module.globals.get(name) or ir.Function(
            builder.module, ir.FunctionType(ir.VoidType(), [address.type, word, word, word]), name
        )
        to_write, keep_close, data_not_code = word(1), word(3), word(1)
        builder.call(function, [address, to_write, keep_close, data_not_code])
        return context.get_dummy_value()

    return numba.void(array, index), generate


@compiled
def _ready() -> bool:
    """Does nothing, but numba prepares itself at the first call of anything: a quarter second."""
    return True


_ready()  # so that it is part of the import, and no packer's first call stands out
