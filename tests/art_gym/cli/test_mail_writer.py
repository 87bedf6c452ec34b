"""``art-gym mail questions --writer``: a scripted model on loopback that is wrong in every way."""

import json
import tomllib
from pathlib import Path

import pytest

from art_gym.envs.mail.env import EmailEnv
from art_gym.wrappers.judging import http_client
from tests.envs.mail.boxes import ANN, mail, written
from tests.wrappers.judging.judge_server import ERROR, JudgeServer, Reply, completion, says

LANGUAGES = tomllib.loads(Path(__file__).with_name("written.toml").read_text("utf-8"))
REPLIES = {
    "prose": says("I would rather not write JSON."),
    "declined": Reply(completion(None) | {"choices": [{"message": {"refusal": "No."}}]}),
    "too long": Reply({"error": {"message": "maximum context length is 10 tokens"}}, status=400),
}


def reply(cases, request):
    """What a model without JSON schema says to a request, as the cases have it."""
    rules, text = (message["content"] for message in request["messages"])
    if "response_format" in request:
        return Reply(ERROR, status=400)
    if rules.startswith("You write"):
        (case,) = (case for case in cases if f"Subject: {case[0]}\n" in text)
        found = dict(zip(("question", "answer", "answer_type"), case[2:5], strict=True))
        return REPLIES.get(case[2]) or says(f"Here it is:\n```json\n{json.dumps(found)}\n```")
    (case,) = (case for case in cases if case[2] and text.endswith(case[2]))
    assert f"Subject: {case[0]}\n" not in text
    return says(json.dumps({"answers": case[6]} if "| Subject: " in text else {"answer": case[5]}))


@pytest.fixture
def started(tmp_path, command, monkeypatch, request):
    """Starts a model that says what the cases have it say; the command, and what the model is asked."""
    monkeypatch.setattr(http_client, "sleep", lambda seconds: None)

    def start(lang="en", answer=None):
        filler, cases = LANGUAGES[lang].values()
        server = JudgeServer(answer or (lambda number, asked: reply(cases, asked)))
        request.addfinalizer(server.close)
        mails = [mail(n, ANN, case[0], f"{case[1]} {filler}", day=n) for n, case in enumerate(cases)]
        box = written(tmp_path / "box.db", mails).path
        words = "mail", "questions", box, "--out", tmp_path / "made.jsonl", "--writer"
        return lambda writer=f"openai:m@{server.url}": command(*words, writer), server.requests

    return start


@pytest.mark.parametrize("lang", LANGUAGES)
def test_only_questions_that_pass_every_check_are_kept(lang, started, tmp_path):
    write, requests = started(lang)
    result = write()
    right = [case[2:4] for case in LANGUAGES[lang]["mails"] if not case[7]]
    reasons = [case[7] for case in LANGUAGES[lang]["mails"] if case[7]]
    assert f"{len(right)} questions kept, {len(reasons)} dropped" in result.out
    assert all(result.out.count(f"1 dropped: {reason}\n") == 1 for reason in reasons), result.out
    made = tmp_path / "made.jsonl"
    questions = [json.loads(line) for line in made.read_text("utf-8").splitlines()]
    assert sorted([question["text"], *question["answers"]] for question in questions) == sorted(right)
    (split,) = {question["split"] for question in questions}  # they are of one conversation
    env = EmailEnv(mailbox=tmp_path / "box.db", questions=made)
    env.reset(seed=0, options={"split": split})
    assert env.step(f"answer(text={dict(right)[env.task.prompt]!r})")[4]["success"]
    # The same command asks again only what got no answer (in three formats), and makes the same file.
    asked, before = len(requests), made.read_text("utf-8")
    assert write().out == result.out
    assert made.read_text("utf-8") == before
    assert len(requests) - asked == 3 * ("no answer from the model" in reasons)


def test_what_is_wrong_with_the_server_is_one_message(started, tmp_path):
    write, requests = started(answer=lambda n, _: Reply(ERROR, status=401 if n < 20 else 400))
    result = write()
    assert result.code == 2
    assert "OPENAI_API_KEY" in result.err
    while len(requests) < 20:
        write()
    assert "no such luck" in write().err  # the fifth in a row
    assert "Connection error" in write("openai:m@http://127.0.0.1:9/v1").err
    assert "names no model: write openai:MODEL@URL" in write("gpt").err
    assert (tmp_path / "made.jsonl").read_text() == ""
