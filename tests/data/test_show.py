"""``python -m data.show``: samples with their targets, and conversations that are dropped."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sft.show.cli import main
from tests.data import toys

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    """Two good conversations, then two that are of no use."""
    path = tmp_path / "chats.jsonl"
    turns = [("user", "q\x1b[31m"), ("assistant", "yes"), ("user", "r"), ("assistant", "no")]
    messages = [{"role": role, "content": content} for role, content in turns]
    lines = [json.dumps({"messages": messages}), json.dumps({"messages": messages[2:]})]
    path.write_text("\n".join([*lines, "{", '{"messages": []}']) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def show(chats: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """The command on these conversations, in the order of the file."""

    def run(*words: str) -> tuple[int, str, str]:
        settings = ["data=jsonl", f"data.path={chats}", "data.shuffle=false", "data.val_fraction=0"]
        code = main([*settings, *words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def test_targets_stand_in_brackets(show: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = show("--plain", "n=2")
    assert (code, err) == (0, "")
    assert (
        "<|user|>q␛[31m<|end|><|assistant|>⟦yes<|end|>⟧<|user|>r<|end|><|assistant|>⟦no<|end|>⟧"
        in out
    )
    assert out.count("⟦no<|end|>⟧") == 2
    assert "\x1b" not in out
    assert "--- chats.jsonl:1: 20 tokens, 7 of them to be predicted (35%)" in out
    assert out.rstrip().endswith(
        "2 read: 2 kept, 0 dropped; 27 tokens, 10 of them to be predicted (37%)"
    )


def test_settings_are_those_of_a_run(show: Callable[..., tuple[int, str, str]]) -> None:
    assert "⟦yes" not in show("--plain", "n=1", "data.loss_on=last")[1]
    code, out, _ = show("--plain", "n=1", "packing.capacity=16", "train.global_batch_tokens=16")
    assert code == 0 and "4 more are cut off" in out and "no<|end|>" not in out


def test_the_order_is_that_of_training(
    show: Callable[..., tuple[int, str, str]], write_chats: Callable[..., Path]
) -> None:
    path = write_chats(list(range(1, 21)), name="many.jsonl")
    words = [f"data.path={path}", "data.shuffle=true", "--plain", "n=20"]
    first, again = show(*words)[1], show(*words)[1]
    other = show(*words, "seed=7")[1]
    assert first == again != other
    assert sorted(first.splitlines()) != first.splitlines()
    assert {line for line in first.splitlines() if line.startswith("---")} == {
        line for line in other.splitlines() if line.startswith("---")
    }


def test_colours_on_a_terminal(
    show: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    _, out, _ = show("n=1")
    assert "⟦" not in out
    assert "\x1b[1;32my" in out  # bold green: what is to be predicted
    assert "\x1b[2mq" in out  # dim: what is given
    assert "\x1b[35m<|user|>" in out  # special tokens
    assert "q\x1b[31m" not in out  # no colours of the data's own


def test_what_is_dropped_and_why(show: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = show("--plain", "--failed", "n=9")
    assert code == 0
    assert "--- chats.jsonl:3: dropped: invalid JSON\n{\n" in out
    assert "--- chats.jsonl:4: dropped: messages is empty\n" in out
    assert "chats.jsonl:1" not in out
    assert "4 read: 2 kept, 2 dropped" in out


def test_what_the_template_says(show: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    refusing = "{% if messages | length > 2 %}{{ raise_exception('too many!') }}{% endif %}"
    path = toys.save_tokenizer(tmp_path / "tok", refusing + toys.CHATML)
    words = ["--plain", f"data.tokenizer={path}"]
    _, out, _ = show(*words, "--failed", "n=1")
    assert "dropped: the chat template refuses the conversation\ntoo many!\n" in out
    assert (
        "<|im_start|>user\nr<|im_end|>\n<|im_start|>assistant\n⟦no<|im_end|>⟧\n" in show(*words)[1]
    )


def test_if_nothing_can_be_used_the_reason_is_said(
    show: Callable[..., tuple[int, str, str]],
) -> None:
    code, _, err = show("packing.capacity=2", "train.global_batch_tokens=2")
    assert code == 1
    assert err.startswith("stowage: none of the conversations can be used: 4 read: 0 kept")
    assert "no answer within the capacity" in err and "--failed" in err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["n=0"], "n=0: must be a whole number, 1 or more"),
        (["n=²"], "n=²: must be a whole number, 1 or more"),
        (["--fail"], "--fail: there is no such option; there are --failed, --plain"),
        (["--config-dir"], "--config-dir: must name a directory"),
        (["data.tokenizer=/nowhere"], "data.tokenizer=/nowhere: does not exist"),
        (["data.chat_template=x.jinja"], "data.chat_template=x.jinja: the tokenizer"),
        (["data.loss_on=none"], "data.loss_on=none: must be one of assistant, last, all"),
        (["data.path=nowhere.jsonl"], "nowhere.jsonl"),
        (["data.loss_on=last,all"], "data.loss_on=last,all: one run is shown, so give one value"),
        (["data.pth=x"], "data.pth=x: there is no such key. Did you mean data.path?"),
    ],
)
def test_a_mistake_is_one_message(
    show: Callable[..., tuple[int, str, str]], words: list[str], told: str
) -> None:
    code, out, err = show(*words)
    assert (code, out) == (2, "")
    assert told in err
    assert err.startswith("stowage: ") and "Traceback" not in err


def test_an_option_of_ones_own_that_is_no_yaml(
    show: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    bad = tmp_path / "conf" / "experiment" / "bad.yaml"
    bad.parent.mkdir(parents=True)
    bad.write_text("train: [\n", encoding="utf-8")
    code, _, err = show("--config-dir", str(tmp_path / "conf"), "experiment=bad")
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith(f"stowage: {bad}:2: is not YAML (")


def test_the_command_needs_no_torch(chats: Path) -> None:
    spy = (
        "import runpy, sys; sys.argv[1:] = sys.argv[1:]\n"
        "try: runpy.run_module('data.show', run_name='__main__')\n"
        "except SystemExit as end: print(end.code, 'torch' in sys.modules)"
    )
    words = ["data=jsonl", f"data.path={chats}", "--plain", "data.val_fraction=0"]
    done = subprocess.run(
        [sys.executable, "-c", spy, *words], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert "⟦no<|end|>⟧" in done.stdout and done.stdout.endswith("0 False\n"), done.stderr
    told = subprocess.run(
        [sys.executable, "-m", "data.show", "--help"], cwd=ROOT, capture_output=True, text=True
    )
    assert told.returncode == 0 and "python -m data.show" in told.stdout
