"""Checkpoints and exports of trained runs, loaded and asked by transformers alone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from sft import export as export_cli
from sft import generate as generate_cli
from sft.errors import ConfigError, TrainingError
from sft.export import export
from sft.generate import answer
from tests.conftest import read_metrics
from tests.data.toys import CHATML, LLAMA3, save_tokenizer
from tests.models.hf import tiny

ROOT = Path(__file__).resolve().parents[2]
RunApp = Callable[..., Any]
WriteChats = Callable[..., Path]
BYTES = 262  # ids of the byte tokenizer
SMALL = (
    "packing.capacity=64", "train.global_batch_tokens=128", "data=jsonl", "data.val_fraction=0.5",
    "optimizer.lr=0.01", "schedule=constant", "data.overlong=drop",
)  # fmt: skip


@torch.no_grad()
def loss_of(model: Any, path: Path, rows: list[int]) -> float:
    """Mean cross-entropy over the assistant's bytes of some lines of a file, laid out by hand.

    Ids 0 to 255 are bytes, 257 ends a turn, 259 opens a user's and 260 an assistant's.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    total, count = 0.0, 0
    for row in rows:
        user, assistant = (m["content"].encode() for m in json.loads(lines[row])["messages"])
        tokens = torch.tensor([259, *user, 257, 260, *assistant, 257])
        answered = len(assistant) + 1
        logits = model(tokens.unsqueeze(0)).logits[0, :-1]
        total += F.cross_entropy(logits[-answered:], tokens[-answered:], reduction="sum").item()
        count += answered
    return total / count


def val_rows(path: Path, result: Any) -> list[int]:
    """The lines that a run validated on."""
    from hydra import compose, initialize_config_dir

    from sft.config import resolve
    from tests.conftest import CONF_DIR

    with initialize_config_dir(CONF_DIR, version_base="1.3"):
        tree = compose("config", [*SMALL, f"data.path={path}", "run_dir=unused"])
    val = resolve(tree).data.prepare().val
    return [int(val.source_id(i).rpartition(":")[2]) - 1 for i in range(len(val))]


