"""The Dockerfile and .dockerignore as text: what an image holds, and what pip may not touch."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = [
    "conf",
    "data",
    "hydra_plugins",
    "models",
    "sft",
]  # directories without which train.py does not run


def read_instructions(text: str) -> list[tuple[str, str]]:
    """Instructions in order: the word in upper case, and the rest with its lines joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    pairs = [line.strip().partition(" ") for line in joined.splitlines() if line.strip()]
    return [(word.upper(), rest.strip()) for word, _, rest in pairs]


def is_ignored(path: str, patterns: list[str]) -> bool:
    """Whether Docker leaves a path out: the last pattern that names it or a parent decides."""
    parts = path.split("/")
    parents = ["/".join(parts[: n + 1]) for n in range(len(parts))]
    ignored = False
    for pattern in patterns:
        regex = pattern_to_regex(pattern.removeprefix("!").strip("/"))
        if any(regex.fullmatch(parent) for parent in parents):
            ignored = not pattern.startswith("!")
    return ignored


def pattern_to_regex(pattern: str) -> re.Pattern[str]:
    """``*`` and ``?`` stay within a name, ``**/`` stands for any directories, also for none."""
    known = {"**/": r"(?:.*/)?", "**": r".*", "*": r"[^/]*", "?": r"[^/]"}
    tokens = re.findall(r"\*\*/|\*\*|\*|\?|\[[^\]]+\]|[^*?\[]+", pattern)
    return re.compile(
        "".join(known.get(t, t if t.startswith("[") else re.escape(t)) for t in tokens)
    )


INSTRUCTIONS = read_instructions((ROOT / "Dockerfile").read_text(encoding="utf-8"))
IGNORE = [
    line.strip()
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    if line.strip() and not line.startswith("#")
]


def arguments(word: str) -> list[str]:
    return [rest for found, rest in INSTRUCTIONS if found == word]


def with_defaults(text: str) -> str:
    """``${NAME}`` and ``$NAME`` replaced by the first default that an ARG gives."""
    for name, _, default in (arg.partition("=") for arg in reversed(arguments("ARG"))):
        if default:
            value = default.strip('"')
            text = text.replace(f"${{{name}}}", value).replace(f"${name}", value)
    return text


def copies() -> list[list[str]]:
    """The words of each COPY that takes from the project: the sources, and where they go."""
    words = [shlex.split(rest) for rest in arguments("COPY")]
    return [[w for w in copy if not w.startswith("--")] for copy in words if "--from" not in copy]


def copied() -> list[str]:
    return [source.rstrip("/") for *sources, _ in copies() for source in sources]


def commands() -> list[str]:
    """The shell commands of all RUNs, one by one."""
    return [part.strip() for run in arguments("RUN") for part in re.split(r"&&|\|\||[;|]", run)]


def test_the_reader_joins_lines_and_skips_comments() -> None:
    text = "# first\nFROM a \\\n# between\n  AS b\nrun c && \\\n    d\n"
    assert [(word, rest.split()) for word, rest in read_instructions(text)] == [
        ("FROM", ["a", "AS", "b"]),
        ("RUN", ["c", "&&", "d"]),
    ]


@pytest.mark.parametrize(
    ("path", "pattern", "ignored"),
    [
        ("data/sample.py", "data", True),  # what is in an ignored directory is ignored
        ("datasets/chats.jsonl", "data", False),
        ("sft/data", "data", False),  # without **/ only the root's
        ("sft/data", "**/data", True),
        ("data", "**/data", True),
        ("data/x.pyc", "*.pyc", False),
        ("data/x.pyc", "**/*.py[cod]", True),
        (".mypy_cache/3.12/x", ".*_cache", True),
        ("data/x.py", "d?t?/", True),
    ],
)
def test_ignore_patterns_mean_what_docker_means(path: str, pattern: str, ignored: bool) -> None:
    assert is_ignored(path, [pattern]) is ignored
    assert not is_ignored(path, [pattern, f"!{pattern}"])


def test_every_copied_path_exists_and_is_not_ignored() -> None:
    for source in copied():
        assert (ROOT / source).exists(), source
        assert not is_ignored(source, IGNORE), source


