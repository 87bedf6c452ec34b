"""Traces of episodes: ids, identity, and what has no number; the rest is in the golden files."""

import dataclasses

import pytest

from art_trainer.tracking.sinks.traces import Tracer
from art_trainer.types import Ending, Episode, EpisodeTiming, Judgement, Turn, TurnTiming
from tests.art_trainer.tracking.sinks.traced_episodes import invalid, played, run_info, solved

TRACER = Tracer("mail-1-abcd", 1_000_000_000_000, "art-tiny", {"temperature": 0.7, "max_tokens": 4})


def traced(episode, timing=None):
    return TRACER.trace(episode, 3, "000003-0000", timing)


def test_without_times_a_step_has_its_own_second_and_the_turns_their_order():
    trace = traced(solved())
    agent, *turns = trace.nodes
    assert agent.start_ns == trace.scored_ns == TRACER.started_ns + 3_000_000_000
    starts = [node.start_ns for node in turns]
    assert starts == sorted(set(starts))


def test_timings_of_another_number_of_turns_are_refused():
    with pytest.raises(ValueError, match="shorter"):
        traced(solved(), EpisodeTiming(0.0, (TurnTiming(),)))


def test_what_is_no_number_is_no_score():
    turn = Turn("a", "b", float("nan"), {"loss": float("inf"), "fine": 1.0})
    episode = Episode("e", "t", 0, "o", (turn,), (), Ending.TERMINATED, judgements={"j": Judgement(0.5)})
    assert [score.name for score in traced(episode).scores] == ["term.fine", "judge.j"]


def test_a_reply_to_an_environment_without_tools_is_named_so():
    episode = dataclasses.replace(invalid(), turns=(Turn("left", "moved", 0.0),))
    assert traced(episode).nodes[-1].name == "reply"


def test_ids_are_the_same_at_every_delivery_and_no_two_are():
    def ids():
        for tracer in (TRACER, dataclasses.replace(TRACER, run_id="mail-1-ef01")):
            for trace in (*tracer.traces(played(1)), *tracer.traces(played(2))):
                yield trace.trace_id
                yield from (node.span_id for node in trace.nodes)
                yield from (score.score_id for score in trace.scores)

    first, again = list(ids()), list(ids())
    assert first == again
    assert len(set(first)) == len(first)
    assert {len(one) for one in first} == {16, 32}


def test_trace_ids_are_those_of_langfuses_own_function():
    langfuse = pytest.importorskip("langfuse")
    made = langfuse.Langfuse.create_trace_id(seed="mail-1-abcd/000003-0000")
    assert traced(solved()).trace_id == made


def test_a_run_keeps_its_identity_and_two_of_one_name_differ(tmp_path):
    run = run_info(tmp_path, {"temperature": 0.0, "top_p": 0.9})
    first = Tracer.of(run, {})
    assert Tracer.of(run, {"run_id": first.run_id, "started_ns": first.started_ns}) == first
    assert Tracer.of(run, {"unrelated": 1}).run_id != first.run_id
    assert (first.run_id[:7], first.sampling) == ("mail-1-", {"temperature": 0.0, "top_p": 0.9})
