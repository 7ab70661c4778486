import json

import numpy as np
import pytest

from data.accounting import Accounting, BadLimit
from data.chat import Dropped
from data.errors import DataError
from data.sample import Sample


def sample(tokens: int, loss_tokens: int, truncated: int = 0) -> Sample:
    targets = np.arange(tokens) >= tokens - loss_tokens
    return Sample(
        tokens=np.zeros(tokens, dtype=np.int32),
        targets=targets,
        source_id="chat.jsonl:1",
        truncated_tokens=truncated,
    )


def counted(*outcomes: Sample | Dropped) -> Accounting:
    accounting = Accounting()
    for outcome in outcomes:
        accounting.add(outcome)
    return accounting


def test_counts() -> None:
    accounting = counted(
        sample(10, 4),
        Dropped("chat.jsonl:2", "invalid JSON"),
        sample(3, 2, truncated=1),
        sample(3, 1, truncated=20),
        Dropped("chat.jsonl:5", "over the capacity", tokens=99),
        Dropped("chat.jsonl:6", "over the capacity", tokens=98),
    )
    assert accounting.to_json() == {
        "read": 6,
        "kept": 3,
        "dropped_total": 3,
        "bad": 1,
        "dropped": {"invalid JSON": 1, "over the capacity": 2},
        "examples": {
            "invalid JSON": ["chat.jsonl:2"],
            "over the capacity": ["chat.jsonl:5", "chat.jsonl:6"],
        },
        "truncated_samples": 2,
        "rewritten_samples": 0,
        "truncated_tokens": 21,
        "real_tokens": 16,
        "loss_tokens": 7,
    }


def test_nothing_read_is_a_valid_count() -> None:
    assert counted().to_json()["read"] == 0
    assert counted().describe() == "0 read: 0 kept, 0 dropped"


def test_the_first_five_examples_are_kept() -> None:
    accounting = counted(*(Dropped(f"chat.jsonl:{n}", "invalid JSON") for n in range(1, 9)))
    assert accounting.examples == {"invalid JSON": [f"chat.jsonl:{n}" for n in range(1, 6)]}
    assert accounting.dropped == {"invalid JSON": 8}


def test_merging_equals_counting_together() -> None:
    outcomes = [
        *(Dropped(f"chat.jsonl:{n}", "invalid JSON") for n in range(1, 5)),
        sample(5, 2),
        *(Dropped(f"chat.jsonl:{n}", "invalid JSON") for n in range(6, 9)),
        sample(5, 3, truncated=4),
        Dropped("chat.jsonl:10", "unknown role"),
    ]
    for cut in range(len(outcomes) + 1):
        left, right = counted(*outcomes[:cut]), counted(*outcomes[cut:])
        untouched = right.to_json()
        left.merge(right)
        assert left == counted(*outcomes)
        left.add(Dropped("chat.jsonl:11", "unknown role"))
        assert right.to_json() == untouched


def test_json_is_plain_and_independent() -> None:
    accounting = counted(sample(5, 2), Dropped("chat.jsonl:2", "invalid JSON"))
    record = accounting.to_json()
    assert json.loads(json.dumps(record)) == record
    record["dropped"]["invalid JSON"] = 7
    record["examples"]["invalid JSON"].append("x")
    assert accounting.to_json() != record


def test_a_lost_conversation_is_noticed() -> None:
    accounting = counted(sample(5, 2))
    accounting.read += 1
    with pytest.raises(AssertionError, match="2 conversations read, 1 accounted for"):
        accounting.to_json()
    with pytest.raises(AssertionError):
        accounting.describe()


def test_the_line_for_people() -> None:
    accounting = counted(
        *(sample(5, 2) for _ in range(4010)),
        Dropped("chat.jsonl:3", "invalid JSON"),
        Dropped("chat.jsonl:90", "invalid JSON"),
        *(Dropped(f"chat.jsonl:{n}", "over the capacity") for n in range(12, 17)),
    )
    assert accounting.describe() == (
        "4,017 read: 4,010 kept, 7 dropped (5 over the capacity: chat.jsonl:12, chat.jsonl:13, "
        "chat.jsonl:14, ...; 2 invalid JSON: chat.jsonl:3, chat.jsonl:90)"
    )
    assert counted(sample(5, 2, truncated=1234)).describe() == (
        "1 read: 1 kept, 0 dropped; 1 truncated by 1,234 tokens"
    )


def bad(n: int) -> list[Sample | Dropped]:
    return [Dropped(f"chat.jsonl:{k}", "invalid JSON") for k in range(1, n + 1)]


@pytest.mark.parametrize(
    ("fraction", "allowed", "refused"),
    [(0.5, 5, 6), (0.0, 0, 1), (0.25, 2, 3), (0.3, 3, 4), (None, 10, None), (1.0, 10, None)],
)
def test_the_limit_is_passed_once_that_is_certain(
    fraction: float | None, allowed: int, refused: int | None
) -> None:
    limit = BadLimit(fraction, 10)
    limit.check(counted(*bad(allowed)))
    if refused is not None:
        with pytest.raises(DataError, match=rf"^at least {refused} of 10 conv.*invalid JSON: chat"):
            limit.check(counted(*bad(refused)))


def test_what_is_too_long_is_not_bad() -> None:
    long = [Dropped(f"chat.jsonl:{k}", "over the capacity", tokens=99) for k in range(10)]
    BadLimit(0.0, 10).check(counted(*long))


def test_the_limit_holds_over_whole_passes() -> None:
    # Half of each pass is bad, and it may come first.
    limit = BadLimit(0.5, 10)
    limit.check(counted(*bad(5), *(sample(5, 2) for _ in range(5)), *bad(5)))
    with pytest.raises(DataError, match="at least 11 of 20"):
        limit.check(counted(*bad(6), *(sample(5, 2) for _ in range(5)), *bad(5)))