def test_the_exported_model_is_the_trained_one(
    run_app: RunApp, write_chats: WriteChats, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    path = write_chats([3, 9, 14, 5, 8, 11, 20, 2])
    result = run_app(*SMALL, f"data.path={path}", "train.steps=3", "train.save_every=2")
    run_dir = result.run_dir
    assert sorted(p.name for p in (run_dir / "checkpoints").glob("s*")) == ["step-2", "step-3"]
    assert not export(run_dir, tmp_path / "out")  # bytes have no tokenizer in transformers
    model, said = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(said[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    rows = val_rows(path, result)
    assert loss_of(model, path, rows) == pytest.approx(result.final_val_loss, rel=1e-5)
    # An earlier checkpoint is an earlier model.
    export(run_dir / "checkpoints" / "step-2", tmp_path / "earlier")
    earlier = AutoModelForCausalLM.from_pretrained(tmp_path / "earlier")
    assert abs(loss_of(earlier, path, rows) - result.final_val_loss) > 1e-3
    assert earlier.generation_config.eos_token_id == [257]
    assert earlier.generation_config.pad_token_id == 256


def test_training_goes_on_from_a_published_model(
    run_app: RunApp, write_chats: WriteChats, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    path = write_chats([3, 9, 14, 5, 8, 11, 20, 2])
    original = tiny.make("qwen3", tmp_path / "original", vocab_size=BYTES)
    shape = ["num_layers=2", "hidden_size=32", "ffn_hidden_size=48", "num_attention_heads=4",
             "num_query_groups=2", "head_dim=16", "qk_norm=true", "context_length=64",
             "norm_epsilon=1e-6", "tie_embeddings=true"]  # fmt: skip
    result = run_app(
        *SMALL, f"data.path={path}", "data.tokenizer=bytes", "train.steps=2", "train.save_every=0",
        *(f"model.{setting}" for setting in shape), f"model.init_from={tmp_path / 'original'}",
    )  # fmt: skip
    rows = val_rows(path, result)
    vals = read_metrics(result.run_dir, "val")
    assert vals[0]["val_loss"] == pytest.approx(loss_of(original, path, rows), rel=1e-5)
    assert vals[1]["val_loss"] < vals[0]["val_loss"] - 0.01
    # The original may be gone by now.
    shutil.rmtree(tmp_path / "original")
    export(result.run_dir, tmp_path / "out")
    trained = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert type(trained) is type(original)
    assert loss_of(trained, path, rows) == pytest.approx(vals[1]["val_loss"], rel=1e-5)
    kept = {
        k: v
        for k, v in original.config.to_dict().items()
        if k not in ("dtype", "_name_or_path", "transformers_version")
    }
    assert {k: trained.config.to_dict()[k] for k in kept} == kept


def test_export_in_sixteen_bits(run_app: RunApp, write_chats: WriteChats, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    path = write_chats([3, 9])
    result = run_app(*SMALL, f"data.path={path}", "train.steps=1", "train.save_every=0")
    export(result.run_dir, tmp_path / "full")
    export(result.run_dir, tmp_path / "half", dtype="bfloat16")
    full = AutoModelForCausalLM.from_pretrained(tmp_path / "full").state_dict()
    half = AutoModelForCausalLM.from_pretrained(tmp_path / "half").state_dict()
    assert all(v.dtype == torch.bfloat16 for v in half.values())
    assert all(torch.equal(full[k].bfloat16(), half[k]) for k in full)


def test_checkpoints_can_be_left_out(run_app: RunApp, write_chats: WriteChats) -> None:
    path = write_chats([3, 9])
    run_dir = run_app(*SMALL, f"data.path={path}", "train.steps=1", "train.save_every=null").run_dir
    assert not (run_dir / "checkpoints").exists()
    with pytest.raises(ConfigError) as caught:
        export(run_dir, run_dir / "out")
    assert str(caught.value) == (
        f"{run_dir}: this run left no checkpoint; with train.save_every=0 one is left at its end"
    )


def test_a_checkpoint_that_cannot_be_written(
    run_app: RunApp, write_chats: WriteChats, tmp_path: Path
) -> None:
    path = write_chats([3, 9])
    run_dir = tmp_path / "full"
    run_dir.mkdir()
    (run_dir / "checkpoints").touch()  # in the way
    with pytest.raises(TrainingError, match=r"checkpoints/\.step-1\.partial: cannot be written \("):
        run_app(
            *SMALL, f"data.path={path}", "train.steps=1", "train.save_every=0", f"run_dir={run_dir}"
        )


def test_saving_changes_nothing(run_app: RunApp, write_chats: WriteChats) -> None:
    path = write_chats([3, 9, 14, 5, 8, 11, 20, 2])
    curves = [
        [m["loss"] for m in read_metrics(
            run_app(*SMALL, f"data.path={path}", "train.steps=4", f"train.save_every={n}").run_dir
        )]
        for n in ("1", "null")
    ]  # fmt: skip
    assert curves[0] == curves[1]


def test_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], run_app: RunApp, write_chats: WriteChats
) -> None:
    with pytest.raises(SystemExit) as stopped:
        export_cli.main(["--help"])
    assert stopped.value.code == 0
    assert "Write a trained model as a directory that transformers loads" in " ".join(
        capsys.readouterr().out.split()
    )
    nothing = tmp_path / "nothing"
    assert export_cli.main([str(nothing), str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == (
        f"stowage: {nothing}: is neither a run nor a checkpoint; name a run's directory, or one "
        "of its checkpoints/step-N\n"
    )
    run_dir = run_app(
        *SMALL, f"data.path={write_chats([3, 9])}", "train.steps=1", "train.save_every=0"
    ).run_dir
    out = tmp_path / "out"
    words = [sys.executable, "-m", "sft.export", str(run_dir), str(out)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300, cwd=ROOT)
    # Of all that the libraries warn of, nothing.
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        f"{out}\n",
        "stowage: without a tokenizer, as transformers has none for data.tokenizer=bytes\n",
    )
    # Who can read one file can read all.
    assert len({path.stat().st_mode for path in out.iterdir()}) == 1
    assert export_cli.main([str(run_dir), str(out)]) == 2
    assert "exists; choose another directory or remove it" in capsys.readouterr().err
    assert export_cli.main([str(run_dir), str(tmp_path / ("x" * 300))]) == 2
    assert "cannot be written (File name too long); choose another" in capsys.readouterr().err
    assert export_cli.main([str(run_dir), str(tmp_path / "b"), "--adapter"]) == 2
    assert "was trained without LoRA; leave it out" in capsys.readouterr().err
    assert not list(tmp_path.glob(".*"))  # nothing half written is left
    assert np.all([not p.name.startswith(".") for p in out.iterdir()])


def test_the_template_trained_with_is_exported_and_answers(
    run_app: RunApp, write_chats: WriteChats, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer, GenerationConfig

    save_tokenizer(tmp_path / "tokenizer", CHATML)
    mine = tmp_path / "mine.jinja"
    # The answer's last token is not the tokenizer's own end of text, </s>.
    mine.write_text(LLAMA3, encoding="utf-8")
    run_dir = run_app(
        *SMALL, f"data.path={write_chats([3, 9, 4])}", "train.steps=1", "train.save_every=0",
        f"data.tokenizer={tmp_path / 'tokenizer'}", f"data.chat_template={mine}",
    ).run_dir  # fmt: skip
    # Whatever becomes of what was trained with.
    shutil.rmtree(tmp_path / "tokenizer")
    mine.unlink()
    assert export(run_dir, tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    turns = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": " yes "}]
    assert tokenizer.apply_chat_template(turns, tokenize=False) == (
        "<s><|start_header_id|>user<|end_header_id|>\n\nhello<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nyes<|eot_id|>"
    )
    ends = GenerationConfig.from_pretrained(tmp_path / "out").eos_token_id
    assert ends == [tokenizer.convert_tokens_to_ids("<|eot_id|>")]
    words = [str(tmp_path / "out"), "hello", "--system", "no", "--max-new-tokens", "3"]
    assert generate_cli.main(words) == 0
    # The likeliest tokens, asked for in another way.
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    asked = [{"role": "system", "content": "no"}, {"role": "user", "content": "hello"}]
    tokens = tokenizer.apply_chat_template(asked, add_generation_prompt=True)["input_ids"]
    said: list[int] = []
    for _ in range(3):
        said.append(int(model(torch.tensor([tokens + said])).logits[0, -1].argmax()))
        if said[-1] in ends:
            break
    assert (
        answer(tmp_path / "out", "hello", system="no", max_new_tokens=3)
        == tokenizer.decode(said, skip_special_tokens=True).strip()
    )


def test_adapters_are_merged_or_written_alone(
    run_app: RunApp, write_chats: WriteChats, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    path = write_chats([3, 9, 14, 5, 8, 11, 20, 2])
    tiny.make("llama", tmp_path / "original", vocab_size=BYTES)
    shape = ["num_layers=2", "hidden_size=32", "ffn_hidden_size=48", "num_attention_heads=4",
             "num_query_groups=2", "head_dim=null", "context_length=64",
             "norm_epsilon=1e-6"]  # fmt: skip
    result = run_app(
        *SMALL, f"data.path={path}", "data.tokenizer=bytes", "train.steps=2", "train.save_every=0",
        "lora.rank=2", *(f"model.{setting}" for setting in shape),
        f"model.init_from={tmp_path / 'original'}",
    )  # fmt: skip
    export(result.run_dir, tmp_path / "merged")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    loss = loss_of(merged, path, val_rows(path, result))
    assert loss == pytest.approx(result.final_val_loss, rel=1e-5)
    export(result.run_dir, tmp_path / "adapter", adapter=True)
    files = {p.name for p in (tmp_path / "adapter").iterdir()}
    assert files == {"adapter_config.json", "adapter_model.safetensors"}
    with pytest.raises(ConfigError, match=r"^--dtype=bfloat16: adapters are written in float32"):
        export(result.run_dir, tmp_path / "other", adapter=True, dtype="bfloat16")
