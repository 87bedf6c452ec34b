"""An episode as a tree of observations, whatever it is sent to."""

import dataclasses
import json

import gymnasium as gym
import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_trainer.episodes import Ending, Episode, Judgement, Turn
from art_trainer.monitoring.events import EpisodesPlayed
from art_trainer.monitoring.openpipe_export import openpipe_rows
from art_trainer.monitoring.traces import (
    RunIdentity,
    Sampling,
    episode_trace,
    event_traces,
    messages_before,
    token_usage,
    well_formed,
)
from art_trainer.rollout import rollout
from art_trainer.scripted_policy import ScriptedPolicy
from art_trainer.starts import Start
from art_trainer.timings import EpisodeTiming, TurnTiming
from tests.art_trainer import toy_envs  # noqa: F401 (registers toy/Echo-v0)
from tests.art_trainer.monitoring.trace_receivers import TOOLS, invalid, played, run_info, solved

IDENTITY = RunIdentity("mail-1-abcd", 1_000_000_000_000)
SAMPLING = Sampling("art-tiny", 0.7, None, 4)


def traced(episode, timing=None, step=3):
    return episode_trace(episode, IDENTITY, step, "000003-0000", SAMPLING, timing)


def test_a_turn_is_a_generation_and_an_action():
    trace = traced(solved())
    first, second = trace.generations
    assert first.prompt == ({"role": "user", "content": "What did the books cost?"},)
    assert second.prompt == ({"role": "user", "content": "Nothing found. ☃"},)
    assert (first.reply, second.reply) == tuple(turn.reply for turn in solved().turns)
    assert [(a.tool, a.arguments, a.result, a.reward) for a in trace.actions] == [
        ("search", {"query": "bücher"}, "Nothing found. ☃", -0.1),
        ("answer", {"text": "5 €"}, "Right.", 1.0),
    ]


def test_tokens_are_counted_from_the_histories():
    first, second = traced(solved()).generations
    assert (first.input_tokens, first.output_tokens, first.policy_version) == (5, 3, 11)
    assert (second.input_tokens, second.output_tokens) == (10, 4)
    assert (first.stop, second.stop) == ("stop", "length")  # max_tokens is 4
    (bare,) = traced(invalid()).generations
    assert (bare.input_tokens, bare.output_tokens, bare.policy_version) == (None, None, None)
    assert token_usage(invalid()) == {}


def test_times_follow_from_what_was_measured():
    trace = traced(solved(), EpisodeTiming(50.0, (TurnTiming(0.5, 0.125), TurnTiming(0.25, None))))
    seconds = 1_000_000_000
    first, second = trace.generations
    assert (first.start_ns, first.end_ns) == (50 * seconds, int(50.5 * seconds))
    assert (trace.actions[0].start_ns, trace.actions[0].end_ns) == (
        int(50.5 * seconds),
        int(50.625 * seconds),
    )
    assert (second.start_ns, second.end_ns) == (int(50.625 * seconds), int(50.875 * seconds))
    assert (trace.start_ns, trace.timed) == (50 * seconds, True)
    assert trace.actions[1].seconds is None
    assert trace.actions[1].start_ns < trace.actions[1].end_ns == trace.end_ns


def test_without_times_a_step_has_its_own_second_and_the_turns_their_order():
    trace = traced(solved())
    assert not trace.timed
    assert trace.start_ns == trace.scored_ns == IDENTITY.started_ns + 3_000_000_000
    starts = [s.start_ns for pair in zip(trace.generations, trace.actions, strict=True) for s in pair]
    assert starts == sorted(set(starts))
    assert {s.seconds for s in (*trace.generations, *trace.actions)} == {None}


def test_the_time_of_scores_does_not_depend_on_what_was_measured():
    measured = EpisodeTiming(50.0, (TurnTiming(), TurnTiming()))
    assert traced(solved(), measured).scored_ns == traced(solved()).scored_ns


def test_timings_of_another_number_of_turns_are_refused():
    with pytest.raises(ValueError, match="has 2 turns and timings of 1"):
        traced(solved(), EpisodeTiming(0.0, (TurnTiming(),)))


