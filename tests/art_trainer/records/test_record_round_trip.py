"""What is read back is what was written, to the last bit."""

import json
import math
import struct
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from art_trainer.episodes import Ending, Episode, Group, Judgement, Span, TokenHistory, Turn
from art_trainer.records import EpisodeWriter, iter_episodes, read_step
from art_trainer.records.encoding import decode_episode, encode_episode

text = st.text(st.characters(), max_size=20)  # lone surrogates too
number = st.floats(allow_nan=False)
single = st.floats(width=32)  # infinities and every kind of nan too
scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | number | text
plain = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
mappings = st.dictionaries(text, plain, max_size=3)
terms = st.dictionaries(text, number, max_size=3)


@st.composite
def spans(draw: st.DrawFn) -> Span:
    tokens = tuple(draw(st.lists(st.integers(0, 2**31 - 1), max_size=6)))
    turn = draw(st.none() | st.integers(0, 9))
    logprobs = [] if turn is None else draw(st.lists(single, min_size=len(tokens), max_size=len(tokens)))
    return Span(tokens, turn, tuple(logprobs), draw(st.integers(0, 2**40)))


turns = st.builds(
    Turn,
    reply=text,
    observation=text,
    reward=number,
    score_terms=terms,
    call=st.none() | mappings,
    error=st.none() | mappings,
    state=st.none() | text,
)
episodes = st.builds(
    Episode,
    env_id=text,
    task_id=text,
    seed=st.integers(0, 2**63),
    observation=text,
    turns=st.lists(turns, max_size=3).map(tuple),
    histories=st.lists(
        st.lists(spans(), max_size=3).map(lambda some: TokenHistory(tuple(some))), max_size=2
    ).map(tuple),
    ending=st.sampled_from(Ending),
    success=st.none() | st.booleans(),
    metrics=terms,
    error=st.none() | text,
    tools=st.lists(mappings, max_size=2).map(tuple),
    facts=mappings,
    judgements=st.dictionaries(text, st.builds(Judgement, number, text, terms), max_size=2),
    independent_reward=st.none() | number,
    unjudged=st.none() | text,
)


def bits(episode: Episode) -> list[bytes]:
    """The log-probs as bytes: nan equals no number, not even itself."""
    return [
        np.asarray(span.logprobs, "<f4").tobytes() for history in episode.histories for span in history.spans
    ]


def without_nan(episode: Episode) -> dict[str, Any]:
    """An episode as data in which nan is a word."""
    data = episode.to_json()
    for history in data["histories"]:
        for span in history["spans"]:
            span["logprobs"] = ["nan" if math.isnan(x) else x for x in span["logprobs"]]
    return data


def read_line(line: str) -> Episode:
    return decode_episode(json.loads(line))


@given(episodes)
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_an_episode_comes_back_from_its_line(episode: Episode) -> None:
    line = encode_episode(episode, {"step": 1})
    assert "\n" not in line
    found = read_line(line)
    assert without_nan(found) == without_nan(episode)
    assert bits(found) == bits(episode)
    assert type(found.ending) is Ending


@given(st.lists(st.tuples(st.booleans(), st.lists(text, min_size=1, max_size=3)), max_size=4))
def test_a_step_comes_back_group_by_group(tmp_path_factory: Any, drawn: Any) -> None:
    folder: Path = tmp_path_factory.mktemp("run")
    batches: dict[bool, list[Group]] = {False: [], True: []}
    for is_replaced, replies in drawn:
        members = [
            Episode("e", "t", 0, "", (Turn(reply, "", 0.0),), (), Ending.TERMINATED) for reply in replies
        ]
        batches[is_replaced].append(Group(tuple(members)))
    EpisodeWriter(folder).write_step(7, batches[False], batches[True])
    record = read_step(folder, 7)
    assert record.complete
    assert record.groups == tuple(batches[False])
    assert record.replaced == tuple(batches[True])
    places = [(one.group, one.replaced) for one in iter_episodes(folder)]
    assert places == [
        (index, replaced)
        for replaced in (False, True)
        for index, group in enumerate(batches[replaced])
        for _ in group.episodes
    ]


def test_a_log_prob_of_more_bits_is_rounded_to_what_the_learner_computes_with() -> None:
    span = Span((5,), 0, (-0.1,))
    episode = Episode("e", "t", 0, "", (Turn("", "", 0.0),), (TokenHistory((span,)),), Ending.TERMINATED)
    found = read_line(encode_episode(episode, {}))
    assert found.histories[0].logprobs == struct.unpack("<f", struct.pack("<f", -0.1))


def test_every_field_of_a_span_has_a_place_in_the_line() -> None:
    # Those of episodes and turns are taken over by name; a span's have shorter ones.
    assert [field.name for field in fields(Span)] == ["token_ids", "turn", "logprobs", "policy_version"]
    assert [field.name for field in fields(TokenHistory)] == ["spans"]


def test_a_line_of_before_a_field_was_added_has_its_default() -> None:
    episode = Episode("e", "t", 0, "", (Turn("", "", 0.0),), (), Ending.TERMINATED)
    data = json.loads(encode_episode(episode, {}))
    del data["unjudged"], data["turns"][0]["state"]
    assert decode_episode(data) == episode
    del data["seed"]
    with pytest.raises(TypeError, match="seed"):
        decode_episode(data)
