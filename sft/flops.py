"""Model FLOPs, and the peak that a device could do: what MFU is made of. No torch here.

Model FLOPs are what training on the real tokens takes, whoever packs them and however:

- the blocks' matrices, at every real token;
- attention, causal and inside each sample: the sum of the squared lengths, not of the rows;
- the output layer, at the tokens that count in the loss: nowhere else is a logit needed, and
  nowhere else does this project compute one.

Forward and backward both count. Padding does not, nor what a kernel recomputes. So more FLOPs a
second mean more training a second. Where others count the output layer at every position, or
attention over whole rows, their MFU comes out higher for the same speed.

With LoRA a frozen matrix takes 4 FLOPs a weight and token instead of 6: its own gradient, a third
of it all, is not computed. Adapters take 6. So the same tokens are fewer FLOPs than without LoRA.
What lies below the lowest adapter needs no gradient of its input either; that is not taken off.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from models.lora_settings import LoRASettings
from models.shapes import GPTShape


@dataclass(frozen=True, kw_only=True)
class TrainingFlops:
    """FLOPs of training, forward and backward, by what they grow with.

    Attributes:
        per_token: in the blocks, but for attention itself.
        per_squared_token: in causal attention, per squared length of a sample.
        per_loss_token: in the output layer.
    """

    per_token: int
    per_squared_token: int
    per_loss_token: int

    @classmethod
    def of(
        cls, shape: GPTShape, tokenizer_vocab_size: int, lora: LoRASettings | None = None
    ) -> TrainingFlops:
        """The FLOPs of a model of this shape, with adapters where ``lora`` has a rank."""
        output_layer = 6 * shape.padded_vocab_size(tokenizer_vocab_size) * shape.hidden_size
        blocks = shape.flops_per_token(tokenizer_vocab_size) - output_layer
        if lora is not None and lora.rank is not None:
            output_layer = output_layer // 3 * 2
            blocks = blocks // 3 * 2 + 6 * lora.parameter_count(shape)
        return cls(
            per_token=blocks,
            per_squared_token=shape.flops_per_squared_token(),
            per_loss_token=output_layer,
        )

    def count(self, *, tokens: int, squared_lengths: int, loss_tokens: int) -> int:
        """FLOPs of so many tokens, in segments whose squared lengths sum to so much."""
        return (
            self.per_token * tokens
            + self.per_squared_token * squared_lengths
            + self.per_loss_token * loss_tokens
        )


# Dense peaks of the tensor cores in TFLOP/s: bfloat16, and float32 multiplied as TF32. From
# NVIDIA's data sheets, halved where these quote 2:4 sparsity. Whole names as CUDA reports them:
# variants of one chip differ (an H100 NVL is no H100 PCIe), and a MIG slice is not the chip.
_PEAKS: tuple[tuple[str, float, float], ...] = (
    # NVIDIA Blackwell data sheet, per GPU: HGX B200 4.5 and 2.2 PFLOPS sparse, GB200 5 and 2.5.
    (r"B200", 2250, 1100),
    (r"GB200", 2500, 1250),
    # H200 data sheet: SXM 1,979 and 989 sparse, NVL 1,671 and 835.
    (r"H200", 989.5, 494.5),
    (r"H200 NVL", 835.5, 417.5),
    # GH200 data sheet: the GPU of an H100 SXM.
    (r"GH200 (480GB|144G HBM3e)", 989.5, 494.5),
    # H100 data sheet: SXM 1,979 and 989 sparse, NVL 1,671 and 835, PCIe 1,513 and 756.
    (r"H100 80GB HBM3", 989.5, 494.5),
    (r"H100 NVL", 835.5, 417.5),
    (r"H100 PCIe", 756.5, 378),
    # A100 data sheet, every form factor: 312 and 156 dense.
    (r"A100-(SXM4|PCIE|PCIe)-(40|80)GB|A100 80GB PCIe", 312, 156),
    # A30 data sheet: 165 and 82 dense; A40: 149.7 and 74.8 dense; A10: 125 and 62.5 dense.
    (r"A30", 165, 82),
    (r"A40", 149.7, 74.8),
    (r"A10", 125, 62.5),
    # L40S data sheet: 362.05 and 183 dense; L40: 181.05 and 90.5 dense; L4: 242 and 120 sparse.
    (r"L40S", 362.05, 183),
    (r"L40", 181.05, 90.5),
    (r"L4", 121, 60),
)


def peak_flops_per_s(device_name: str, precision: str) -> float | None:
    """The most multiply-adds a device can do in a second, each counted as 2.

    Args:
        device_name: as CUDA reports it.
        precision: of the weights: ``bfloat16``, or ``float32``, for which it is what the tensor
            cores do in TF32. Where TF32 is off that is out of reach, and MFU is low, not flattered.

    Returns:
        The peak, or None where it is not known: a CPU, another device, another precision. None is
        guessed.
    """
    name = device_name.removeprefix("NVIDIA ")
    for pattern, bfloat16, tf32 in _PEAKS:
        if re.fullmatch(pattern, name):
            teraflops = {"bfloat16": bfloat16, "float32": tf32}.get(precision)
            return None if teraflops is None else teraflops * 1e12
    return None
