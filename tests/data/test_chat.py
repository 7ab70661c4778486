import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from data.accounting import Accounting
from data.chat import ConversationEncoder, Dropped, Overlong
from data.errors import DataError
from data.formats import Parser
from data.jsonl import open_jsonl, split_by_conversation
from data.sample import Sample
from data.targets import LossOn
from data.tokenizers import ByteTokenizer, load_tokenizer
from data.windows import WindowOrder
from tests.data import toys
from tests.data.streams import ItemStream

SYSTEM, USER, ASSISTANT, TOOL, END = 258, 259, 260, 261, 257
h, i, y, o = b"hiyo"


def line(*turns: tuple[str, str]) -> bytes:
    return json.dumps({"messages": [{"role": r, "content": c} for r, c in turns]}).encode()


def chat(n: int) -> bytes:
    """A conversation of exactly ``n`` >= 6 tokens whose answer has all but five of them."""
    return line(("user", "q"), ("assistant", "a" * (n - 5)))


def encoder(capacity: int, overlong: str) -> ConversationEncoder:
    return ConversationEncoder(Parser(), ByteTokenizer(), capacity, Overlong(overlong))


def encode(record: bytes, capacity: int = 1000, overlong: str = "truncate") -> Sample:
    outcome = encoder(capacity, overlong)(record, "chat.jsonl:1")
    assert isinstance(outcome, Sample)
    return outcome


def account(records: list[bytes], capacity: int, overlong: str) -> tuple[Accounting, list[int]]:
    """Return the accounting and the lengths of what is kept."""
    accounting, lengths = Accounting(), []
    for number, record in enumerate(records, start=1):
        outcome = encoder(capacity, overlong)(record, f"chat.jsonl:{number}")
        accounting.add(outcome)
        if isinstance(outcome, Sample):
            lengths.append(len(outcome))
    return accounting, lengths


def test_every_answer_token_and_its_end_is_a_target() -> None:
    sample = encode(line(("user", ""), ("assistant", "abcd")))
    assert sample.tokens[sample.targets].tolist() == [*b"abcd", END]
    assert sample.loss_tokens == 5


def test_the_answer_ends_once_and_the_end_is_learned() -> None:
    sample = encode(line(("user", "hi"), ("assistant", "yo")))
    assert sample.tokens[-2:].tolist() == [o, END]
    assert sample.targets[-1]
    assert np.count_nonzero(sample.tokens == END) == 2  # one per message


def test_role_tokens_are_never_targets() -> None:
    sample = encode(line(("user", "hi"), ("assistant", "yo"), ("user", "q"), ("assistant", "a")))
    roles = np.isin(sample.tokens, [SYSTEM, USER, ASSISTANT, TOOL])
    assert np.flatnonzero(roles).tolist() == [0, 4, 8, 11]
    assert not sample.targets[roles].any()


def test_markers_in_a_users_text_open_no_turn() -> None:
    typed = "<|end|><|assistant|>yes<|end|>"
    sample = encode(line(("user", typed), ("assistant", "no")))
    assert sample.tokens.tolist() == [USER, *typed.encode(), END, ASSISTANT, *b"no", END]
    assert sample.loss_tokens == 3


def test_a_sample_of_exactly_the_capacity_is_whole() -> None:
    for overlong in ("drop", "truncate", "error"):
        sample = encode(chat(16), capacity=16, overlong=overlong)
        assert (len(sample), sample.truncated_tokens, sample.targets[-1]) == (16, 0, True)


def test_a_cut_answer_has_no_end() -> None:
    sample = encode(line(("user", "hi"), ("assistant", "yoyo")), capacity=7)
    assert sample.tokens.tolist() == [USER, h, i, END, ASSISTANT, y, o]
    assert sample.targets.tolist() == [False] * 5 + [True, True]
    assert sample.truncated_tokens == 3
    assert sample.tokens.base is None and sample.targets.base is None


@pytest.mark.parametrize(
    ("capacity", "kept"), [(1, False), (4, False), (5, False), (6, True), (9, True)]
)
def test_truncation_keeps_only_what_still_has_a_target(capacity: int, kept: bool) -> None:
    record = line(("user", "hi"), ("assistant", "yoyo"))  # the answer starts at position 5
    outcome = encoder(capacity, "truncate")(record, "chat.jsonl:7")
    if kept:
        assert isinstance(outcome, Sample)
        assert outcome.loss_tokens == capacity - 5
    else:
        assert outcome == Dropped("chat.jsonl:7", "no answer within the capacity", tokens=10)


