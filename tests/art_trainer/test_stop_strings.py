"""Stop strings: where a reply ends, what of it the environment gets, and what stays in the context."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_trainer.config import GRPOConfig
from art_trainer.errors import ConfigError
from art_trainer.policy import Conversation
from art_trainer.rollout import rollout_groups
from art_trainer.sampler import SamplingParams
from art_trainer.stop_strings import StopStrings
from art_trainer.trainer import GRPOTrainer
from art_trainer.transformers_policy import TransformersPolicy
from tests.art_trainer.tiny_models import EchoEnv, byte_tokenizer, full_logprobs, tiny_model

TOKENIZER = byte_tokenizer()


def decode_bytes(pieces: Sequence[bytes]) -> object:
    """A vocabulary of byte strings, and how it reads token numbers."""
    return lambda tokens: b"".join(pieces[token] for token in tokens).decode(errors="replace")


def first_end(strings: Sequence[str], pieces: Sequence[bytes]) -> int | None:
    """How many pieces it takes until their text holds a stop string: the definition, tried at every piece."""
    for count in range(1, len(pieces) + 1):
        text = b"".join(pieces[:count]).decode(errors="replace")
        if any(string in text for string in strings):
            return count
    return None


def found_end(strings: Sequence[str], pieces: Sequence[bytes], before: int = 0) -> int | None:
    stop = StopStrings(strings, decode_bytes(pieces))  # type: ignore[arg-type]
    tokens = list(range(len(pieces)))
    for count in range(1, len(pieces) - before + 1):
        if stop.ends(tokens[: before + count], count):
            return count
    return None


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
    assert StopStrings(["stop", "END"], decode_bytes(raw)).cut("".join(pieces[:count])) == text  # type: ignore[arg-type]


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


def make_policy(family: str = "qwen2", **sampling: object) -> TransformersPolicy:
    model = tiny_model(family, vocab_size=len(TOKENIZER))
    return TransformersPolicy(model, TOKENIZER, sampling=SamplingParams(**{"max_new_tokens": 16, **sampling}))  # type: ignore[arg-type]


@pytest.mark.parametrize("family", ["qwen2", "mistral-sliding"])
def test_replies_end_with_the_string_and_keep_their_tokens(family: str) -> None:
    strings = ("e", "\n", "x")
    policy = make_policy(family, stop_strings=strings)
    ends, episodes = set(), []
    for group in rollout_groups(policy, lambda: EchoEnv(3), range(4), 4):
        episodes += group.episodes
    for episode in episodes:
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
        full = full_logprobs(policy.model, history.token_ids)
        assert np.abs(full[np.array(history.action_mask[1:])] - history.logprobs).max() < 1e-5
    assert True in ends


def test_text_beyond_the_string_is_cut_for_the_environment_and_kept_in_the_context() -> None:
    policy = make_policy(stop_strings=("sto",))
    live = Conversation(EchoEnv(), [{"role": "user", "content": "go"}], [], np.random.default_rng(0), 0)
    policy.submit(live)
    seat = live.state
    policy._pending.remove(live) if live in policy._pending else policy._waiting.remove(live)
    sampled = [*policy.format.encode("Do s"), *policy.format.encode("to"), *policy.format.encode("p")]
    seat.sequence.tokens = [*seat.sequence.tokens, *sampled]
    seat.sequence.logprobs = [0.0] * len(sampled)
    reply = policy._finish(live, stopped=False, said_it=True)
    assert (reply.text, reply.stop, reply.token_count) == ("Do sto", "stop", len(sampled))
    assert live.messages[-1] == {"role": "assistant", "content": "Do sto"}
    assert policy.format.decode(seat.thread.spans[-1].token_ids) == "Do stop"
    live.messages.append({"role": "user", "content": "seen"})
    policy.submit(live)
    assert policy.format.decode(seat.thread.spans[-1].token_ids).startswith(
        "<|im_end|>\n<|im_start|>user\nseen"
    )


def test_a_stop_token_that_is_not_the_templates_leaves_the_turn_to_be_closed() -> None:
    policy = make_policy(stop_token_ids=tuple(range(0, 256, 5)))
    seen = set()
    for group in rollout_groups(policy, lambda: EchoEnv(3), range(3), 2):
        for episode in group.episodes:
            spans = episode.histories[0].spans
            for turn, (said, read) in enumerate(zip(spans[1::2], spans[2::2], strict=False)):
                own = said.token_ids[-1] == policy.format.end_of_turn
                seen.add(own)
                assert (read.token_ids[0] == policy.format.end_of_turn) != own
                messages = [
                    {"role": "user", "content": "x"},
                    {"role": "assistant", "content": episode.turns[turn].reply},
                    {"role": "user", "content": episode.turns[turn].observation},
                ]
                glue = policy.format.continuation(messages)
                assert glue is not None
                assert list(read.token_ids) == (glue if own else [policy.format.end_of_turn, *glue])
    assert False in seen


def test_without_stop_strings_nothing_is_looked_for() -> None:
    policy = make_policy()
    assert policy._stop_strings is None
    policy.sampling = SamplingParams(stop_strings=("a",))
    assert policy._stop_strings is not None
    policy.sampling = SamplingParams()
    assert policy._stop_strings is None


def test_the_settings_are_read_written_and_checked() -> None:
    config = GRPOConfig.from_mapping({"stop_strings": ["</tool_call>"], "repetition_penalty": "1.2"})
    assert (config.stop_strings, config.repetition_penalty) == (("</tool_call>",), 1.2)
    assert GRPOConfig.from_mapping(json.loads(json.dumps(config.to_mapping()))) == config
    assert GRPOConfig.from_mapping({"stop_strings": "END"}).stop_strings == ("END",)
    assert config.filters_sampling
    assert not GRPOConfig(stop_strings=("END",)).filters_sampling
    for wrong, words in [
        ({"stop_strings": [""]}, "set a list of texts that are not empty"),
        ({"stop_strings": [3]}, "set a text or a list of texts"),
        ({"stop_strings": None}, "set a text or a list of texts"),
        ({"repetition_penalty": 0}, r"set a finite number above 0 \(1 switches it off\)"),
    ]:
        with pytest.raises(ConfigError, match=words):
            GRPOConfig.from_mapping(wrong)


def test_training_samples_with_them_and_meets_its_own_old_logprobs(tmp_path: Path) -> None:
    """The sampler's log-probs hold the penalty and the learner's do not, so they have to be taken again."""
    config = GRPOConfig(
        output_dir=str(tmp_path), max_steps=1, groups_per_step=2, num_generations=3, max_completion_length=12,
        repetition_penalty=1.8, stop_strings=("e", " "), log_episodes=0,
    )  # fmt: skip
    trainer = GRPOTrainer(make_policy(), lambda: EchoEnv(2), config)
    sampling = trainer.policy.sampling
    assert (sampling.repetition_penalty, sampling.stop_strings) == (1.8, ("e", " "))
    groups = trainer.collect_episodes()
    replies = [turn.reply for group in groups for episode in group.episodes for turn in episode.turns]
    assert any(reply.endswith(("e", " ")) for reply in replies)
    gaps = [
        np.abs(full_logprobs(trainer.policy.model, history.token_ids)[np.array(history.action_mask[1:])]
        - history.logprobs).max()
        for group in groups for episode in group.episodes for history in episode.histories
    ]  # fmt: skip
    assert max(gaps) > 0.1
    metrics = trainer.update_policy(groups)
    trainer.close()
    assert metrics["ratio/min"] == pytest.approx(1.0, abs=1e-4)
    assert metrics["ratio/max"] == pytest.approx(1.0, abs=1e-4)
