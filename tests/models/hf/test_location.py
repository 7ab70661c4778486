"""Where a model is looked for, and what is said where there is none."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from models.hf.shape import shape_of
from tests.models.hf.test_shape import SMOLLM2, write


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("nothing", None, "does not exist, and is no id on the Hugging Face Hub"),
        (
            "x" * 300,
            None,
            r"cannot be read \(File name too long\); name a directory or a GG",
        ),
        ("dir/", None, "holds no config.json"),
        ("model.bin", "x", "is a file, and no GGUF file"),
        ("dir/config.json", "{broken", r"dir: \S+dir/config\.json is not JSON \(.*\); mend it, or"),
        ("dir/config.json", "[1]", r"dir: \S+dir/config\.json holds no JSON object; fetch it"),
        ("dir/adapter_config.json", "{}", "holds no config.json; it is an adapter, so name the"),
    ],
)
def test_where_there_is_no_model(tmp_path: Path, name: str, content: str | None, told: str) -> None:
    path = tmp_path / name
    if name.startswith("dir"):
        (tmp_path / "dir").mkdir()
        where = tmp_path / "dir"
    else:
        where = path
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=told):
        shape_of(str(where))


@pytest.mark.parametrize(
    ("init_from", "told"),
    [
        ("", "init_from=: must name a directory as transformers saves it, a model on the Hugging"),
        ("~nobody-here/x", "init_from=~nobody-here/x: there is no such home directory; write the"),
    ],
)
def test_what_is_no_path(init_from: str, told: str) -> None:
    with pytest.raises(ValueError, match=f"^{told}"):
        shape_of(init_from)


def test_a_directory_of_gguf_files_says_which(tmp_path: Path) -> None:
    (tmp_path / "small.gguf").touch()
    with pytest.raises(
        ValueError, match=r"holds no config\.json; name a GGUF file in it: small\.gguf"
    ):
        shape_of(str(tmp_path))


def test_the_hub_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError) as caught:
        shape_of("somebody/some-model")
    assert str(caught.value) == (
        f"init_from=somebody/some-model: is no directory here, is not in the Hub's cache "
        f"({tmp_path}), and the Hub cannot be reached; fetch it where there is a network (hf "
        "download somebody/some-model), or name a directory"
    )
    # What was fetched before is found.
    cached = tmp_path / "models--somebody--some-model"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("0" * 40, encoding="utf-8")
    snapshot = cached / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    write(snapshot, SMOLLM2)
    assert shape_of("somebody/some-model").num_layers == 30


@pytest.mark.parametrize(
    ("status", "code", "told"),
    [
        (403, None, "cannot be fetched from the Hub into its cache at {cache} (403 Forbidden: "),
        (401, "RepoNotFound", "neither a directory here nor a model on the Hugging Face Hub; "
         "correct the name, or run hf auth login if the model is private"),
        (403, "GatedRepo", "the Hub gives it to those only whom its owner admits; ask for that"),
    ],
)  # fmt: skip
def test_the_hub_says_no(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, code: str | None, told: str
) -> None:
    from huggingface_hub import constants

    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            if code is not None:
                self.send_header("X-Error-Code", code)
            self.end_headers()

        def log_message(self, *words: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        with pytest.raises(ValueError) as caught:
            shape_of("somebody/some-model")
        server.shutdown()
    assert str(caught.value).startswith(
        f"init_from=somebody/some-model: {told.format(cache=tmp_path)}"
    )