def test_the_image_holds_what_train_needs() -> None:
    assert {*SOURCES, "train.py", "pyproject.toml", "README.md", "LICENSE"} <= set(copied())
    kept_apart = {d: target for *sources, target in copies() for d in sources if d.endswith("/")}
    assert kept_apart == {f"{d}/": f"{d}/" for d in SOURCES}  # else COPY pours them into one
    for directory in SOURCES:
        for path in (ROOT / directory).rglob("*"):
            name = path.relative_to(ROOT).as_posix()
            if path.suffix in {".py", ".yaml"}:
                assert not is_ignored(name, IGNORE), name


@pytest.mark.parametrize(
    "path",
    [
        ".git/HEAD",
        ".venv/bin/python",
        "runs/2026-01-01/run.json",
        "datasets/chats.jsonl",
        "data/packers/__pycache__/ffd.cpython-312.pyc",
        ".mypy_cache/x.json",
        "stowage.egg-info/PKG-INFO",
        ".env",
        "conf/.env.local",
        "id.pem",
    ],
)
def test_nothing_private_or_left_over_reaches_a_layer(path: str) -> None:
    assert is_ignored(path, IGNORE)


def test_the_base_image_is_pinned() -> None:
    (base,) = arguments("FROM")
    image = with_defaults(base)
    assert re.fullmatch(r"nvcr\.io/nvidia/pytorch:\d\d\.\d\d-py3(@sha256:[0-9a-f]{64})?", image)


def test_pip_is_held_to_what_the_image_brings() -> None:
    installs = [c for c in commands() if re.search(r"\bpip3? install\b", c)]
    assert installs
    for command in installs:
        assert "--constraint /opt/constraints.txt" in command, command
    written = next(
        i for i, (_, rest) in enumerate(INSTRUCTIONS) if "> /opt/constraints.txt" in rest
    )
    first = next(i for i, (_, rest) in enumerate(INSTRUCTIONS) if "pip install" in rest)
    assert written < first
    assert "PIP_CONSTRAINT=/opt/constraints.txt" in arguments("ENV")


@pytest.mark.parametrize(
    ("package", "held"),
    [
        ("torch==2.14.0a0+b2c75dd062.nv26.9.1", True),
        ("torchvision==0.29.0a0", True),
        ("transformer_engine==2.19.0", True),
        ("transformer-engine==2.19.0", True),
        ("nvidia-cudnn-frontend==1.26.0", True),
        ("triton==3.8.0", True),
        ("numpy==2.1.0", True),
        ("PyYAML==6.0.1", False),
        ("pytorch-lightning==2.5.0", False),
    ],
)
def test_which_packages_are_held(package: str, held: bool) -> None:
    assert bool(re.search(with_defaults("$KEPT"), package, re.IGNORECASE)) is held


def test_dependencies_are_a_layer_before_the_sources() -> None:
    order = [f"{word} {rest}" for word, rest in INSTRUCTIONS]
    dependencies = next(i for i, line in enumerate(order) if "--requirement" in line)
    sources = next(i for i, line in enumerate(order) if line.startswith("COPY conf/"))
    assert dependencies < sources


def test_the_container_does_not_run_as_root() -> None:
    user, _, group = with_defaults(arguments("USER")[-1]).partition(":")
    assert user not in {"", "root", "0"}
    assert group not in {"root", "0"}


def test_words_after_the_image_are_overrides_of_train() -> None:
    (entrypoint,) = arguments("ENTRYPOINT")
    assert json.loads(entrypoint)[-1] == "/workspace/stowage/train.py"
    assert arguments("WORKDIR") == ["/workspace/stowage"]
    assert not arguments("CMD")


def test_runs_and_data_sets_are_volumes_that_were_made_writable_before() -> None:
    (volumes,) = arguments("VOLUME")
    names = {Path(volume).relative_to("/workspace/stowage").name for volume in json.loads(volumes)}
    assert names == {"runs", "datasets"}
    made = next(i for i, (_, rest) in enumerate(INSTRUCTIONS) if "--mode 1777" in rest)
    assert made < [word for word, _ in INSTRUCTIONS].index("VOLUME")
    assert names <= set(INSTRUCTIONS[made][1].split())