def test_scores_are_reward_success_terms_and_judgements():
    found = {score.name: (score.value, score.boolean, score.comment) for score in traced(solved()).scores}
    assert found == {
        "reward": (solved().reward, False, ""),
        "success": (1.0, True, ""),
        "independent_reward": (0.8, False, ""),
        "term.cost": (-0.1, False, ""),
        "term.correct": (1.0, False, ""),
        "judge.clarity": (0.75, False, "short and clear"),
        "judge.clarity.tone": (0.5, False, ""),
    }


def test_what_is_no_number_is_no_score():
    turn = Turn("a", "b", float("nan"), {"loss": float("inf"), "fine": 1.0})
    episode = Episode("e", "t", 0, "o", (turn,), (), Ending.TERMINATED, judgements={"j": Judgement(0.5)})
    assert [score.name for score in traced(episode).scores] == ["term.fine", "judge.j"]


def test_an_invalid_reply_is_an_action_with_an_error():
    (action,) = traced(invalid()).actions
    assert (action.tool, action.arguments, action.error) == ("invalid_reply", {}, "no call was found")
    plain = dataclasses.replace(invalid(), turns=(Turn("left", "moved", 0.0),))
    assert traced(plain).actions[0].tool == "reply"


def test_ids_are_the_same_at_every_delivery_and_no_two_are():
    events = [played(step) for step in (1, 2)]
    identities = [IDENTITY, RunIdentity("mail-1-ef01", IDENTITY.started_ns)]

    def ids():
        for identity in identities:
            for event in events:
                for trace in event_traces(event, identity, SAMPLING):
                    yield trace.trace_id
                    yield trace.span_id
                    yield from (span.span_id for span in (*trace.generations, *trace.actions))
                    yield from (score.score_id for score in trace.scores)

    first, again = list(ids()), list(ids())
    assert first == again
    assert len(set(first)) == len(first)
    assert {len(one) for one in first} == {16, 32}
    assert all(int(one, 16) for one in first)


def test_trace_ids_are_those_of_langfuses_own_function():
    langfuse = pytest.importorskip("langfuse")
    made = langfuse.Langfuse.create_trace_id(seed="mail-1-abcd/000003-0000")
    assert traced(solved()).trace_id == made


def test_a_run_keeps_its_identity_and_two_of_one_name_differ(tmp_path):
    run = run_info(tmp_path)
    first = RunIdentity.of(run, None, now_ns=5)
    assert RunIdentity.of(run, json.loads(json.dumps(first.state())), now_ns=9) == first
    assert RunIdentity.of(run, None, now_ns=6).run_id != first.run_id
    assert first.run_id.startswith("mail-1-")
    assert RunIdentity.of(run, {"unrelated": 1}, now_ns=5) == first


def test_sampling_is_read_from_the_settings_or_a_section_of_them(tmp_path):
    assert Sampling.of(run_info(tmp_path)) == Sampling("art-tiny", 0.7, None, 4)
    nested = {"training": {"temperature": 0.0, "top_p": 0.9}, "seed": 1}
    assert Sampling.of(run_info(tmp_path, config=nested)) == Sampling("art-tiny", 0.0, 0.9, None)
    assert Sampling.of(run_info(tmp_path, config={})) == Sampling("art-tiny")


def test_the_whole_prompt_of_a_turn():
    assert messages_before(solved(), 0) == [{"role": "user", "content": "What did the books cost?"}]
    assert [message["role"] for message in messages_before(solved(), 1)] == ["user", "assistant", "user"]
    assert messages_before(solved(), 1)[-1]["content"] == "Nothing found. ☃"


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_well_formed_text_can_be_written_and_keeps_what_could(text):
    cleaned = well_formed(text)
    assert cleaned.encode("utf-8").decode("utf-8") == cleaned
    assert len(cleaned) == len(text)
    assert all(new in (old, "?") for old, new in zip(text, cleaned, strict=True))
    if not any("\ud800" <= sign <= "\udfff" for sign in text):
        assert cleaned == text


numbers = st.floats(allow_nan=True, allow_infinity=True)
turns = st.builds(
    Turn,
    reply=st.text(),
    observation=st.text(),
    reward=numbers,
    score_terms=st.dictionaries(st.text(max_size=4), numbers, max_size=3),
    call=st.none() | st.just({"name": "search", "arguments": {"query": "x"}}),
    error=st.none() | st.just({"kind": "no_call", "message": "none"}),
)


