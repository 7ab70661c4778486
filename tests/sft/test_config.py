"""From options and keys to settings, and everything that must be refused on the way."""

from __future__ import annotations

import functools
import os
import shutil
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from data.chat import Overlong
from data.packers import packer_names
from data.packing.settings import PackingMode
from sft.checks import Derived, check
from sft.config import Attention, RunConfig, resolve
from sft.errors import ConfigError
from sft.launch import Place
from sft.settings import LossAverage
from sft.wording import closest
from tests.conftest import CONF_DIR
from tests.models.hf.test_shape import SMOLLM2, write

OPTIONS = sorted(
    (path.parent.name, path.stem)
    for path in Path(CONF_DIR).glob("*/*.yaml")
    if path.parent.name != "hydra"
)
BYTE_TOKENIZER = 262  # its ids


def composed(*overrides: str, conf_dir: str = CONF_DIR) -> DictConfig:
    """The tree as Hydra makes it of a command line."""
    with initialize_config_dir(conf_dir, version_base="1.3"):
        return compose("config", ["run_dir=runs/test", *overrides])


@functools.cache
def default_tree() -> DictConfig:
    return composed()


def changed(*dotlist: str) -> DictConfig:
    """The default tree with other values; a hundred times faster than composing it again."""
    values = OmegaConf.from_dotlist(list(dotlist))
    return OmegaConf.merge(deepcopy(default_tree()), values)  # type: ignore[return-value]


def settle(*dotlist: str) -> tuple[RunConfig, Derived]:
    config = resolve(changed(*dotlist))
    return config, check(config)


def refusal(tree: DictConfig) -> str:
    with pytest.raises(ConfigError) as caught:
        check(resolve(tree))
    message = str(caught.value)
    assert "\n" not in message
    return message


# --- what is there


@pytest.mark.parametrize(("group", "option"), OPTIONS, ids=map("=".join, OPTIONS))
def test_every_option_composes_resolves_and_fits(group: str, option: str, tmp_path: Path) -> None:
    tree = composed(f"{group}={option}")
    published = "model.init_from" in OmegaConf.missing_keys(tree)
    if published:
        tree.data.tokenizer = "bytes"
    for key in OmegaConf.missing_keys(tree):
        OmegaConf.update(tree, key, write(tmp_path, SMOLLM2) if published else "given")
    config = resolve(tree)
    place = Place(world_size=config.parallel.model_ranks)
    multiple = 4 if config.parallel.cp > 1 else 1 + config.parallel.sp
    assert check(config, place).pad_multiple == multiple
    if group in ("model", "data", "packer", "optimizer", "schedule") and not published:
        settings = getattr(config, group)
        assert tree[group]["_target_"] == f"{type(settings).__module__}.{type(settings).__name__}"


def test_every_packer_and_every_mode_has_its_option() -> None:
    assert {option for group, option in OPTIONS if group == "packer"} == set(packer_names())
    assert {option for group, option in OPTIONS if group == "packing"} == {
        mode.value for mode in PackingMode
    }


def test_the_defaults() -> None:
    config, derived = settle()
    assert config.seed == 1234
    assert config.run_dir == Path("runs/test")
    assert config.attention is Attention.AUTO
    assert config.loss.average is LossAverage.TOKEN
    assert config.data.overlong is Overlong.TRUNCATE
    assert (config.packing.mode, config.packing.capacity) == (PackingMode.LOADER, 4096)
    assert config.packing.loader_buffer_size == 256
    assert (config.train.steps, config.train.global_batch_tokens) == (100, 16384)
    assert derived.packs_per_step == 4
    assert derived.micro_batch_size == 4


@pytest.mark.parametrize("mode", [mode.value for mode in PackingMode])
def test_packing_can_be_spelled_both_ways(mode: str) -> None:
    expected = resolve(composed(f"packing={mode}"))
    assert expected.packing.mode is PackingMode(mode)
    assert resolve(composed(f"packing.mode={mode}")) == expected
    # The key is the more special of the two, whatever the group says.
    for other in PackingMode:
        assert resolve(composed(f"packing={other.value}", f"packing.mode={mode}")) == expected


def test_a_value_may_come_from_another_key() -> None:
    assert (
        resolve(composed("packer=ffs", "seed=7")).packer
        == resolve(composed("packer=ffs", "packer.seed=7")).packer
    )
    assert settle("train.steps=${model.num_layers}", "model.num_layers=4")[0].train.steps == 4


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        ("smollm2_135m", 134_515_008),
        ("qwen2_5_0_5b", 494_032_768),
        ("llama3_2_1b", 1_235_814_400),
        ("llama3_1_8b", 8_030_261_248),
    ],
)
def test_named_models_have_the_published_number_of_parameters(model: str, parameters: int) -> None:
    shape = resolve(composed(f"model={model}")).model
    assert shape.parameter_count(BYTE_TOKENIZER) == parameters


