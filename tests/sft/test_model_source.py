"""``model`` from settings to a shape: published models, scalings, and the way back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from models.rope_scaling import LinearScaling, Llama3Scaling
from models.shapes import GPTShape
from sft.config import resolve
from sft.errors import ConfigError
from tests.conftest import CONF_DIR
from tests.models.hf.test_shape import LLAMA_3_1, QWEN2, SMOLLM2, write


def composed(*overrides: str) -> DictConfig:
    with initialize_config_dir(CONF_DIR, version_base="1.3"):
        return compose("config", ["run_dir=runs/test", *overrides])


def refusal(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve(composed(*overrides))
    return str(caught.value)


def test_a_path_is_enough(tmp_path: Path) -> None:
    where = write(tmp_path, QWEN2)
    config = resolve(composed("model=hf", f"model.init_from={where}"))
    assert type(config.model) is GPTShape
    assert (config.model.num_layers, config.model.qkv_bias) == (30, True)
    assert config.model.init_from == where
    shorter = resolve(composed("model=hf", f"model.init_from={where}", "model.context_length=512"))
    assert shorter.model.context_length == 512


def test_a_named_shape_is_held_against_the_model(tmp_path: Path) -> None:
    where = write(tmp_path, SMOLLM2)
    named = resolve(composed("model=smollm2_135m", f"model.init_from={where}")).model
    assert named.init_from == where
    told = refusal("model=smollm2_135m", f"model.init_from={where}", "model.num_layers=3")
    assert told == (
        f"model.num_layers=3: the model in model.init_from={where} has 30; set that, or use "
        "model=hf, which takes every number from there"
    )


def test_what_is_refused_has_the_key_in_front(tmp_path: Path) -> None:
    assert refusal("model=hf") == (
        "model.init_from: has no value and needs one: model.init_from=... (text)"
    )
    assert refusal("model=hf", f"model.init_from={tmp_path}") == (
        f"model.init_from={tmp_path}: holds no config.json; name a directory as transformers saves "
        "a model; of a run, python -m sft.export writes one"
    )
    assert refusal("model=hf", "model.init_from=").startswith("model.init_from=: must name a dir")
    where = write(tmp_path, SMOLLM2, mlp_bias=True)
    assert refusal("model=hf", f"model.init_from={where}").startswith(
        f"model.init_from={where}: its configuration has mlp_bias=true; "
    )
    assert refusal("model=hf", f"model.init_from={where}", "model.context_length=0") == (
        "model.context_length=0: must be at least 1"
    )


def test_a_scaling_is_a_component(tmp_path: Path) -> None:
    assert resolve(composed("model=llama3_1_8b")).model.rope_scaling == Llama3Scaling(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context_length=8192
    )
    other = resolve(composed("model=llama3_1_8b", "model.rope_scaling.factor=32")).model
    assert other.rope_scaling is not None and other.rope_scaling.factor == 32.0
    assert resolve(composed("model=llama3_1_8b", "model.rope_scaling=null")).model == resolve(
        composed("model=llama3_1_8b", "~model.rope_scaling")
    ).model  # fmt: skip
    where = write(tmp_path, {**SMOLLM2, "rope_theta": 500000.0}, rope_scaling=LLAMA_3_1)
    assert resolve(composed("model=hf", f"model.init_from={where}")).model.rope_scaling is not None


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("model.rope_scaling.factor=fast", "model.rope_scaling.factor=fast: must be a number"),
        ("model.rope_scaling.factor=0", "model.rope_scaling.factor=0.0: must be above 0"),
        ("+model.rope_scaling.beta=1", "model.rope_scaling.beta=1: there is no such key. Keys in "
         "model.rope_scaling: factor, high_freq_factor, low_freq_factor, original_context_length"),
        ("model.rope_scaling._target_=os.system", "model.rope_scaling._target_=os.system: must "
         "name a RopeScaling dataclass"),
        ("model.rope_scaling=5", "model.rope_scaling=5: a group of settings must stand here"),
    ],
)  # fmt: skip
def test_a_scaling_that_is_none(override: str, told: str) -> None:
    assert refusal("model=llama3_1_8b", override).startswith(told)


@pytest.mark.parametrize("model", ["hf", "smollm2_135m", "llama3_2_1b"])
def test_the_record_of_a_run_can_be_given_back(model: str, tmp_path: Path) -> None:
    from sft.record import plain

    scaling: dict[str, Any] = {"rope_type": "linear", "factor": 2.0}
    where = write(tmp_path, SMOLLM2, rope_scaling=scaling if model == "hf" else None)
    words = [] if model == "llama3_2_1b" else [f"model.init_from={where}"]
    config = resolve(composed(f"model={model}", *words))
    if model == "hf":
        assert config.model.rope_scaling == LinearScaling(factor=2.0)
    again = resolve(OmegaConf.create(plain(config)))
    assert again == config
