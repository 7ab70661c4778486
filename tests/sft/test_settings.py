"""What each setting may be, what must fit what, and advice that holds when it is followed."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.packing.settings import PackingMode
from data.padding import required_pad_multiple, round_up
from sft.checks import check
from sft.config import RunConfig, resolve
from sft.errors import ConfigError
from tests.sft.test_config import changed, composed, refusal, settle

# --- each on its own


@pytest.mark.parametrize(
    ("setting", "must"),
    [
        *((f"train.{name}=0", "at least 1") for name in (
            "steps", "epochs", "global_batch_tokens", "global_batch_samples",
            "global_batch_real_tokens", "micro_batch_size", "log_every", "threads",
        )),
        ("train.steps=-5", "at least 1"),
        ("train.eval_every=-1", "at least 0"),
        ("train.speed_skip_steps=-1", "at least 0"),
        ("packing.capacity=1", "at least 2"),
        ("packing.pad_multiple=0", "at least 1"),
        ("packing.buffer_size=0", "at least 1"),
        ("optimizer.lr=0.0", "above 0 and finite"),
        ("optimizer.lr=nan", "above 0 and finite"),
        ("optimizer.weight_decay=-0.1", "at least 0 and finite"),
        ("optimizer.clip_grad_norm=-1.0", "at least 0 and finite"),
        ("optimizer.clip_grad_norm=nan", "at least 0 and finite"),
        ("optimizer.lr=inf", "above 0 and finite"),
        ("model.head_dim=0", "at least 2, or null"),
        ("model.rotary_base=0.0", "above 0"),
        ("model.norm_epsilon=0.0", "above 0"),
        ("model.init_std=nan", "above 0"),
        ("optimizer.beta1=1.0", "at least 0 and below 1"),
        ("optimizer.beta2=-0.1", "at least 0 and below 1"),
        ("optimizer.epsilon=0.0", "above 0"),
        ("schedule.warmup_fraction=1.0", "at least 0 and below 1"),
        ("schedule.warmup_fraction=-0.1", "at least 0 and below 1"),
        ("schedule.min_lr_fraction=1.5", "from 0 to 1"),
        ("schedule.min_lr_fraction=-0.1", "from 0 to 1"),
        *((f"model.{name}=0", "at least 1") for name in (
            "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads",
            "num_query_groups", "context_length", "vocab_multiple",
        )),
        ("model.head_dim=3", "even, rotary positions turn pairs"),
        ("seed=-1", "from 0 to 4294967295"),
        ("seed=4294967296", "from 0 to 4294967295"),
    ],
)  # fmt: skip
def test_out_of_range(setting: str, must: str) -> None:
    assert refusal(changed(setting)) == f"{setting}: must be {must}"


@pytest.mark.parametrize(
    ("overrides", "key", "told"),
    [
        ([], "packer.max_samples_per_bin=0", "at least 1 or null, got 0"),
        (["packer=ffs"], "packer.seed=-1", "0 or more, got -1"),
        (["packer=balanced_greedy_knapsack"], "packer.delta=-1", "0 or more, got -1"),
        ([], "data.val_fraction=1.0", "at least 0 and below 1"),
        ([], "data.val_fraction=-0.1", "at least 0 and below 1"),
        ([], "data.limit=1", "at least 2, to have one conversation to train on and one"),
        ([], "data.num_workers=-1", "at least 0"),
    ],
)
def test_out_of_range_in_components(overrides: list[str], key: str, told: str) -> None:
    message = refusal(composed(*overrides, key))
    assert message.startswith(key.partition("=")[0])
    assert f"must be {told}" in message


def test_an_empty_run_dir_is_not_the_current_directory() -> None:
    assert refusal(changed("run_dir=''")) == "run_dir=: must name a directory"


def test_a_constant_schedule_has_no_lower_end() -> None:
    assert refusal(composed("schedule=constant", "+schedule.min_lr_fraction=0.5")) == (
        "schedule.min_lr_fraction=0.5: a constant schedule has no lower end; remove it or use "
        "schedule=cosine or schedule=linear"
    )


def test_values_at_the_edge_are_accepted() -> None:
    config, _ = settle(
        "train.steps=1", "train.eval_every=0", "train.log_every=1", "train.speed_skip_steps=0",
        "train.threads=1", "train.global_batch_tokens=2", "packing.capacity=2",
        "packing.pad_multiple=1", "packing.buffer_size=1", "optimizer.weight_decay=0",
        "optimizer.clip_grad_norm=0", "optimizer.beta1=0", "schedule.warmup_fraction=0",
        "schedule.min_lr_fraction=1", "data.val_fraction=0", "data.limit=2", "data.num_workers=0",
        "packer.max_samples_per_bin=1", "seed=0",
    )  # fmt: skip
    assert config.packing.loader_buffer_size == 1
    assert (config.optimizer.lr, config.optimizer.clip_grad_norm) == (3e-3, 0.0)
    assert settle("seed=4294967295")[0].seed == 2**32 - 1


# --- with one another


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["train.epochs=1"], "train.steps=100, epochs=1: 2 are set; set exactly one, and the "
         "other to null"),
        (["train.steps=null"], "train.steps=null, epochs=null: none is set; set exactly one, and "
         "the other to null"),
        (["train.global_batch_samples=8"], "train.global_batch_tokens=16384, "
         "global_batch_samples=8, global_batch_real_tokens=null: 2 are set; set exactly one, and "
         "the others to null"),
        (["train.global_batch_tokens=null"], "train.global_batch_tokens=null, "
         "global_batch_samples=null, global_batch_real_tokens=null: none is set; set exactly one, "
         "and the others to null"),
        (["train.global_batch_tokens=null", "train.global_batch_samples=8"],
         "train.global_batch_samples=8: the loader hands over packs, not samples; set "
         "train.global_batch_tokens or train.global_batch_real_tokens, and "
         "train.global_batch_samples=null, or use packing=trainer"),
        (["train.micro_batch_size=2"], "train.micro_batch_size=2: a packed row is its own "
         "microbatch, and packing.mode is loader; remove it, or use packing=none"),
        (["train.micro_batch_size=2", "packing.mode=trainer"], "train.micro_batch_size=2: a packed "
         "row is its own microbatch, and packing.mode is trainer; remove it, or use packing=none"),
        (["packing.buffer_size=8", "packing.mode=trainer"], "packing.buffer_size=8: only the "
         "loader buffers samples, and packing.mode is trainer; remove it or use packing=loader"),
        (["packing.buffer_size=8", "packing.mode=none"], "packing.buffer_size=8: only the loader "
         "buffers samples, and packing.mode is none; remove it or use packing=loader"),
        (["packing.kernel_boundaries=real", "packing.mode=none"], "packing.kernel_boundaries=real: "
         "rows that are not packed have no boundaries; remove it or use packing=trainer or "
         "packing=loader"),
        (["model.num_attention_heads=4", "model.num_query_groups=3"], "model.num_query_groups=3: "
         "must divide num_attention_heads=4"),
        (["model.num_attention_heads=4", "model.head_dim=null", "model.hidden_size=130"],
         "model.hidden_size=130: must be a multiple of num_attention_heads=4, or set head_dim"),
        (["model.vocab_size=261"], "model.vocab_size=261: the tokenizer needs 262 "
         "(data.tokenizer=bytes); use that many or more, or null"),
        (["data.tokenizer=/no/words"], "data.tokenizer=/no/words: does not exist; set "
         "data.tokenizer to a directory with a tokenizer's files, the id of a model on the Hub, a "
         "GGUF file, or bytes"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit(settings: list[str], told: str) -> None:
    assert refusal(changed(*settings)) == told


def test_settings_that_fit() -> None:
    assert settle("train.steps=null", "train.epochs=2")[0].train.epochs == 2
    by_samples = ("train.global_batch_tokens=null", "train.global_batch_samples=8")
    for mode in ("none", "trainer"):
        config, derived = settle(f"packing.mode={mode}", *by_samples)
        assert (config.train.global_batch_samples, derived.packs_per_step) == (8, 0)
    assert settle("packing.mode=none", "train.micro_batch_size=2")[1].micro_batch_size == 2
    assert settle("packing.mode=trainer")[0].packing.real_boundaries
    assert not settle()[0].packing.real_boundaries
    assert settle("packing.kernel_boundaries=real")[0].packing.real_boundaries
    assert settle("packing.mode=trainer", "train.global_batch_tokens=5000")[1].pad_multiple == 1
    assert settle("packing.pad_multiple=16")[1].pad_multiple == 16
    assert settle("model.vocab_size=262")[0].model.padded_vocab_size(262) == 320


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        # Case G7: the key and the two values nearest to it.
        (["packing.capacity=4098", "packing.pad_multiple=8", "model.context_length=8192"],
         "packing.capacity=4098: must be a multiple of the pad multiple 8 (packing.pad_multiple); "
         "use 4096 or 4104"),
        (["packing.pad_multiple=3"], "packing.capacity=4096: must be a multiple of the pad "
         "multiple 3 (packing.pad_multiple); use 4095"),
        (["packing.capacity=4", "packing.pad_multiple=8"], "packing.capacity=4: must be a multiple "
         "of the pad multiple 8 (packing.pad_multiple); use 8"),
        (["packing.pad_multiple=8192"], "packing.capacity=4096: must be a multiple of the pad "
         "multiple 8192 (packing.pad_multiple); use a smaller packing.pad_multiple"),
        (["packing.capacity=9999", "packing.pad_multiple=64", "model.context_length=1000"],
         "packing.capacity=9999: larger than the model's context model.context_length=1000; use "
         "packing.capacity=960 or less, or a model with a longer context"),
        (["packing.capacity=64", "model.context_length=1"], "packing.capacity=64: larger than the "
         "model's context model.context_length=1; use a model with a longer context"),
        (["train.global_batch_tokens=1000"], "train.global_batch_tokens=1000: a step must hold at "
         "least one full row; use train.global_batch_tokens=4096 or more, or a smaller "
         "packing.capacity than 4096"),
        (["train.global_batch_tokens=null", "train.global_batch_real_tokens=1000"],
         "train.global_batch_real_tokens=1000: a step must hold at least one full row; use "
         "train.global_batch_real_tokens=4096 or more, or a smaller packing.capacity than 4096"),
        (["train.global_batch_tokens=5000"], "train.global_batch_tokens=5000: the loader's rows "
         "are packing.capacity=4096 wide, so it must be a multiple of that; use 4096 or 8192"),
    ],
)  # fmt: skip
def test_sizes_that_do_not_fit(settings: list[str], told: str) -> None:
    assert refusal(changed(*settings)) == told


def advice(message: str) -> list[tuple[str, int]]:
    """The values that a refusal offers, each with its key."""
    key, offer = message.partition("=")[0], message.rpartition("; use ")[2]
    if named := re.match(r"([\w.]+)=(\d+)", offer):
        return [(named[1], int(named[2]))]
    return [(key, int(number)) for number in re.findall(r"\b\d+\b", offer)]


def with_value(config: RunConfig, key: str, value: int) -> RunConfig:
    section, _, name = key.partition(".")
    change: dict[str, Any] = {section: replace(getattr(config, section), **{name: value})}
    return replace(config, **change)


def follow(config: RunConfig, refused: tuple[str, ...] = ()) -> int:
    """Do as the refusals say, each way they offer, until nothing is refused; ways that end so."""
    try:
        check(config)
    except ConfigError as error:
        key = str(error).partition("=")[0]
        assert key not in refused, f"{error}: was offered before"
        return sum(
            follow(with_value(config, *offer), (*refused, key)) for offer in advice(str(error))
        )
    return 1


@functools.cache
def default_config() -> RunConfig:
    return resolve(changed())


SIZES = st.integers(2, 300)


@settings(max_examples=300, deadline=None)
@given(
    capacity=SIZES,
    multiple=st.integers(1, 40),
    context=SIZES,
    tokens=st.integers(1, 2000),
    mode=st.sampled_from(PackingMode),
)
def test_offered_values_are_accepted(
    capacity: int, multiple: int, context: int, tokens: int, mode: PackingMode
) -> None:
    config = default_config()
    packing = replace(config.packing, mode=mode, capacity=capacity, pad_multiple=multiple)
    config = replace(config, packing=packing)
    config = with_value(config, "model.context_length", context)
    config = with_value(config, "train.global_batch_tokens", tokens)
    if multiple <= context and context > 1:
        assert follow(config) >= 1
    else:
        with pytest.raises(ConfigError, match=r"; use a "):
            check(config)


# --- the pad multiple


@pytest.mark.parametrize(
    ("layout", "multiple"),
    [
        ({}, 1),
        ({"tensor_parallel": 8}, 1),
        ({"tensor_parallel": 2, "sequence_parallel": True}, 2),
        ({"context_parallel": 2}, 4),
        ({"context_parallel": 3}, 6),
        ({"context_parallel": 2, "tensor_parallel": 2}, 4),
        # The stricter of the two rules in use: 2 CP TP, not lcm(2 CP, CP TP).
        ({"context_parallel": 2, "tensor_parallel": 2, "sequence_parallel": True}, 8),
        ({"context_parallel": 4, "tensor_parallel": 2, "sequence_parallel": True}, 16),
        ({"slab_multiple": 16}, 16),
        ({"slab_multiple": 128, "tensor_parallel": 4}, 128),
        ({"slab_multiple": 128, "tensor_parallel": 4, "sequence_parallel": True}, 512),
        ({"slab_multiple": 32, "context_parallel": 2}, 64),
        ({"slab_multiple": 16, "context_parallel": 2, "tensor_parallel": 3,
          "sequence_parallel": True}, 96),
    ],
)  # fmt: skip
def test_the_pad_multiple(layout: dict[str, Any], multiple: int) -> None:
    assert required_pad_multiple(**layout) == multiple


def test_the_pad_multiple_in_reported_cases() -> None:
    # G3: mxfp8 wants 32 tokens on each of 4 ranks; 31936 / 4 = 7984 is no multiple of 32.
    mxfp8 = required_pad_multiple(tensor_parallel=4, sequence_parallel=True, slab_multiple=32)
    assert (mxfp8, round_up(31936, mxfp8)) == (128, 32000)
    # G4: fp8 wants 16 tokens on each of 2 ranks.
    fp8 = required_pad_multiple(context_parallel=2, slab_multiple=16)
    assert (fp8, round_up(8, fp8)) == (32, 32)
    # G5: 8 tokens on each of 2 ranks; 4088 / 2 = 2044 is no multiple of 8.
    slab8 = required_pad_multiple(tensor_parallel=2, sequence_parallel=True, slab_multiple=8)
    assert (slab8, round_up(4088, slab8)) == (16, 4096)