# --- unknown keys


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("+seeed=3", "seeed=3: there is no such key. Did you mean seed? Keys at the top level: "
         "attention, data, eval, logger, lora, loss, model, optimizer, packer, packing, parallel, "
         "resume, run_dir, "
         "schedule, seed, train"),
        ("++train.stepz=3", "train.stepz=3: there is no such key. Did you mean train.steps? Keys "
         "in train: epochs, eval_every, global_batch_real_tokens, global_batch_samples, "
         "global_batch_tokens, keep_last, log_every, micro_batch_size, save_every, "
         "speed_skip_steps, steps, stop_after, threads"),
        ("+train.stepz=null", "train.stepz=null: there is no such key. Did you mean train.steps?"),
        ("+packer.max_samples=2", "packer.max_samples=2: there is no such key. Did you mean "
         "packer.max_samples_per_bin? Keys in packer: bins_multiple, max_samples_per_bin, min_"
         "bins"),
        ("+packer._partial_=true", "packer._partial_=true: there is no such key. Keys in packer: "),
        ("+optimizer.LR=1", "optimizer.LR=1: there is no such key. Did you mean optimizer.lr?"),
        ("+packing.capacty=9", "packing.capacty=9: there is no such key. Did you mean "
         "packing.capacity? Keys in packing: buffer_size, capacity, kernel_boundaries, "
         "level_window, mode, "),
        ("+logger.jsonl.filenam=a", "logger.jsonl.filenam=a: there is no such key. Keys in "
         "logger.jsonl: none"),
        ("+trian.steps=3", "trian={steps: 3}: there is no such key. Did you mean train?"),
        ("+train.sub.deep=[1]", "train.sub={deep: [1]}: there is no such key. Keys in train: "),
    ],
)  # fmt: skip
def test_unknown_keys(override: str, told: str) -> None:
    assert refusal(composed(override)).startswith(told)


def test_unknown_keys_in_an_experiment_file(tmp_path: Path) -> None:
    shutil.copytree(CONF_DIR, tmp_path / "conf")
    file = tmp_path / "conf" / "experiment" / "typo.yaml"
    for text, told in {
        "packer: {delta: 3}": "packer.delta=3: there is no such key. Keys in packer: bins_multiple",
        "model: {num_layer: 2}": "model.num_layer=2: there is no such key. Did you mean "
        "model.num_layers? Keys in model: context_length, ",
        "trainer: {steps: 2}": "trainer={steps: 2}: there is no such key. Did you mean train?",
    }.items():
        file.write_text(f"# @package _global_\n{text}\n", encoding="utf-8")
        tree = composed("experiment=typo", conf_dir=str(tmp_path / "conf"))
        assert refusal(tree).startswith(told)


def test_closest_looks_past_case_and_gives_up_in_time() -> None:
    known = ["steps", "epochs", "LossAverage"]
    assert closest("STEP", known) == "steps"
    assert closest("lossaverage", known) == "LossAverage"
    assert closest("banana", known) is None


# --- wrong types and missing values


@pytest.mark.parametrize(
    ("setting", "kind"),
    [
        ("train.steps=many", "a whole number or null"),
        ("train.steps=1.5", "a whole number or null"),
        ("train.steps=true", "a whole number or null"),
        ("train.steps=[1, 2]", "a whole number or null"),
        ("train.steps={a: 1}", "a whole number or null"),
        ("train.eval_every=null", "a whole number"),
        ("model.num_layers=1.5", "a whole number"),
        ("model.tie_embeddings=maybe", "true or false"),
        ("data.shuffle=5", "true or false"),
        ("optimizer.lr=fast", "a number"),
        ("optimizer.lr=true", "a number"),
        ("optimizer.lr=[1]", "a number"),
        ("data.format=null", "text"),
        ("seed=1.5", "a whole number"),
        ("seed=true", "a whole number"),
        ("seed=null", "a whole number"),
        ("run_dir=null", "text"),
        ("attention=AUTO", "one of auto, transformer_engine, torch"),
        ("attention=null", "one of auto, transformer_engine, torch"),
        ("packing.mode=LOADER", "one of none, trainer, loader"),
        ("packing.mode=[loader]", "one of none, trainer, loader"),
        ("packing.kernel_boundaries=REAL", "one of padded, real or null"),
        ("loss.average=TOKEN", "one of token, sample"),
        ("loss.average=null", "one of token, sample"),
        ("data.overlong=DROP", "one of drop, truncate, error"),
        ("data.columns={prompt: null}", "a mapping such as {a: b} or null"),
        ("data.template_args=5", "a mapping such as {a: b} or null"),
        ("lora.targets=[null]", "a list such as [a, b] or null"),
    ],
)
def test_wrong_types(setting: str, kind: str) -> None:
    assert refusal(changed(setting)) == f"{setting}: must be {kind}"


