"""Real conversations between people, from the ``chitchat-dataset`` package: a demo with no hub.

Its records are lists of turns whose two speakers alternate, each turn a list of utterances. They
are converted once, into ``CACHE_DIR/chitchat-VERSION/chitchat.jsonl``; ``chitchat.json`` beside it
holds the counts and is written last, so that it marks the cache as complete.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from data.errors import DataError
from data.files.places import expanded
from data.jsonl import open_jsonl, split_by_conversation, write_atomically, write_jsonl
from data.sources.base import Counts, DataSource, PreparedData

_PACKAGE = "chitchat-dataset"
# Raise this when the conversion changes, so that no run uses what an earlier version wrote.
_RECIPE = 1
# A scheme, "www.", or a host with a path: "see lds.org/topics", but not a bare "Twitch.tv".
_LINK = re.compile(r"\w://|\bwww\.\w|\b[\w-]+\.[a-z]{2,}/\w", re.IGNORECASE)
_EMAIL = re.compile(r"[\w.+-]+@[\w-]+\.\w")


@dataclass(frozen=True, kw_only=True)
class ChitchatSource(DataSource):
    """3,988 chats between students, two to hundreds of turns long.

    Attributes:
        cache_dir: directory for the converted file.
    """

    cache_dir: str = "datasets"

    def prepare(self) -> PreparedData:
        """Convert the package's data unless that is done already, and index the result.

        Raises:
            DataError: the package is not installed, or the cache cannot be written.
        """
        source, version = _locate()
        try:
            folder = expanded(self.cache_dir) / f"chitchat-{version}"
            counts = _cached_counts(folder) or _build(source, folder)
        except OSError as error:
            raise DataError(
                f"data.cache_dir={self.cache_dir}: cannot prepare chitchat.jsonl in it ({error}); "
                "set data.cache_dir to a directory that can be written"
            ) from error
        file = open_jsonl(folder / "chitchat.jsonl", key="data.cache_dir")
        train, val = split_by_conversation(file, self.val_fraction, limit=self.limit)
        return PreparedData(train=train, val=val, name="chitchat", notes=counts)


def to_messages(record: Mapping[str, Any]) -> list[dict[str, str]]:
    """Convert one record of the package.

    Who speaks is told by whether a turn's number is odd or even. Where a turn without text is left
    out, its neighbours have the same speaker and become one message, so the roles always alternate
    after the topic, which becomes the system message. Whoever speaks first is the user.

    Returns:
        The messages: at most one system message, then user, assistant, user, ...
    """
    texts: list[str] = []
    last_speaker = -1
    for number, turn in enumerate(record["messages"]):
        text = " ".join(filter(None, (utterance["text"].strip() for utterance in turn)))
        if not text:
            continue
        if number % 2 == last_speaker:
            texts[-1] += f" {text}"
        else:
            texts.append(text)
        last_speaker = number % 2
    topic = (record.get("prompt") or "").strip()
    messages = [{"role": "system", "content": topic}] if topic else []
    for i, text in enumerate(texts):
        messages.append({"role": ("user", "assistant")[i % 2], "content": text})
    return messages


def select(records: Iterable[Mapping[str, Any]]) -> tuple[list[list[dict[str, str]]], Counts]:
    """Convert all records and leave out what should not be trained on.

    Returns:
        The conversations, and counts that add up: ``read`` = ``written`` + what was dropped, by
        reason.
    """
    conversations: list[list[dict[str, str]]] = []
    dropped = {
        "fewer than two turns with text": 0,
        "contains a URL or e-mail address": 0,
        "exact duplicate": 0,
    }
    seen: set[tuple[str, ...]] = set()
    read = 0
    for record in records:
        read += 1
        messages = to_messages(record)
        # Not the topic: the same few words under two topics are one conversation.
        turns = tuple(m["content"] for m in messages if m["role"] != "system")
        if len(turns) < 2:
            dropped["fewer than two turns with text"] += 1
        elif _leads_elsewhere("\n".join(m["content"] for m in messages)):
            dropped["contains a URL or e-mail address"] += 1
        elif turns in seen:
            dropped["exact duplicate"] += 1
        else:
            seen.add(turns)
            conversations.append(messages)
    return conversations, {"read": read, "dropped": dropped, "written": len(conversations)}


def _leads_elsewhere(text: str) -> bool:
    # The plain searches come first because few conversations pass them and they are far faster.
    link = ("/" in text or "www." in text.lower()) and _LINK.search(text)
    return bool(link or ("@" in text and _EMAIL.search(text)))


def _locate() -> tuple[Path, str]:
    """Return the package's data file and version; importing it would run code for nothing."""
    try:
        version = metadata.version(_PACKAGE)
        files = metadata.files(_PACKAGE) or []
    except metadata.PackageNotFoundError:
        raise DataError(
            f"data=chitchat needs the package {_PACKAGE}: pip install 'stowage[demo]'"
        ) from None
    for file in files:
        if file.name == "dataset.json":
            return Path(str(file.locate())), version
    raise DataError(
        f"data=chitchat: {_PACKAGE} {version} is installed without its dataset.json; "
        "pip install --force-reinstall 'stowage[demo]'"
    )


def _cached_counts(folder: Path) -> Counts | None:
    """Return the counts of a complete cache, or None if it has to be written."""
    try:
        mark = json.loads((folder / "chitchat.json").read_bytes())
        size = (folder / "chitchat.jsonl").stat().st_size
        if (mark["recipe"], mark["bytes"]) != (_RECIPE, size):
            return None
        return {key: mark[key] for key in ("read", "dropped", "written")}
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _build(source: Path, folder: Path) -> Counts:
    conversations, counts = select(json.loads(source.read_bytes()).values())
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "chitchat.jsonl"
    # Two processes may both be here: they write the same bytes, so whoever is last changes nothing.
    write_jsonl(path, ({"messages": messages} for messages in conversations))
    mark = {"recipe": _RECIPE, "bytes": path.stat().st_size, **counts}
    write_atomically(folder / "chitchat.json", [json.dumps(mark, indent=2).encode() + b"\n"])
    return counts
