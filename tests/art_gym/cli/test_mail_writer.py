"""Questions that a language model writes: a scripted one on loopback that is wrong in every way."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from art_gym.envs.mail.env import EmailEnv
from art_gym.wrappers.judging import http_client
from tests.envs.mail.boxes import ANN, mail, written
from tests.wrappers.judging.judge_server import ERROR, JudgeServer, Reply, Request, completion, says

LANGUAGES = tomllib.loads(Path(__file__).with_name("written.toml").read_text("utf-8"))
REPLIES = {
    "prose": says("I would rather not write JSON."),
    "declined": Reply(completion(None) | {"choices": [{"message": {"refusal": "No."}}]}),
    "too long": Reply({"error": {"message": "maximum context length is 10 tokens"}}, status=400),
}


def scripted(cases: list[Any]) -> Callable[[int, Request], Reply]:
    """A model without JSON schema that says what the cases have it say, by what it is asked."""

    def answer(number: int, request: Request) -> Reply:
        rules, text = (message["content"] for message in request["messages"])
        if "response_format" in request:
            return Reply(ERROR, status=400)
        if rules.startswith("You write"):
            (case,) = (case for case in cases if f"Subject: {case[0]}\n" in text)
            found = dict(zip(("question", "answer", "answer_type"), case[2:5], strict=True))
            return REPLIES.get(case[2]) or says(f"Here it is:\n```json\n{json.dumps(found)}\n```")
        (case,) = (case for case in cases if case[2] and text.endswith(case[2]))
        assert ("| Subject: " in text) == rules.startswith("You are shown")
        assert f"Subject: {case[0]}\n" not in text
        return says(json.dumps({"answers": case[6]} if "| Subject: " in text else {"answer": case[5]}))

    return answer


@pytest.fixture
def write(tmp_path, command, monkeypatch):
    """Run the command with a model that answers so; the server, and what the command said and wrote."""
    monkeypatch.setattr(http_client, "sleep", lambda seconds: None)
    servers, out = [], tmp_path / "made.jsonl"

    def run(answer, *arguments, lang="en", url=None):
        filler, cases = LANGUAGES[lang]["filler"], LANGUAGES[lang]["mails"]
        if not (box := tmp_path / "box.db").exists():
            written(box, [mail(n, ANN, c[0], f"{c[1]} {filler}", day=n) for n, c in enumerate(cases)])
        if not servers:
            servers.append(JudgeServer(answer or scripted(cases)))
        address = f"openai:m@{url or servers[0].url}"
        return servers[0], command("mail", "questions", box, "--out", out, "--writer", address, *arguments)

    yield run
    for server in servers:
        server.close()


@pytest.mark.parametrize("lang", LANGUAGES)
def test_only_questions_that_pass_every_check_are_kept(lang, write, tmp_path):
    server, result = write(None, lang=lang)
    right = [case[2:4] for case in LANGUAGES[lang]["mails"] if not case[7]]
    reasons = [case[7] for case in LANGUAGES[lang]["mails"] if case[7]]
    assert f"{len(right)} questions kept, {len(reasons)} dropped" in result.out
    lines = [line for line in result.out.splitlines() if "1 dropped: " in line]
    assert all(sum(reason in line for line in lines) == 1 for reason in reasons), result.out
    made = tmp_path / "made.jsonl"
    questions = [json.loads(line) for line in made.read_text("utf-8").splitlines()]
    assert sorted([question["text"], *question["answers"]] for question in questions) == sorted(right)
    (split,) = {question["split"] for question in questions}  # they are of one conversation
    assert made.stat().st_mode & 0o777 == 0o600
    env = EmailEnv(mailbox=tmp_path / "box.db", questions=made)
    env.reset(seed=0, options={"split": split})
    assert env.step(f"answer(text={dict(right)[env.task.prompt]!r})")[4]["success"]
    # The same command asks again only what got no answer (in three formats), and makes the same file.
    asked, before = len(server.requests), made.read_text("utf-8")
    assert write(None, lang=lang)[1].out == result.out
    assert made.read_text("utf-8") == before
    assert len(server.requests) - asked == 3 * ("no answer from the model" in reasons)


def test_what_the_server_does_wrong_is_one_message(write, tmp_path):
    _, result = write(lambda number, request: Reply(ERROR, status=401 if number < 20 else 400), "--seed", 1)
    assert result.code == 2
    assert "answered 401" in result.err
    assert "OPENAI_API_KEY" in result.err
    while "401" in (result := write(None)[1]).err:
        pass
    assert "`m` at http://127.0.0.1" in result.err  # the fifth in a row
    assert "no such luck" in result.err
    assert "Connection error" in write(None, url="http://127.0.0.1:9/v1")[1].err
    assert (tmp_path / "made.jsonl").read_text() == ""


def test_the_writers_name_says_what_is_missing(write):
    assert "names no model: write openai:MODEL@URL" in write(None, "--writer", "gpt")[1].err