@given(
    st.lists(turns, max_size=5),
    st.data(),
    st.floats(0, 4e9),
    st.none() | st.floats(0, 1e5),
)
def test_any_episodes_tree_is_well_formed(played_turns, data, started, length):
    episode = Episode("e", "t", 0, "start", tuple(played_turns), (), Ending.TERMINATED)
    timing = EpisodeTiming(started, tuple(TurnTiming(length, length) for _ in played_turns))
    event = EpisodesPlayed(data.draw(st.integers(0, 10**6)), (episode, episode), (timing, None))
    for trace in event_traces(event, IDENTITY, SAMPLING):
        assert len(trace.generations) == len(trace.actions) == len(played_turns)
        now = trace.start_ns
        for generation, action in zip(trace.generations, trace.actions, strict=True):
            assert now == generation.start_ns < generation.end_ns == action.start_ns < action.end_ns
            now = action.end_ns
        assert trace.end_ns >= now
        assert [generation.reply for generation in trace.generations] == [t.reply for t in played_turns]
        json.dumps([dataclasses.asdict(score) for score in trace.scores], allow_nan=False)


def test_a_tree_of_real_play_has_all_of_it():
    starts = [Start(seed) for seed in range(3)]
    episodes = rollout(ScriptedPolicy("scripted"), lambda: gym.make("toy/Echo-v0"), starts)
    for trace, episode in zip(
        event_traces(EpisodesPlayed(1, tuple(episodes)), IDENTITY, SAMPLING), episodes, strict=True
    ):
        assert trace.episode is episode
        (action,), (turn,) = trace.actions, episode.turns
        assert (action.tool, action.arguments) == ("say", turn.call["arguments"])
        assert (action.result, action.score_terms) == ("Right.", {"word": 1.0, "speed": -0.1})
        assert {s.name: s.value for s in trace.scores} == {
            "reward": episode.reward,
            "success": 1.0,
            "term.word": 1.0,
            "term.speed": -0.1,
        }


# --- OpenPipe's fine-tuning file, made from the same conversations ------------------------------------


def test_a_conversation_is_one_row_that_ends_with_the_last_reply():
    (row,) = openpipe_rows(solved(), split="TRAIN", metadata={"run": "mail-1"})
    assert [message["role"] for message in row["messages"]] == ["user", "assistant", "user", "assistant"]
    assert row["messages"][-1]["content"] == 'answer("5 €")'
    assert row["tools"] == list(TOOLS)
    assert row["split"] == "TRAIN"
    assert row["metadata"]["reward"] == str(solved().reward)
    assert row["metadata"]["success"] == "true"
    assert row["metadata"]["run"] == "mail-1"
    assert all(isinstance(value, str) for value in row["metadata"].values())


def test_a_row_a_turn_has_what_came_before_it():
    first, second = openpipe_rows(solved(), unit="turn")
    assert len(first["messages"]) == 2
    assert second["messages"][:2] == first["messages"]
    assert (first["metadata"]["turn_reward"], second["metadata"]["turn_reward"]) == ("-0.1", "1.0")
    assert "split" not in first


def test_invalid_replies_are_no_examples_of_their_own():
    assert list(openpipe_rows(invalid(), unit="turn")) == []
    (row,) = openpipe_rows(invalid())
    assert "tools" not in row
    nothing = dataclasses.replace(invalid(), turns=())
    assert list(openpipe_rows(nothing)) == list(openpipe_rows(nothing, unit="turn")) == []


def test_native_calls_stand_apart_from_the_words():
    (row,) = openpipe_rows(solved(), native_calls=True)
    _, said, seen, last = row["messages"]
    assert said["content"] == "I look."
    (call,) = said["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"query": "bücher"}
    assert seen == {"role": "tool", "tool_call_id": call["id"], "content": "Nothing found. ☃"}
    assert last["content"] is None
    assert last["tool_calls"][0]["id"] != call["id"]
    (plain,) = openpipe_rows(invalid(), native_calls=True)
    assert plain["messages"][-1] == {"role": "assistant", "content": "hello"}


def test_standing_instructions_become_the_system_message():
    episode = dataclasses.replace(solved(), observation="Be brief.\n\nWhat did the books cost?")
    (row,) = openpipe_rows(episode, system="Be brief.")
    assert row["messages"][:2] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What did the books cost?"},
    ]
