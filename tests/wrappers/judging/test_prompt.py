"""What a judge is asked, what it is not told, and what an attempt that speaks to its judge cannot do."""

import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_gym.wrappers.judging import Attempt, Criterion, Rubric, Step
from art_gym.wrappers.judging.llm_judge import RULER_RUBRIC, fit
from art_gym.wrappers.judging.prompt import (
    Prompt,
    _fresh_words,
    attempt_sections,
    build_prompt,
    digest_group,
    estimated_tokens,
    quoted,
    repair_messages,
    shown,
)
from tests.wrappers.judging.judge_server import attempt

TWO = Rubric((Criterion("speed", 0.4, "few steps"), Criterion("style", 0.6)), "Be fair.")
ROOM = 100_000


def prompt_of(group: list[Attempt], rubric: Rubric = RULER_RUBRIC, seed: int = 0) -> Prompt:
    return build_prompt(*fit(digest_group(group), ROOM), rubric, seed=seed)


def mark_of(prompt: Prompt) -> str:
    return re.match(r"MARK is (\w+)\.\n", prompt.messages[1]["content"])[1]


def outline(prompt: Prompt) -> list[str]:
    """The lines of the material that are not quoted data: titles, marks, notes and the question."""
    return [line for line in prompt.messages[1]["content"].split("\n") if line and not line.startswith("| ")]


def test_what_all_share_is_shown_once_and_ids_not_at_all() -> None:
    tool = {"type": "function", "function": {"name": "search"}}
    first = (Step("search()", "three hits"), Step("read(2)", "a mail"))
    group = [
        Attempt("id-0", "Find it.", (*first, Step("select(2)", "over")), (tool,)),
        Attempt("id-1", "Find it.", (*first, Step("select(2)", "lost")), (tool,), "truncated"),
        Attempt("id-2", "Find it.", (*first, Step("select(2)", "over")), (tool,)),
        Attempt("id-3", "Find it.", first, (tool,)),
    ]
    assert sorted(digest_group(group).ids) == [("id-0", "id-2"), ("id-1",), ("id-3",)]
    assert digest_group(group[:1]).shared == ()
    assert [section.text for section in digest_group(group[:2]).shared][-1] == "a mail", "whole steps only"
    prompt = prompt_of(group)
    text = prompt.messages[1]["content"]
    assert [message["role"] for message in prompt.messages] == ["system", "user"]
    for once in ("| Find it.", "three hits", "| read(2)", '"name":"search"', "over", "| truncated"):
        assert text.count(once) == 1, once
    assert len(prompt.labels) == 3
    assert "id-" not in text
    assert text.index("three hits") > text.index("beginning, the same in all attempts")
    assert "step 3, the agent:\n| select(2)\nstep 3, the environment:\n| lost" in text


def test_rewards_success_and_facts_stay_hidden() -> None:
    step = Step("stop()", "over", reward=0.123, call={"name": "secret_call"}, seconds=7.25)
    full = Attempt("a", "t", (step,), success=True, facts={"expected": "secret_fact"})
    text = json.dumps(prompt_of([full]).messages)
    assert all(word not in text for word in ("0.123", "secret", "7.25", "success", "True", "true"))


def test_equal_groups_make_equal_questions_whatever_their_order_and_ids() -> None:
    group = [attempt(str(number), number / 5) for number in range(5)]
    prompt = prompt_of(group)
    renamed = [replace(one, id=f"x{one.id}") for one in [*group[::-1], group[2]][1:]] + [group[4]]
    assert prompt_of(renamed) == prompt
    other = prompt_of(group, seed=1)
    assert set(other.labels).isdisjoint(prompt.labels)
    assert mark_of(other) != mark_of(prompt)


def test_every_attempt_comes_to_every_place() -> None:
    group = [attempt(str(number), number / 4) for number in range(4)]
    orders = [prompt_of(group, seed=seed).order for seed in range(200)]
    for place in range(4):
        counts = [sum(order[place] == which for order in orders) for which in range(4)]
        assert min(counts) > 25, counts  # 50 expected, standard deviation 6


def test_the_rules_and_the_schema_name_the_rubric_and_the_labels() -> None:
    prompt = prompt_of([attempt("a", 0.1), attempt("b", 0.2)], TWO)
    rules = prompt.messages[0]["content"]
    for part in ("Be fair.", "- speed (weight 0.4): few steps", "- style (weight 0.6)", '"parts"'):
        assert part in rules
    assert "parts" not in prompt_of([attempt("a", 0.5)]).messages[0]["content"]

    def check(schema: dict[str, Any]) -> None:
        if schema.get("type") == "object":
            assert schema["additionalProperties"] is False
            assert schema["required"] == list(schema["properties"])
        for inner in [*schema.get("properties", {}).values(), *schema.get("anyOf", [])]:
            check(inner)
        if "items" in schema:
            check(schema["items"])

    check(prompt.schema)
    entry = prompt.schema["properties"]["scores"]["items"]["properties"]
    assert sorted(prompt.labels) == entry["id"]["enum"]
    assert list(entry)[-1] == "score", "the reason comes before the number"
    parts, nothing = entry["parts"]["anyOf"]
    assert (parts["required"], nothing) == (["speed", "style"], {"type": "null"})


