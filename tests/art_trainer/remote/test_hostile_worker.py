"""Results that are well formed and still no episodes: none may reach the journal, the learner or a person."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from art_trainer.config import GRPOConfig
from art_trainer.episodes import Ending, Episode, Span, TokenHistory, Turn
from art_trainer.remote.backend import RemoteBackend
from art_trainer.remote.episode_bounds import EpisodeBounds
from art_trainer.remote.messages import MessageError, read_client_message
from tests.art_trainer.guess import guess_policy
from tests.art_trainer.remote.server_helpers import Wire, episode_of, played, task

Change = Callable[[dict[str, Any]], object]


@contextmanager
def lying(folder: Path) -> Iterator[tuple[RemoteBackend, Wire]]:
    """A trainer's backend that wants a group of two, and somebody who has said hello to it."""
    policy = guess_policy(0, hidden=16)
    config = GRPOConfig(output_dir=str(folder), num_generations=2)
    backend = RemoteBackend(policy, "guess", {}, config, folder, drain_seconds=0)
    try:
        backend.publish(policy.version)
        backend.prefetch([task(0)])
        with connect(backend.url.replace("http", "ws") + "/ws/liar", proxy=None) as socket:
            wire = Wire(socket)
            wire.ask(type="hello", protocol=1)
            yield backend, wire
    finally:
        backend.close()


def spans(result: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = result["episode"]["histories"][0]["spans"]
    return found


LIES: dict[str, tuple[Change, str]] = {
    "a sampled token beyond the vocabulary": (
        lambda result: spans(result)[1].update(token_ids=[2**31]),
        "the model knows those from 0",
    ),
    "a token of the prompt beyond it": (
        lambda result: spans(result)[0]["token_ids"].append(999_999),
        "the token 999999",
    ),
    "a turn that was not played": (lambda result: spans(result)[1].update(turn=1), "tokens of turn 1"),
    "more than the context holds": (
        lambda result: spans(result)[0].update(token_ids=[1] * 100_000),
        "the context holds",
    ),
    "timings of turns that were not played": (
        lambda result: result.update(timing={"started": 1.0, "turns": [[0.5, 0.5], [0.5, 0.5]]}),
        "timings of 2 turns",
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_what_would_break_the_learner_is_not_taken(tmp_path: Path, lie: str) -> None:
    change, words = LIES[lie]
    with lying(tmp_path) as (backend, wire):
        result = played(wire.lease()[0])
        change(result)
        receipt = wire.ask(**result)
        assert receipt["outcome"] == "invalid"
        assert words in receipt["reason"]
        assert not list((tmp_path / "journal").glob("batch-*")), "on disk it would break every resume too"
        assert wire.play(wire.lease()[0])["outcome"] == "accepted", "the attempt is still there to be played"
        assert backend.status().results["accepted"] == 1


NONSENSE = {
    "facts": '"facts":{"deep":[{"er":NaN}]}',
    "infinite facts": '"facts":{"deep":[1e999]}',
    "a call": '"call":{"arguments":{"x":-Infinity}}',
    "tools": '"tools":[{"x":NaN}]',
    "a reward that cannot be added up": '"reward":1e308',
    "a metric": '"metrics":{"x":1e300}',
    "a score term": '"score_terms":{"x":-1e300}',
    "a log-prob that is none in float32": '"logprobs":[-1e300]',
    "more metrics than anyone has": f'"metrics":{json.dumps({str(n): 1.0 for n in range(1_001)})}',
    "a time before there were computers": '"started":-1.0',
    "a turn that took less than no time": '"turns":[[-5.0,null]]',
}


@pytest.mark.parametrize("what", NONSENSE)
def test_numbers_that_are_none_are_no_message_wherever_they_stand(what: str) -> None:
    result = played({"seed": 1, "lease": "l", "token": "t"}, timing={"started": 1.0, "turns": [[0.5, None]]})
    whole = json.dumps(result, separators=(",", ":"))
    assert read_client_message(whole)
    name = NONSENSE[what].split(":")[0]
    start = whole.rindex(f"{name}:")
    old = json.dumps(json.JSONDecoder().raw_decode(whole, start + len(name) + 1)[0], separators=(",", ":"))
    with pytest.raises(MessageError):
        read_client_message(whole.replace(f"{name}:{old}", NONSENSE[what]))


def test_bounds_let_through_what_they_should() -> None:
    bounds = EpisodeBounds(vocabulary=8, max_context=3)
    assert bounds.fault(episode_of(1)) is None, "its newest token is 7, and it has 3"
    assert EpisodeBounds(vocabulary=7, max_context=3).fault(episode_of(1)) is not None
    assert EpisodeBounds(vocabulary=8, max_context=2).fault(episode_of(1)) is not None
    assert EpisodeBounds(vocabulary=8).fault(episode_of(1)) is None
    broken = TokenHistory((Span((), None), Span((1,), 1, (-0.5,))))
    turn = Turn("a", "b", 0.0)
    for ending, fine in ((Ending.ENV_ERROR, True), (Ending.TERMINATED, False)):
        episode = Episode("e", "t", 1, "o", (turn,), (broken,), ending)
        assert (bounds.fault(episode) is None) == fine, "an environment may break after the reply"