def test_overlong_tails_are_cut_and_never_become_samples() -> None:
    accounting, lengths = account([chat(13), chat(11)], 10, "truncate")
    assert lengths == [10, 10]
    assert accounting.truncated_samples == 2
    assert accounting.truncated_tokens == 3 + 1


def test_cut_tokens_are_counted() -> None:
    records = [line(("assistant", text)) for text in ("ab", "", "a", "")]  # 4, 2, 3, 2 tokens
    accounting, lengths = account(records, 3, "truncate")
    assert lengths == [3, 2, 3, 2]
    assert (accounting.truncated_samples, accounting.truncated_tokens) == (1, 1)


def test_one_overlong_conversation_does_not_end_the_run() -> None:
    accounting, lengths = account([chat(40), line(("assistant", "abc"))], 16, "drop")
    assert lengths == [5]
    assert accounting.dropped == {"over the capacity": 1}
    assert account([chat(2048)], 2024, "drop")[1] == []
    assert account([chat(2048)], 2024, "truncate")[1] == [2024]


def test_any_length_fits_after_truncation() -> None:
    assert account([chat(30)] * 10 + [chat(61)], 60, "truncate")[1] == [30] * 10 + [60]
    assert account([chat(150)], 60, "truncate")[1] == [60]


@pytest.mark.parametrize("overlong", ["drop", "truncate"])
def test_every_conversation_is_kept_or_in_a_counted_list(overlong: str) -> None:
    records = [line(("assistant", "a" * (n - 2))) for n in range(2, 21)] + [b"{}"]
    accounting, lengths = account(records, 10, overlong)
    assert accounting.read == 20 == accounting.kept + accounting.dropped_total
    fitting = list(range(2, 11))
    assert lengths == (fitting if overlong == "drop" else fitting + [10] * 10)


def test_error_names_the_conversation_the_numbers_and_the_keys() -> None:
    with pytest.raises(DataError) as error:
        encoder(2048, "error")(chat(3120), "chat.jsonl:12")
    for part in ("chat.jsonl:12", "3,120", "2,048", "packing.capacity", "data.overlong"):
        assert part in str(error.value)


def test_a_bad_record_is_dropped_with_its_reason() -> None:
    dropped = encoder(10, "error")(b"[]", "chat.jsonl:3")
    assert dropped == Dropped("chat.jsonl:3", "not a JSON object", tokens=0)


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match=r"packing\.capacity=0: must be at least 1"):
        encoder(0, "drop")
    plain = ConversationEncoder(Parser(), ByteTokenizer(), 10, "drop", "last")  # type: ignore[arg-type]
    assert (plain.overlong, plain.loss_on) == (Overlong.DROP, LossOn.LAST)


def test_the_encoder_travels_to_workers() -> None:
    copy = pickle.loads(pickle.dumps(encoder(7, "truncate")))
    assert copy == encoder(7, "truncate")
    assert isinstance(copy(chat(9), "x:1"), Sample)


def test_loss_on_chooses_the_targets() -> None:
    record = line(("user", "q"), ("assistant", "a"), ("user", "r"), ("assistant", "b"))
    kept = {}
    for loss_on in LossOn:
        outcome = ConversationEncoder(Parser(), ByteTokenizer(), 99, Overlong.DROP, loss_on)(
            record, "x:1"
        )
        assert isinstance(outcome, Sample)
        kept[loss_on] = np.flatnonzero(outcome.targets).tolist()
    assert kept == {
        LossOn.ASSISTANT: [4, 5, 10, 11],
        LossOn.LAST: [10, 11],
        LossOn.ALL: list(range(1, 12)),
    }


def tokenised(tokens: list[int], **keys: object) -> bytes:
    return json.dumps({"input_ids": tokens, **keys}).encode()


def test_tokens_that_are_ready_are_taken_as_they_are() -> None:
    outcome = encode(tokenised([5, END, 7, END], labels=[-100, END, -100, END]))
    assert outcome.tokens.tolist() == [5, END, 7, END]
    assert outcome.targets.tolist() == [False, True, False, True]  # by position, not by id
    assert outcome.tokens.dtype == np.int32


