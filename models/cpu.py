"""Everything Megatron-Core needs to run on a machine without CUDA, in one place.

Megatron-Core 0.19 names the CUDA device outright in a few dozen places. Here each such call is
led to the CPU. Where CUDA exists, :func:`adapt_to_cpu` does nothing. Where it does not, every
call changed here would have raised, so nothing that worked before behaves differently;
``Tensor.type`` is the one exception and says so.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_CPU = torch.device("cpu")
_adapted = False


def adapt_to_cpu() -> None:
    """Lead Megatron-Core's CUDA calls to the CPU; once per process, nothing where CUDA exists."""
    global _adapted
    if _adapted or torch.cuda.is_available():
        return
    _adapted = True
    _lead_device_queries()
    _lead_factories()
    _name_tensor_types()
    _keep_random_states()


def _lead_device_queries() -> None:
    # RoPE, the tensor-parallel layers and the gradient buffers ask where to put their tensors.
    torch.cuda.current_device = lambda: _CPU  # type: ignore[assignment,return-value]
    # The schedules fence their timers, and the optimizer empties the caching allocator.
    torch.cuda.synchronize = lambda *_, **__: None
    torch.cuda.empty_cache = lambda: None
    # Gradient synchronisation orders itself against the current stream.
    torch.cuda.current_stream = lambda *_: _NoStream()  # type: ignore[assignment]
    # Gradient norms and optimizer state are moved "to the GPU" before they are reduced.
    torch.Tensor.cuda = lambda self, *_, **__: self  # type: ignore[method-assign]


class _NoStream:
    """Stands in for a CUDA stream: on a CPU every operation is finished when it returns."""

    def wait_stream(self, _stream: object) -> None:
        """Nothing to wait for."""

    def wait_event(self, _event: object) -> None:
        """Nothing to wait for."""


def _lead_factories() -> None:
    # The schedules' token counter, gradient clipping and the optimizers' scales are made with
    # device="cuda". Only a call that names CUDA is touched.
    def on_cpu(factory: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(factory)
        def make(*args: Any, **kwargs: Any) -> Any:
            device = kwargs.get("device")
            if device is not None and torch.device(device).type == "cuda":
                kwargs["device"] = _CPU
            return factory(*args, **kwargs)

        return make

    # What ``with torch.device(...)`` applies to, torch looks up by name the first time and keeps:
    # let it find its own functions. Libraries build their models on the meta device like that.
    with torch.device("cpu"):
        torch.empty(0)
    for name in (
        "tensor",
        "as_tensor",
        "zeros",
        "ones",
        "empty",
        "full",
        "arange",
        "zeros_like",
        "ones_like",
        "empty_like",
    ):
        setattr(torch, name, on_cpu(getattr(torch, name)))


class _TensorTypeName(str):
    """``torch.FloatTensor``, equal to ``torch.cuda.FloatTensor`` as well."""

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) or (
            isinstance(other, str) and str.__eq__(self, other.replace("torch.cuda.", "torch.", 1))
        )

    __hash__ = str.__hash__


def _name_tensor_types() -> None:
    # The optimizers and gradient clipping tell precisions apart by comparing Tensor.type() with
    # "torch.cuda.FloatTensor" and refuse anything else. The name stays an ordinary string in
    # every other respect.
    original = torch.Tensor.type

    def type_name(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        return _TensorTypeName(result) if isinstance(result, str) else result

    torch.Tensor.type = type_name  # type: ignore[assignment, method-assign]


def _keep_random_states() -> None:
    # Megatron-Core draws under a tracker that keeps a state of the CUDA generator for each kind
    # of region. Here it keeps states of the CPU's.
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker

    def add(self: Any, name: str, seed: int) -> None:
        assert name not in self.states_ and seed not in self.seeds_
        self._is_initialized = True
        self.seeds_.add(seed)
        self.states_[name] = torch.Generator().manual_seed(seed).get_state()

    @contextmanager
    def fork(self: Any, name: str = "model-parallel-rng") -> Iterator[None]:
        outside = torch.get_rng_state()
        torch.set_rng_state(self.states_[name])
        try:
            yield
        finally:
            self.states_[name] = torch.get_rng_state()
            torch.set_rng_state(outside)

    CudaRNGStatesTracker.add = add
    CudaRNGStatesTracker.fork = fork
    # It would be kept for a generator that never comes to be.
    torch.cuda.manual_seed = lambda seed: None
