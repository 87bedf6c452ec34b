"""Question files in ART-E's format."""

import json
from pathlib import Path

import pytest

from art_gym.envs.mail.questions import load_art_e
from art_gym.envs.mail.store.store import MailStore
from art_gym.envs.mail.synthetic.world import generate
from tests.envs.mail.boxes import written

MESSAGE = generate(5, messages=200).messages[9]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> MailStore:
    return written(tmp_path_factory.mktemp("box") / "box.db", [MESSAGE])


def test_questions_are_converted_and_the_others_counted(tmp_path: Path, store: MailStore) -> None:
    known = [f"<{MESSAGE.message_id}>"]
    items = [
        {"question": "When?", "answer": "On Friday", "message_ids": known, "query_date": "2024-05-01"},
        {"question": "How much?", "answer": "$ 1,200", "message_ids": known},
        {"question": "Where?", "answer": None, "message_ids": known},
        {"question": "Who?", "answer": "Ann", "message_ids": ["<gone@x>"]},
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("# a comment\n" + "\n".join(map(json.dumps, items)), encoding="utf-8")
    (first, second), left_out = load_art_e(path, store)
    assert (first.gold_ids, first.answers) == ((MESSAGE.message_id,), ("On Friday",))
    assert first.asked_on.isoformat() == "2024-05-02T00:00:00+00:00"
    assert (first.answer_type, second.answer_type) == ("text", "amount")
    assert MESSAGE.date is not None
    assert second.asked_on > MESSAGE.date
    assert left_out == {"no answer given": 1, "its mail is not in the store": 1}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2: Expecting property name"),
        ("[]", "line 2: it must be a JSON object"),
        ('{"question": 7}', "line 2: question must be a text"),
        ('{"question": "x", "message_ids": "m"}', "line 2: message_ids must be a list"),
        (
            '{"question": "x", "answer": "y", "message_ids": ["ID"], "query_date": "May"}',
            "line 2: query_date",
        ),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, store: MailStore, line: str, words: str) -> None:
    path = tmp_path / "b.jsonl"
    path.write_text("# a comment\n" + line.replace("ID", MESSAGE.message_id), encoding="utf-8")
    with pytest.raises(ValueError, match=words):
        load_art_e(path, store)
