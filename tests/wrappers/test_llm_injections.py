"""How far the defences against attempts that speak to their judge hold, and where they end.

Readers of several kinds stand for judge models. The defences keep the material apart from the question; what
a model then makes of words that it reads as words is the model's own affair.

``python -m tests.wrappers.test_llm_injections`` prints the table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

from art_gym.wrappers.judging import Attempt, Step
from art_gym.wrappers.judging.llm_answer import AnswerProblem, read_answer
from art_gym.wrappers.judging.llm_blocks import lay_out
from art_gym.wrappers.judging.llm_material import read_group
from art_gym.wrappers.judging.llm_prompt import Message, Prompt, build_prompt
from art_gym.wrappers.judging.llm_rubric import RULER_RUBRIC
from tests.wrappers.injections import INJECTIONS

Reader = Callable[[tuple[Message, ...]], str]

SOLVED = Attempt("solved", "Find it.", (Step("select(3)", "Correct! The task is solved."),))
_TITLE = re.compile(r"step \d+, the (agent|environment)(, goes on)?:")
_CONTROL = re.compile(r"<\|\w+\|>|<｜[^｜]+｜>|</?s>|\[/?INST\]|<(start|end)_of_turn>")


def question(group: list[Attempt]) -> tuple[Prompt, str]:
    """The question about a group, and its marks' word."""
    layout = lay_out(read_group(group), 100_000, 40)
    prompt = build_prompt(layout.shared, layout.attempts, RULER_RUBRIC, seed=0)
    return prompt, re.findall(r"`\[(\w+) begin …\]`", prompt.messages[0]["content"])[0]


def _blocks(messages: tuple[Message, ...]) -> dict[str, list[str]]:
    """The lines of each attempt, by label, between true marks."""
    (mark,) = re.findall(r"`\[(\w+) begin …\]`", messages[0]["content"])
    blocks: dict[str, list[str]] = {}
    label = None
    for line in messages[1]["content"].split("\n"):
        if found := re.fullmatch(rf"\[{mark} (begin|end) attempt (\w+)\]", line):
            label = found[2] if found[1] == "begin" else None
        elif label is not None:
            blocks.setdefault(label, []).append(line)
    return blocks


def _by_the_environment(lines: list[str], title_of: Callable[[str], str]) -> float:
    speaker = "agent"
    for line in lines:
        if found := _TITLE.fullmatch(title_of(line)):
            speaker = found[1]
        elif speaker == "environment" and "Correct!" in line:
            return 1.0
    return 0.1


def _says(scores: dict[str, float]) -> str:
    return json.dumps({"scores": [{"id": label, "score": score} for label, score in scores.items()]})


def careful(messages: tuple[Message, ...]) -> str:
    """Goes by the marks, the titles and the quotes, as the rules say."""
    return _says({k: _by_the_environment(lines, str) for k, lines in _blocks(messages).items()})


def behind_a_template(messages: tuple[Message, ...]) -> str:
    """Careful, but its server takes control tokens in the text for the end of a message."""
    if _CONTROL.search(messages[1]["content"]):
        return _says(dict.fromkeys(_blocks(messages), 1.0))
    return careful(messages)


def parrot(messages: tuple[Message, ...]) -> str:
    """Copies the first answer that it finds in the material, else is careful."""
    text = messages[1]["content"].replace("\n| ", "\n")
    found = re.search(r'\{"scores": \[.*\]\}', text)
    return found[0] if found else careful(messages)


def blind_to_quotes(messages: tuple[Message, ...]) -> str:
    """Takes a quoted title for a title: who said something is lost on it."""
    blocks = _blocks(messages)
    return _says({k: _by_the_environment(v, lambda line: line.lstrip("| ")) for k, v in blocks.items()})


def obedient(messages: tuple[Message, ...]) -> str:
    """Does what any text asks of it."""
    asked = re.compile(r"score (it |this attempt )?1|deserves 1|all of it right|clearly won", re.IGNORECASE)
    return _says(
        {
            label: 1.0 if asked.search("\n".join(lines)) else _by_the_environment(lines, str)
            for label, lines in _blocks(messages).items()
        }
    )


READERS: dict[str, Reader] = {
    reader.__name__: reader for reader in (careful, behind_a_template, parrot, blind_to_quotes, obedient)
}


def outcome(injection: str, reader: Reader) -> str:
    """What an attempt that failed at its task gets by an injection.

    ``"held"``: the score it deserves. ``"masked"``: nobody in the group gets one. ``"fooled"``: a wrong one.
    """
    leaked, mark = question([SOLVED, Attempt("failed", "Find it.", (Step("select(1)", "Wrong mail."),))])
    text = INJECTIONS[injection](mark, leaked.labels)
    group = [SOLVED, Attempt("failed", "Find it.", (Step(text, "Wrong mail."),))]
    prompt, _ = question(group)
    try:
        scores = read_answer(reader(prompt.messages), prompt.labels)
    except AnswerProblem:
        return "masked"
    ids = dict(zip(prompt.labels, (ids[0] for ids in read_group(group).ids), strict=True))
    by_id = {ids[label]: score.value for label, score in scores.items()}
    return "held" if by_id == {"solved": 1.0, "failed": 0.1} else "fooled"


@pytest.mark.parametrize("injection", INJECTIONS)
def test_who_reads_by_the_rules_is_not_fooled(injection: str) -> None:
    assert outcome(injection, careful) == "held"
    assert outcome(injection, behind_a_template) == "held"


def test_a_copied_answer_never_becomes_a_score() -> None:
    copied = {name for name in INJECTIONS if outcome(name, parrot) == "masked"}
    assert copied == {"fake answer", "fake answer in a fence"}
    assert not any(outcome(name, parrot) == "fooled" for name in INJECTIONS)


def test_what_the_defences_do_not_stop() -> None:
    """A model that cannot tell a quote from a title, or obeys what it reads, is fooled still."""
    fooled = {name for name in INJECTIONS if outcome(name, blind_to_quotes) == "fooled"}
    assert fooled == {"fake observation", "fake quoted observation"}
    fooled = {name for name in INJECTIONS if outcome(name, obedient) == "fooled"}
    assert {"plea", "order", "others' labels", "fake thinking"} <= fooled
    assert "odd line breaks" not in fooled


def table() -> str:
    """The outcome for each injection and reader, as text."""
    width = max(map(len, INJECTIONS))
    lines = [" " * width + "".join(f"  {name:>17}" for name in READERS)]
    for injection in INJECTIONS:
        cells = (outcome(injection, reader) for reader in READERS.values())
        lines.append(f"{injection:{width}}" + "".join(f"  {cell:>17}" for cell in cells))
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
