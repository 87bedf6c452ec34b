"""What a judge is asked: what is in the question, what is not, and what an attempt cannot do to it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art_gym.wrappers.judging import Attempt, Criterion, Rubric, Step
from art_gym.wrappers.judging.llm_blocks import lay_out
from art_gym.wrappers.judging.llm_material import read_group
from art_gym.wrappers.judging.llm_prompt import Prompt, _fresh_words, build_prompt, repair_messages
from art_gym.wrappers.judging.llm_rubric import RULER_RUBRIC
from art_gym.wrappers.judging.llm_text import attempt_sections, estimated_tokens, quoted, shown
from tests.wrappers.injections import INJECTIONS
from tests.wrappers.judge_server import attempt

TWO = Rubric((Criterion("speed", 0.4, "few steps"), Criterion("style", 0.6)), "Be fair.")
ROOM = 100_000


def prompt_of(group: list[Attempt], rubric: Rubric = RULER_RUBRIC, seed: int = 0, **options: Any) -> Prompt:
    layout = lay_out(read_group(group, **options), ROOM, 100)
    return build_prompt(layout.shared, layout.attempts, rubric, seed=seed, **options)


def mark_of(prompt: Prompt) -> str:
    return re.findall(r"`\[(\w+) begin …\]`", prompt.messages[0]["content"])[0]


def outline(prompt: Prompt) -> list[str]:
    """The lines of the material that are not quoted data: titles, marks, notes and the question."""
    return [line for line in prompt.messages[1]["content"].split("\n") if line and not line.startswith("| ")]


def test_what_all_share_is_told_once_and_ids_not_at_all() -> None:
    tool = {"type": "function", "function": {"name": "search"}}
    first = (Step("search()", "three hits"), Step("read(2)", "a mail"))
    group = [
        Attempt("id-0", "Find it.", (*first, Step("select(2)", "over")), (tool,)),
        Attempt("id-1", "Find it.", (*first, Step("select(3)", "over")), (tool,), "truncated"),
        Attempt("id-2", "Find it.", (*first, Step("select(2)", "over")), (tool,)),
        Attempt("id-3", "Find it.", first, (tool,)),
    ]
    prompt = prompt_of(group)
    text = prompt.messages[1]["content"]
    assert [message["role"] for message in prompt.messages] == ["system", "user"]
    for once in ("| Find it.", "three hits", "| read(2)", '"name":"search"', "select(2)", "| truncated"):
        assert text.count(once) == 1, once
    assert len(prompt.labels) == 3
    assert "id-" not in text
    beginning = text.index("beginning, the same in all attempts")
    assert text.index("three hits") > beginning
    assert "step 3, the agent:\n| select(3)" in text


def test_rewards_success_and_facts_stay_hidden() -> None:
    step = Step("stop()", "over", reward=0.123, call={"name": "secret_call"}, seconds=7.25)
    told = Attempt("a", "t", (step,), success=True, facts={"expected": "secret_fact"})
    text = json.dumps(prompt_of([told]).messages)
    assert all(word not in text for word in ("0.123", "secret", "7.25", "success", "True", "true"))


def test_equal_groups_make_equal_questions_whatever_their_order_and_ids() -> None:
    group = [attempt(str(number), number / 5) for number in range(5)]
    prompt = prompt_of(group)
    renamed = [replace(one, id=f"x{one.id}") for one in [*group[::-1], group[2]][1:]] + [group[4]]
    assert prompt_of(renamed) == prompt
    other = prompt_of(group, seed=1)
    assert set(other.labels).isdisjoint(prompt.labels)
    assert mark_of(other) != mark_of(prompt)
    assert len({prompt_of(group, seed=seed).order for seed in range(20)}) > 10


def test_every_attempt_comes_to_every_place() -> None:
    group = [attempt(str(number), number / 4) for number in range(4)]
    orders = [prompt_of(group, seed=seed).order for seed in range(200)]
    for place in range(4):
        counts = [sum(order[place] == which for order in orders) for which in range(4)]
        assert min(counts) > 25, counts  # 50 expected, standard deviation 6


def test_the_given_order_is_kept_where_asked() -> None:
    group = [attempt(str(number), (number * 7 % 5) / 5) for number in range(5)]
    for listed in (group, group[::-1]):
        prompt = prompt_of(listed, keep_order=True)
        text = prompt.messages[1]["content"]
        places = [text.index(one.steps[0].reply) for one in listed]
        assert places == sorted(places)
        assert prompt.order == (0, 1, 2, 3, 4)


def test_a_rubric_is_told_with_its_weights_and_asks_for_parts() -> None:
    prompt = prompt_of([attempt("a", 0.5)], TWO)
    rules = prompt.messages[0]["content"]
    for words in ("Be fair.", "- speed (weight 0.4): few steps", "- style (weight 0.6)", '"parts"'):
        assert words in rules
    entry = prompt.schema["properties"]["scores"]["items"]
    parts, nothing = entry["properties"]["parts"]["anyOf"]
    assert parts["required"] == ["speed", "style"]
    assert nothing == {"type": "null"}
    assert "parts" not in prompt_of([attempt("a", 0.5)]).messages[0]["content"]


def test_the_schema_is_strict_and_knows_the_labels() -> None:
    prompt = prompt_of([attempt("a", 0.1), attempt("b", 0.2)], TWO)

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


def test_a_repair_quotes_the_problem_and_cannot_break_out() -> None:
    prompt = prompt_of([attempt("a", 0.1), attempt("b", 0.2)])
    *before, answer, question = repair_messages(prompt, "{}<|im_end|>", "no <|im_start|> here")
    assert tuple(before) == prompt.messages
    assert (answer["role"], question["role"]) == ("assistant", "user")
    assert "cannot be used: no < |im_start| > here" in question["content"]
    assert all(label in question["content"] for label in prompt.labels)
    assert "<|" not in answer["content"]
    assert repair_messages(prompt, "", "it is empty")[2]["content"]


@pytest.mark.parametrize("name", INJECTIONS)
@pytest.mark.parametrize("place", ["reply", "observation", "task", "ending"])
def test_an_injection_stays_inside_its_quotes(name: str, place: str) -> None:
    """The lines that are not quoted are the same as if the text had been harmless."""
    rival = attempt("rival", 0.9)
    leaked = prompt_of([rival, attempt("b", 0.1)])
    text = INJECTIONS[name](mark_of(leaked), leaked.labels)

    def group(words: str) -> list[Attempt]:
        step = Step(words, "over") if place == "reply" else Step("stop()", "over")
        step = Step("stop()", words) if place == "observation" else step
        task = words if place == "task" else rival.task
        ending = words if place == "ending" else "terminated"
        return [replace(rival, task=task), Attempt("b", task, (step,), ending=ending)]

    attacked, harmless = prompt_of(group(text)), prompt_of(group("harmless"))
    hidden = {mark_of(attacked): "MARK", mark_of(harmless): "MARK"}
    for prompt in (attacked, harmless):
        hidden |= {label: f"LABEL{place}" for place, label in zip(prompt.order, prompt.labels, strict=True)}

    def form(prompt: Prompt) -> list[str]:
        return sorted(re.sub(r"LABEL\d", "LABEL", _replaced(line, hidden)) for line in outline(prompt))

    assert form(attacked) == form(harmless)
    material = attacked.messages[1]["content"]
    mark, bare = mark_of(attacked), text.casefold()
    assert mark not in bare
    assert not any(label in bare for label in attacked.labels)
    assert material.count(mark) == len([line for line in outline(attacked) if mark in line])
    for token in ("<|", "|>", "<｜", "｜>", "</s>", "[INST]", "[/INST]", "<<SYS>>", "<end_of_turn>", "<bos>"):
        assert token not in material
    material.encode()
    assert len(material.splitlines()) == len(material.split("\n")), "one kind of line break"


def _replaced(text: str, words: dict[str, str]) -> str:
    for old, new in words.items():
        text = text.replace(old, new)
    return text


@settings(deadline=None)
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
    one_letter = _fresh_words("stem", 1, 16, "")
    assert len(set(one_letter)) == 16


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


def test_tokens_are_overestimated_for_prose_and_code() -> None:
    assert estimated_tokens("") == 0
    assert estimated_tokens("four") == 2
    assert estimated_tokens("漢字") == 2
    assert estimated_tokens("\ud800") == 2


@settings(deadline=None)
@given(st.lists(st.tuples(st.text(max_size=80), st.text(max_size=80)), max_size=6), st.integers(0, 120))
def test_a_cut_text_keeps_its_ends_and_its_quotes(steps: list[tuple[str, str]], room: int) -> None:
    sections = attempt_sections(Attempt("a", "t", tuple(Step(*step) for step in steps)))
    full, cut = shown(sections, ROOM), shown(sections, room)
    if estimated_tokens(full) <= room:
        assert cut == full
        return
    titles = {section.title for section in sections}
    own = [line for line in cut.split("\n") if not line.startswith("| ")]
    assert sum("left out here" in line for line in own) == 1
    for line in own:
        assert "left out here" in line or line.removesuffix(":").removesuffix(", goes on") in titles
    assert estimated_tokens(cut) <= room + 40
    note = next(line for line in own if "left out here" in line)
    head, tail = cut.split(note)
    assert full.startswith(head.rstrip("\n"))
    kept = tail.strip("\n").split("\n")[2:]
    assert full.endswith("\n".join(kept))


def test_a_cut_says_whose_words_go_on() -> None:
    sections = attempt_sections(Attempt("a", "t", (Step("x" * 3_000, "y" * 3_000),)))
    cut = shown(sections, 400)
    assert cut.startswith("step 1, the agent:\n| xxx")
    assert "characters left out here …]\nstep 1, the environment, goes on:\n| yyy" in cut
    assert cut.endswith("end of the episode:\n| terminated")
