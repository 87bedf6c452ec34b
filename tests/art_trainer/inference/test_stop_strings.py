"""Stop strings: where a reply ends, what of it the environment gets, and what stays in the context."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_trainer.inference.policy import Conversation
from art_trainer.inference.sampling import StopStrings
from art_trainer.models.chat_template import TokenHistoryBuilder
from art_trainer.rollout.episodes import group_specs, rollout_groups
from tests.art_trainer.inference.test_transformers_policy import make_policy
from tests.art_trainer.tiny_models import EchoEnv, largest_error


def first_end(strings: Sequence[str], pieces: Sequence[bytes]) -> int | None:
    """How many pieces it takes until their text holds a stop string: the definition, tried at every piece."""
    texts = (b"".join(pieces[:count]).decode(errors="replace") for count in range(1, len(pieces) + 1))
    return next((n for n, text in enumerate(texts, 1) if any(string in text for string in strings)), None)


def found_end(strings: Sequence[str], pieces: Sequence[bytes], before: int = 0) -> int | None:
    """The same as found among byte strings, each of which is a token."""
    stop = StopStrings(strings, lambda tokens: b"".join(pieces[t] for t in tokens).decode(errors="replace"))
    tokens = list(range(len(pieces)))
    counts = range(1, len(pieces) - before + 1)
    return next((count for count in counts if stop.ends(tokens[: before + count], count)), None)


@pytest.mark.parametrize(
    ("pieces", "count", "text"),
    [
        (["say", " st", "op", " it"], 3, "say stop"),  # spans tokens
        (["st", "opera"], 2, "stop"),  # ends inside a token
        (["las", "topper"], 2, "lastop"),  # begins and ends inside tokens
        (["a stop in one", "more"], 1, "a stop"),
        (["s", "t", "o", "p"], 4, "stop"),
        (["stoop", "st", "o", "ppp"], 4, "stoopstop"),  # a beginning that led nowhere
        (["END", "stop"], 1, "END"),
        (["stop END"], 1, "stop"),  # the string that is complete first
        (["sto", "", "pE", "ND"], 3, "stop"),
    ],
)
def test_the_token_that_completes_a_string_is_the_last(pieces: list[str], count: int, text: str) -> None:
    raw = [piece.encode() for piece in pieces]
    assert found_end(["stop", "END"], raw) == count
    assert StopStrings(["stop", "END"], str).cut("".join(pieces[:count])) == text


def test_characters_may_be_spread_over_tokens_and_broken_ones_do_no_harm() -> None:
    sign = "né漢"
    raw = [bytes([byte]) for byte in b"a" + sign.encode() + b"z"]
    assert found_end([sign], raw) == 1 + len(sign.encode())
    # The bytes around it are no characters, and the last token begins one that is never finished.
    assert found_end(["stop"], [b"\xff", b"\x80\x80", b"st", b"op\xe6", b"x"]) == 4
    assert found_end(["stop"], [b"\xff"] * 40 + [b"s", b"t", b"op"]) == 43


def test_what_stood_before_the_reply_is_not_looked_at() -> None:
    assert found_end(["stop"], [b"st", b"op", b"st", b"op"], before=1) == 3
    assert found_end(["stop"], [b"stop", b"op", b"x"], before=1) is None


LETTERS = st.text(alphabet="ab<é漢", min_size=1, max_size=5)


@given(
    strings=st.lists(LETTERS, min_size=1, max_size=3),
    text=st.text(alphabet="ab<é漢", max_size=40),
    data=st.data(),
)
def test_a_reply_ends_where_its_whole_text_first_holds_a_string(
    strings: list[str], text: str, data: st.DataObject
) -> None:
    raw = text.encode() + data.draw(st.binary(max_size=6))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(raw)), max_size=len(raw))))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True) if a < b]
    assert found_end(strings, pieces) == first_end(strings, pieces)


def test_tokens_that_complete_nothing_are_not_decoded_again() -> None:
    decoded: list[int] = []

    def decode(tokens: Sequence[int]) -> str:
        decoded.append(len(tokens))
        return "".join("ab.>"[token] for token in tokens)

    stop = StopStrings(["</a>"], decode)
    reply = [0, 1, 2] * 100
    for count in range(1, len(reply) + 1):
        assert not stop.ends(reply[:count], count)
    assert decoded == [2, 2, 2]  # each kind of token once
    assert not stop.ends([*reply, 3], 301)
    assert decoded[3:] == [2, 8]  # and then a few tokens, not the reply


@pytest.mark.parametrize("family", ["qwen2", "lfm2"])
def test_replies_end_with_the_string_and_keep_their_tokens(family: str) -> None:
    strings = ("e", "\n", "x")
    policy = make_policy(family, stops=(), sampling={"max_new_tokens": 16, "stop_strings": strings})
    ends = set()
    groups = rollout_groups(policy, lambda: EchoEnv(3), group_specs(range(4), 4))
    for episode in itertools.chain.from_iterable(group.episodes for group in groups):
        (history,) = episode.histories
        said = [span for span in history.spans if span.turn is not None]
        read = [span for span in history.spans if span.turn is None]
        for turn, span in zip(episode.turns, said, strict=True):
            *earlier, last = span.token_ids
            assert not any(string in policy.format.decode(earlier) for string in strings)
            by_string = turn.reply.endswith(strings)
            ends.add(by_string)
            if by_string:  # such as a special token's text, of which only the beginning counts
                assert policy.format.decode(span.token_ids).startswith(turn.reply)
            else:
                assert last in policy.stop_token_ids or len(span.token_ids) == 16
        for span, before in zip(read[1:], said, strict=False):
            closed = before.token_ids[-1] == policy.format.end_of_turn
            assert (span.token_ids[0] == policy.format.end_of_turn) != closed
    assert largest_error(policy.model, [e for group in groups for e in group.episodes]) < 1e-5
    assert True in ends


def test_text_beyond_the_string_is_cut_for_the_environment_and_kept_in_the_context() -> None:
    policy = make_policy(stops=(), sampling={"stop_strings": ("sto",)})
    history = TokenHistoryBuilder()
    live = Conversation(EchoEnv(), [{"role": "user", "content": "go"}], [], np.random.default_rng(0), 0)
    policy._read(live, history)
    sampled = policy.format.encode("Do stop")
    reply = policy._finish_reply(live, history, sampled, [0.0] * len(sampled), "stop_string")
    assert (reply.text, reply.stop) == ("Do sto", "stop")
    assert live.messages[-1] == {"role": "assistant", "content": "Do sto"}
    live.messages.append({"role": "user", "content": "seen"})
    policy._read(live, history)
    said, read = history.finish()[0].spans[-2:]
    assert policy.format.decode(said.token_ids) == "Do stop"
    assert policy.format.decode(read.token_ids).startswith("<|im_end|>\n<|im_start|>user\nseen")