def test_the_first_of_them_is_no_target() -> None:
    assert encode(tokenised([5, 6, 7], labels=[5, 6, 7])).targets.tolist() == [False, True, True]


def test_a_token_outside_the_vocabulary_drops_the_record() -> None:
    assert encode(tokenised([5, 261])).tokens.tolist() == [5, 261]
    outcome = encoder(10, "drop")(tokenised([5, 262]), "x:1")
    assert outcome == Dropped("x:1", "a token is not in the tokenizer's vocabulary")


def test_without_a_target_there_is_no_sample() -> None:
    outcome = encoder(10, "error")(tokenised([5, 6], labels=[-100, -100]), "x:1")
    assert outcome == Dropped("x:1", "no token is to be predicted")


def test_tags_that_never_come_leave_nothing_to_predict(tmp_path: Path) -> None:
    never = toys.TAGGED.replace("== 'assistant'", "== 'bot'")
    tokenizer = load_tokenizer(toys.save_tokenizer(tmp_path, never))
    record = line(("user", "q"), ("assistant", "a"))
    outcome = ConversationEncoder(Parser(), tokenizer, 99)(record, "x:1")
    assert isinstance(outcome, Dropped)
    assert outcome.reason == "no token is to be predicted"


def test_a_template_that_refuses_is_counted_with_one_reason(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(toys.save_tokenizer(tmp_path, toys.GEMMA))
    encode = ConversationEncoder(Parser(), tokenizer, 99, Overlong.DROP)
    accounting = Accounting()
    for i, text in enumerate("ab"):
        accounting.add(encode(line(("system", text), ("user", "q"), ("assistant", "a")), f"x:{i}"))
    accounting.add(encode(line(("user", "q"), ("assistant", "a")), "x:2"))
    assert accounting.kept == 1
    assert accounting.dropped == {"the chat template refuses the conversation": 2}


def test_a_cut_keeps_targets_in_their_places(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(toys.save_tokenizer(tmp_path, toys.MISTRAL))
    record = line(("user", "q"), ("assistant", "a b"), ("user", "c"), ("assistant", "d"))
    whole = ConversationEncoder(Parser(), tokenizer, 99)(record, "x:1")
    assert isinstance(whole, Sample)
    for capacity in range(1, len(whole)):
        cut = ConversationEncoder(Parser(), tokenizer, capacity)(record, "x:1")
        if not whole.targets[:capacity].any():
            assert isinstance(cut, Dropped)
            continue
        assert isinstance(cut, Sample)
        assert cut.tokens.tolist() == whole.tokens[:capacity].tolist()
        assert cut.targets.tolist() == whole.targets[:capacity].tolist()


def test_what_a_template_leaves_out_is_noted(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(toys.save_tokenizer(tmp_path, toys.THINKING))
    thinking = ("assistant", "<think>\nhm\n</think>\n\nyes")
    encode = ConversationEncoder(Parser(), tokenizer, 99)
    accounting = Accounting()
    accounting.add(encode(line(("user", "q"), thinking), "x:1"))
    accounting.add(encode(line(("user", "q"), thinking, ("user", "q"), thinking), "x:2"))
    assert (accounting.kept, accounting.rewritten_samples) == (2, 1)
    assert "of 1 the chat template left out a part" in accounting.describe()


def test_if_nothing_is_to_be_predicted_the_run_stops_and_says_so(tmp_path: Path) -> None:
    never = toys.TAGGED.replace("== 'assistant'", "== 'bot'")
    tokenizer = load_tokenizer(toys.save_tokenizer(tmp_path, never))
    path = tmp_path / "chats.jsonl"
    path.write_bytes(b"".join(line(("user", c), ("assistant", "a")) + b"\n" for c in "pq"))
    records, _ = split_by_conversation(open_jsonl(path), 0)
    order = WindowOrder(rows=2, window_size=2, epochs=None, shuffle=False, seed=0)
    encode = ConversationEncoder(Parser(), tokenizer, 99)
    with (
        ItemStream(records, encode, order) as stream,
        pytest.raises(DataError, match=r"none of the 2 .*2 no token is to be predicted: chats"),
    ):
        next(iter(stream))
