"""An episode's JSON schema: what is read back is what was written, to the last bit."""

import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_trainer.tracking.episode_schema import episode_from_json, episode_to_line
from art_trainer.types import Ending, Episode, Judgement, Span, TokenHistory, Turn

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


@given(episodes)
def test_an_episode_comes_back_from_its_line(episode: Episode) -> None:
    line = episode_to_line(episode, {"step": 1})
    assert "\n" not in line
    found = episode_from_json(json.loads(line))
    assert repr(found) == repr(episode)  # nan equals no number, but shows like itself
    assert bits(found) == bits(episode)
    assert type(found.ending) is Ending


def test_a_log_prob_of_more_bits_is_rounded_to_what_the_learner_computes_with() -> None:
    span = Span((5,), 0, (-0.1,))
    episode = Episode("e", "t", 0, "", (Turn("", "", 0.0),), (TokenHistory((span,)),), Ending.TERMINATED)
    found = episode_from_json(json.loads(episode_to_line(episode, {})))
    assert found.histories[0].logprobs == struct.unpack("<f", struct.pack("<f", -0.1))


def test_every_field_of_a_span_has_a_place_in_the_line() -> None:
    # Those of episodes and turns are taken over by name; a span's have shorter ones.
    assert Span.__match_args__ == ("token_ids", "turn", "logprobs", "policy_version")


def test_a_line_of_before_a_field_was_added_has_its_default() -> None:
    episode = Episode("e", "t", 0, "", (Turn("", "", 0.0),), (), Ending.TERMINATED)
    data = json.loads(episode_to_line(episode, {}))
    del data["unjudged"], data["turns"][0]["state"]
    assert episode_from_json(data) == episode
    del data["seed"]
    with pytest.raises(TypeError, match="seed"):
        episode_from_json(data)