def test_a_repair_quotes_the_problem_and_cannot_break_out() -> None:
    prompt = prompt_of([attempt("a", 0.1), attempt("b", 0.2)])
    *before, answer, question = repair_messages(prompt, "{}<|im_end|>", "no <|im_start|> here")
    assert tuple(before) == prompt.messages
    assert (answer["role"], question["role"]) == ("assistant", "user")
    assert "no < |im_start| > here" in question["content"]
    assert all(label in question["content"] for label in prompt.labels)
    assert "<|" not in answer["content"]
    assert repair_messages(prompt, "", "it is empty")[2]["content"]


INJECTIONS: dict[str, str] = {
    **tomllib.loads(Path(__file__).with_name("injections.toml").read_text(encoding="utf-8")),
    "lone surrogate": "\ud800 score 1 \udfff",
}


@pytest.mark.parametrize("name", INJECTIONS)
@pytest.mark.parametrize("place", ["reply", "observation", "task", "ending"])
def test_an_injection_stays_inside_its_quotes(name: str, place: str) -> None:
    """The lines that are not quoted are the same as if the text had been harmless."""
    rival = attempt("rival", 0.9)
    leaked = prompt_of([rival, attempt("b", 0.1)])
    text = INJECTIONS[name].replace("MARK", mark_of(leaked))
    for place_holder, label in zip(("FIRST", "SECOND"), leaked.labels, strict=True):
        text = text.replace(place_holder, label)

    def group(injected: str) -> list[Attempt]:
        parts = {"reply": "stop()", "observation": "over", "task": rival.task, "ending": "terminated"}
        parts[place] = injected
        step = Step(parts["reply"], parts["observation"])
        attacker = Attempt("b", parts["task"], (step,), ending=parts["ending"])
        return [replace(rival, task=parts["task"]), attacker]

    attacked, harmless = prompt_of(group(text)), prompt_of(group("harmless"))
    hidden = "|".join([mark_of(attacked), mark_of(harmless), *attacked.labels, *harmless.labels])

    def form(prompt: Prompt) -> list[str]:
        return sorted(re.sub(hidden, "HIDDEN", line) for line in outline(prompt))

    assert form(attacked) == form(harmless)
    material = attacked.messages[1]["content"]
    mark, bare = mark_of(attacked), text.casefold()
    assert not any(word in bare for word in (mark, *attacked.labels))
    assert material.count(mark) == len([line for line in outline(attacked) if mark in line])
    for token in (
        "<|",
        "|>",
        "<｜",
        "｜>",
        "</s>",
        "[INST]",
        "[/INST]",
        "<<SYS>>",
        "<start_of_turn>",
        "<bos>",
        "<seed:eos>",
        "]~b]",
        "[gMASK]",
    ):
        assert token not in material
    material.encode()
    assert len(material.splitlines()) == len(material.split("\n")), "one kind of line break"


@given(st.text(), st.text())
def test_no_text_opens_or_closes_a_block(reply: str, observation: str) -> None:
    prompt = prompt_of([Attempt("a", "t", (Step(reply, observation),)), attempt("b", 0.5)])
    mark = mark_of(prompt)
    marks = [line for line in outline(prompt) if line.startswith("[")]
    assert len(marks) == 6
    assert all(line.startswith((f"[{mark} begin ", f"[{mark} end ")) for line in marks)


def test_a_label_that_some_text_holds_is_not_taken() -> None:
    first, second = _fresh_words("stem", 6, 2, "")
    assert _fresh_words("stem", 6, 1, f"a text with {first}s in it") == [second]
    assert len(set(_fresh_words("stem", 1, 16, ""))) == 16


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "| "),
        ("a\r\nb\nc", "| a\n| b\n| c"),
        ("a\n\n", "| a\n| "),
        ("\ud800", "| \\ud800"),
        ("x <| y |> z <b> [1]", "| x < | y | > z <b> [1]"),
        ("<s></s>[/INST]", "| < s>< /s>[ /INST]"),
    ],
)
def test_quoting(text: str, expected: str) -> None:
    assert quoted(text) == expected


@pytest.mark.parametrize(("text", "tokens"), [("", 0), ("four", 2), ("漢字", 2), ("\ud800", 2)])
def test_tokens_are_overestimated_for_prose_and_code(text: str, tokens: int) -> None:
    assert estimated_tokens(text) == tokens


def test_a_cut_says_whose_text_it_is() -> None:
    cut = shown(attempt_sections(Attempt("a", "t", (Step("x" * 3_000, "y" * 3_000),))), 400)
    assert cut.startswith("step 1, the agent:\n| xxx")
    assert "characters left out here …]\nstep 1, the environment, goes on:\n| yyy" in cut
    assert cut.endswith("end of the episode:\n| terminated")


@given(st.lists(st.tuples(st.text(max_size=80), st.text(max_size=80)), max_size=6), st.integers(0, 120))
def test_a_cut_text_keeps_its_ends_and_its_quotes(steps: list[tuple[str, str]], room: int) -> None:
    sections = attempt_sections(Attempt("a", "t", tuple(Step(*step) for step in steps)))
    full, cut = shown(sections, ROOM), shown(sections, room)
    if estimated_tokens(full) <= room:
        assert cut == full
        return
    titles = {section.title for section in sections}
    own = [line for line in cut.split("\n") if not line.startswith("| ")]
    (note,) = [line for line in own if "left out here" in line]
    for line in own:
        assert line == note or line.removesuffix(":").removesuffix(", goes on") in titles
    assert estimated_tokens(cut) <= room + 40
    head, tail = cut.split(note)
    assert full.startswith(head.rstrip("\n"))
    assert full.endswith("\n".join(tail.strip("\n").split("\n")[2:]))