def test_enums_are_typed_by_their_values() -> None:
    config, _ = settle("data.overlong=drop", "loss.average=sample", "attention=torch")
    assert config.data.overlong is Overlong.DROP
    assert config.loss.average is LossAverage.SAMPLE
    assert config.attention is Attention.TORCH


def test_missing_values() -> None:
    told = "data.path: has no value and needs one: data.path=... (text or a list)"
    assert refusal(composed("data=jsonl")) == told
    assert refusal(composed("~packing.mode")) == (
        "packing.mode: has no value and needs one: packing.mode=... (one of none, trainer, loader)"
    )


@pytest.mark.parametrize("section", ["train", "packer", "model"])
def test_deleted_sections(section: str) -> None:
    told = f"{section}=null: a group of settings must stand here, it cannot be removed or null"
    assert refusal(composed(f"~{section}")) == told
    assert refusal(changed(f"{section}=5")) == (
        f"{section}=5: a group of settings must stand here, not one value"
    )


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("${oops}", "Interpolation key 'oops' not found"),
        ("${oops:3}", "Unsupported interpolation type oops"),
        ("${train.steps}", "Recursive interpolation detected"),
        ("${oc.env:NO_SUCH_VARIABLE}", "KeyError raised while resolving interpolation: "
         "\"Environment variable 'NO_SUCH_VARIABLE' not found\""),
    ],
)  # fmt: skip
def test_interpolation_to_nowhere(value: str, why: str) -> None:
    assert refusal(changed(f"train.steps={value}")) == f"train.steps={value}: {why}"


# --- _target_

CALLS: list[str] = []


@dataclass(frozen=True, kw_only=True)
class NotAPacker:
    """Says so when it is made."""

    def __post_init__(self) -> None:
        CALLS.append("made")


def not_a_class(**_: Any) -> None:
    CALLS.append("called")


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("os.system", "must name a Packer dataclass"),
        ("subprocess.Popen", "must name a Packer dataclass"),
        ("builtins.dict", "must name a Packer dataclass"),
        ("models.shapes.GPTShape", "must name a Packer dataclass"),
        (f"{__name__}.NotAPacker", "must name a Packer dataclass"),
        (f"{__name__}.not_a_class", "must name a Packer dataclass"),
        ("data.packers.base.Packer", "must name a Packer dataclass, and Packer is abstract: it "
         "does not define _pack"),
        ("data.packers.ffd.Nope", "must name a Packer dataclass, and data.packers.ffd has no Nope"),
        ("no.such.Thing", "must name a Packer dataclass, and no.such cannot be imported (No module "
         "named 'no'). A module outside this repository must be on PYTHONPATH"),
        ("ffd", "must name a class, as package.module.Class"),
        ("..ffd", "must name a class, as package.module.Class"),
        (".a.b", "must name a class, as package.module.Class"),
        ("5", "must name a class, as package.module.Class"),
        ("null", "must name a class, as package.module.Class"),
    ],
)  # fmt: skip
def test_targets_that_are_no_packer(target: str, why: str) -> None:
    assert refusal(changed(f"packer._target_={target}")) == f"packer._target_={target}: {why}"
    assert CALLS == []


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("class Mine(\n", "SyntaxError: '(' was never closed (mine_wrong.py, line 1)"),
        ("import os\nos.nothing\n", "AttributeError: module 'os' has no attribute 'nothing'"),
    ],
)
def test_a_module_of_ones_own_with_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, why: str
) -> None:
    (tmp_path / "mine_wrong.py").write_text(body, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert refusal(changed("packer._target_=mine_wrong.Mine")) == (
        "packer._target_=mine_wrong.Mine: must name a Packer dataclass, and mine_wrong cannot be "
        f"imported ({why}); mend the module"
    )


def test_a_target_is_not_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "system", lambda command: Path(command).touch())
    tree = composed("packer._target_=os.system", f"+packer.command={tmp_path / 'made'}")
    assert refusal(tree) == "packer._target_=os.system: must name a Packer dataclass"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("key", "base"),
    [("model", "ModelSource"), ("data", "DataSource"), ("optimizer", "Optimizer"),
     ("schedule", "Schedule"), ("logger.jsonl", "MetricLogger")],
)  # fmt: skip
def test_every_group_knows_its_own_kind(key: str, base: str) -> None:
    target = "data.packers.ffd.FirstFitDecreasing"
    told = f"{key}._target_={target}: must name a {base} dataclass"
    assert refusal(changed(f"{key}._target_={target}")) == told


def test_the_same_algorithm_by_its_class() -> None:
    by_class = settle("packer._target_=data.packers.ffd.FirstFitDecreasing")[0]
    assert by_class.packer == resolve(composed("packer=ffd")).packer
