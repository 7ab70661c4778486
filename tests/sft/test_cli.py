"""The command line: exit codes, one message, nothing left behind, and no wait for torch."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from data.packers import ALIASES
from sft.cli import canonical_override
from sft.explain import explain
from tests.conftest import CONF_DIR

ROOT = Path(__file__).resolve().parents[2]

# Python imports a module of this name at its start: it notes what a process has imported.
SPY = """
import atexit, os, sys

@atexit.register
def note():
    heavy = {"torch", "megatron", "transformer_engine"} & set(sys.modules)
    with open(os.environ["IMPORTED"], "w") as file:
        print(*sorted(heavy), end="", file=file)
"""


@dataclass(frozen=True)
class Done:
    """A process that has ended, and which heavy packages it had imported."""

    code: int
    out: str
    err: str
    heavy: str


type Start = Callable[..., Done]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Runs ``python ...`` in an empty directory."""
    (tmp_path / "spy").mkdir()
    (tmp_path / "spy" / "sitecustomize.py").write_text(SPY, encoding="utf-8")
    (tmp_path / "cwd").mkdir()

    def run(*words: str) -> Done:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path / "cwd",
            env={
                **os.environ,
                "PYTHONPATH": str(tmp_path / "spy"),
                "IMPORTED": str(tmp_path / "imported"),
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        heavy = (tmp_path / "imported").read_text(encoding="utf-8")
        return Done(done.returncode, done.stdout, done.stderr, heavy)

    return run


@pytest.fixture
def train(start: Start) -> Start:
    """Runs ``python train.py ...``."""
    return lambda *words: start(str(ROOT / "train.py"), *words)


def assert_refused(done: Done, told: str) -> None:
    assert done.err == f"stowage: {told}\n"
    assert done.code == 2
    assert done.out == ""
    assert done.heavy == ""


def test_the_spy_sees_what_is_imported(start: Start) -> None:
    assert start("-c", "import sys; sys.modules['torch'] = sys").heavy == "torch"


# --- what is shown


def test_help(train: Start) -> None:
    done = train("--help")
    assert (done.code, done.err, done.heavy) == (0, "", "")
    assert "python train.py packing=trainer packer=ffd" in done.out
    groups = {line.partition(":")[0]: line for line in done.out.splitlines() if ": " in line}
    packers = "balanced_greedy_knapsack, bfd, concatenative, ffd, ffs, greedy_knapsack, mffd, tight"
    assert groups["packer"] == f"packer: {packers}"
    assert groups["packing"] == "packing: loader, none, trainer"


def test_the_configuration_with_an_upstream_name_of_a_packer(train: Start, tmp_path: Path) -> None:
    done = train("packer=modified_first_fit_decreasing", "--cfg", "job")
    assert (done.code, done.err, done.heavy) == (0, "", "")
    assert "packer:\n  _target_: data.packers.mffd.ModifiedFirstFitDecreasing\n" in done.out
    assert "  global_batch_tokens: 16384\n" in done.out
    assert list((tmp_path / "cwd").iterdir()) == []


# --- what is refused

PACKERS = "balanced_greedy_knapsack, bfd, concatenative, ffd, ffs, greedy_knapsack, mffd, tight"
TRAIN_KEYS = (
    "epochs, eval_every, global_batch_real_tokens, global_batch_samples, global_batch_tokens, "
    "keep_last, log_every, micro_batch_size, save_every, speed_skip_steps, steps, stop_after, "
    "threads"
)
STEPZ = (
    f"train.stepz=5: there is no such key. Did you mean train.steps? Keys in train: {TRAIN_KEYS}"
)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["train.stepz=5"], STEPZ),
        (["+train.stepz=5"], STEPZ),
        (["packer=mfd"], "packer=mfd: there is no such packer. Did you mean packer=mffd? Allowed: "
         f"{PACKERS}"),
        (["packer=null"], "packer=null: a group needs one of its options (--help lists them), or "
         "leave it out"),
        (["packer=[mffd,ffd]"], "packer=[mffd,ffd]: takes one option; to try several, sweep: "
         "-m packer=mffd,ffd"),
        (["packing.capacity=4095", "packing.pad_multiple=8"], "packing.capacity=4095: must be a "
         "multiple of the pad multiple 8 (packing.pad_multiple); use 4088 or 4096"),
        (["packing.capacity=8192"], "packing.capacity=8192: larger than the model's context "
         "model.context_length=4096; use packing.capacity=4096 or less, or a model with a longer "
         "context"),
        (["hydra.sweep.dirr=x"], "hydra.sweep.dirr=x: there is no such key. Did you mean "
         "hydra.sweep.dir? Keys in hydra.sweep: dir, subdir"),
        *((["-m", f"{plus}hydra.launcher.failfast=true"], f"{plus}hydra.launcher.failfast=true: "
           "there is no such key. Did you mean hydra.launcher.fail_fast? Keys in hydra.launcher: "
           "fail_fast") for plus in ("", "+")),
        (["train.steps=[1"], "train.steps=[1: cannot be read as key=value (no viable alternative "
         "at input '[1'); a value with blanks, brackets or commas needs quotes within quotes, as "
         "'key=\"value\"'"),
        (["train.steps=${oops}"], "train.steps=${oops}: Interpolation key 'oops' not found"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_refused_and_leaves_nothing(
    train: Start, tmp_path: Path, words: list[str], told: str
) -> None:
    assert_refused(train(*words, f"run_dir={tmp_path / 'run'}"), told)
    assert not (tmp_path / "run").exists()
    assert list((tmp_path / "cwd").iterdir()) == []


def test_a_directory_that_holds_a_run_is_left_as_it_is(train: Start, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    (run_dir / ".hydra").mkdir(parents=True)
    files = {"run.json": "{}", "metrics.jsonl": "one\n", ".hydra/config.yaml": "a: 1\n"}
    for name, text in files.items():
        (run_dir / name).write_text(text, encoding="utf-8")
    for word in (f"run_dir={run_dir}", f'++run_dir="{run_dir}"'):
        assert_refused(
            train(word),
            f"{word}: already holds a run; choose another directory or remove it"
            ", or use resume=auto to go on with it",
        )
    left = [path for path in run_dir.rglob("*") if path.is_file()]
    assert {str(p.relative_to(run_dir)): p.read_text(encoding="utf-8") for p in left} == files


def test_a_directory_that_cannot_be(train: Start, tmp_path: Path) -> None:
    # An empty name would be the current directory.
    assert_refused(train("run_dir="), "run_dir=: must name a directory")
    assert list((tmp_path / "cwd").iterdir()) == []
    (tmp_path / "file").write_text("text", encoding="utf-8")
    where = tmp_path / "file" / "run"
    assert_refused(
        train(f"run_dir={where}"),
        f"run_dir={where}: cannot be written (Not a directory); choose another directory",
    )


def test_a_directory_with_other_files_is_not_removed(train: Start, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine", encoding="utf-8")
    assert_refused(
        train("train.steps=0", f"run_dir={tmp_path / 'run'}"), "train.steps=0: must be at least 1"
    )
    assert (tmp_path / "run" / "notes.txt").read_text(encoding="utf-8") == "mine"
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    assert_refused(
        train("train.steps=0", f"run_dir={tmp_path / 'link'}"), "train.steps=0: must be at least 1"
    )
    assert list((tmp_path / "link").iterdir()) == []


def test_options_from_a_directory_of_ones_own(train: Start, tmp_path: Path) -> None:
    (tmp_path / "conf" / "packer").mkdir(parents=True)
    (tmp_path / "conf" / "experiment").mkdir()
    (tmp_path / "conf" / "packer" / "mine.yaml").write_text(
        "_target_: data.packers.ffd.FirstFitDecreasing\nmax_samples: 3\n", encoding="utf-8"
    )
    bad = tmp_path / "conf" / "experiment" / "bad.yaml"
    bad.write_text("train: [\n", encoding="utf-8")
    own = ("--config-dir", str(tmp_path / "conf"), f"run_dir={tmp_path / 'run'}")
    assert_refused(
        train(*own, "packer=mine"),
        "packer.max_samples=3: there is no such key. Did you mean packer.max_samples_per_bin? Keys "
        "in packer: bins_multiple, max_samples_per_bin, min_bins",
    )
    assert_refused(train(*own, "packer=mine", "train.stepz=5"), STEPZ)
    done = train(*own, "experiment=bad")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert done.err.startswith(f"stowage: {bad}:2: is not YAML (")
    assert not (tmp_path / "run").exists()


# --- what Hydra says, in our words; in process, since it takes no more than composing


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["packr=ffd"], "packr=ffd: there is no such key. Did you mean packer? Keys at the top "
         "level: attention, data, eval, logger, lora, loss, model, optimizer, packer, packing, "
         "parallel, resume, run_dir, schedule, seed, train"),
        (["experimnt=demo"], "experimnt=demo: there is no such key. Did you mean experiment? "),
        (["optimzer.lr=1"], "optimzer.lr=1: there is no such key. Did you mean optimizer.lr? "),
        (["~train.stepz"], "~train.stepz: there is no such key. Did you mean train.steps? "),
        (["train.steps.x=1"], "train.steps.x=1: there is no such key. Did you mean train.steps? "
         f"Keys in train: {TRAIN_KEYS}"),
        # The keys are those of the option that is chosen, not of the default one.
        (["data=jsonl", "data.pth=a"], "data.pth=a: there is no such key. Did you mean data.path? "
         "Keys in data: cache_dir, chat_template, columns, format, limit, loss_on, "
         "max_bad_fraction, num_workers, overlong, path, shuffle, split, template_args, tokenizer, "
         "val_fraction, val_path, val_split"),
        (["packer=ffs", "packer.sede=1"], "packer.sede=1: there is no such key. Did you mean "
         "packer.seed? Keys in packer: bins_multiple, max_samples_per_bin, min_bins, seed"),
        (["packer=FFD"], "packer=FFD: there is no such packer. Did you mean packer=ffd? "),
        (["packer=first_fit_decreasin"], "packer=first_fit_decreasin: there is no such packer. Did "
         f"you mean packer=ffd? Allowed: {PACKERS}"),
        (["model=smol"], "model=smol: there is no such model. Did you mean model=small? Allowed: "),
        (["+train.steps=3"], "+train.steps=3: train.steps is there already; leave out the +, as "
         "train.steps=3"),
        (["+packer=ffs"], "+packer=ffs: packer is there already; leave out the +, as packer=ffs"),
        (["++packer=ffs"], "++packer=ffs: packer is there already; leave out the +, as packer=ffs"),
        (["seed=null", "packer=5"], "packer=5: a group needs one of its options (--help lists "
         "them), or leave it out"),
        (["train.steps 3"], "train.steps 3: cannot be read as key=value; a value with blanks, "),
        (["steps"], "steps: cannot be read as key=value (missing EQUAL at '<EOF>'); a value with "),
        (["~train.steps=5"], "Could not delete from config. The value of 'train.steps' is 100 and "
         "not 5."),
        (["train={stepz: 1}"], "Could not override 'train'.\nKey 'stepz' is not in struct"),
    ],
)  # fmt: skip
def test_explain(words: list[str], told: str) -> None:
    with (
        pytest.raises((HydraException, OmegaConfBaseException, ValueError)) as caught,
        initialize_config_dir(CONF_DIR, version_base="1.3"),
    ):
        compose("config", words)
    assert explain(caught.value, words).startswith(told)


# --- names that other tools use


@pytest.mark.parametrize(("alias", "name"), sorted(ALIASES.items()))
def test_canonical_override(alias: str, name: str) -> None:
    for given in (alias, alias.upper(), alias.title()):
        assert canonical_override(f"packer={given}") == f"packer={name}"
        assert canonical_override(f"+packer={given}") == f"+packer={name}"
        # A sweep's list.
        assert canonical_override(f"packer=bfd,{given}, {given}") == f"packer=bfd,{name},{name}"


@pytest.mark.parametrize(
    "word",
    ["packer=mffd", "packer=bfd,ffs", "packer=glob(*)", "packer.seed=1", "next_fit", "-m",
     "data.path=next_fit", "experiment=next_fit", "xpacker=next_fit"],
)  # fmt: skip
def test_canonical_override_changes_nothing_else(word: str) -> None:
    assert canonical_override(word) == word
