"""One of two tensor-parallel ranks: ``python -m tests.models.hf.two_ranks DIR RANK``.

Compares with the logits in ``DIR/expected.pt``, and with the files that the tensors came from.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from models.cpu import adapt_to_cpu
from models.hf.names import parameter_of, take_apart, weights
from models.hf.sources import open_tensors
from tests.models.hf import tiny
from tests.models.hf.ours import loaded, logits_alone, logits_packed

RANKS = 2


def gathered(part: torch.Tensor) -> list[torch.Tensor]:
    """The parts of all ranks."""
    parts = [torch.empty_like(part) for _ in range(RANKS)]
    dist.all_gather(parts, part.contiguous())
    return parts


def compare(directory: Path, expected: list[torch.Tensor]) -> None:
    """Logits, and the way back to the tensors."""
    gpt, shape = loaded(directory, vocab_multiple=RANKS)
    sequences = tiny.sequences()
    alone = [logits_alone(gpt, tokens) for tokens in sequences]
    for ours in (alone, logits_packed(gpt, sequences)):
        for part, theirs in zip(ours, expected, strict=True):
            whole = torch.cat(gathered(part), dim=-1)
            assert whole.shape[-1] == tiny.VOCAB + 1  # a row of padding
            worst = (whole[:, : tiny.VOCAB] - theirs).abs().max()
            assert worst < 1e-5, (directory.name, worst)
    parameters = {name: p.detach() for name, p in gpt.named_parameters()}
    source = open_tensors(str(directory))
    for weight in weights(shape, tiny.VOCAB):
        parts = gathered(parameters[parameter_of(weight, parameters)])
        tensors = take_apart(weight, parts, shape.num_query_groups)
        for name, tensor in zip(weight.tensors, tensors, strict=True):
            assert torch.equal(tensor, source.read(name)), name


def main(directory: Path, rank: int) -> None:
    """Run as one rank."""
    adapt_to_cpu()
    dist.init_process_group(
        "gloo", init_method=f"file://{directory}/meeting", rank=rank, world_size=RANKS
    )
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=RANKS)
    expected = torch.load(directory / "expected.pt", weights_only=True)
    for name, logits in expected.items():
        compare(directory / name, logits)
    if rank == 0:
        (directory / "compared").write_text(" ".join(expected), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
