import copy
import multiprocessing
import pickle

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import (
    batch_differing_spaces,
    batch_space,
    concatenate,
    create_empty_array,
    create_shared_memory,
    iterate,
    read_from_shared_memory,
    write_to_shared_memory,
)
from hypothesis import example, given
from hypothesis import strategies as st

from art_gym.spaces import MAX_LENGTH, UnicodeText

TEXTS = ("", "plain", "two\nlines\ttab", "naïve café", "日本語", "👍🏽 e\u0301", "\0nul\0", "\U0010ffff" * 50)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40))
@example("😀" * 40)
def test_any_unicode_text_is_a_member(text):
    assert text in UnicodeText(40)


@pytest.mark.parametrize("value", [None, 7, b"bytes", ["a"], "é" * 51, "\ud800", "ok\udfffbad"])
def test_what_is_no_text_or_too_long_is_not_a_member(value):
    assert value not in UnicodeText(50)


def test_samples_are_members_varied_and_mostly_short_and_follow_the_seed():
    space, twin, other = (UnicodeText(seed=seed) for seed in (5, 5, 6))
    samples = [space.sample() for _ in range(2_000)]
    assert samples[:20] == [twin.sample() for _ in range(20)] != [other.sample() for _ in range(20)]
    assert all(sample in space for sample in samples)
    lengths = sorted(map(len, samples))
    assert lengths[0] == 0
    assert 10 < lengths[1_000] < 60
    assert lengths[-1] > MAX_LENGTH // 2
    joined = "".join(samples)
    assert all(part in joined for part in (" ", "\n", "e", "Z", "é", "日", "ж", "😀"))
    space.seed(5)
    assert [space.sample() for _ in range(20)] == samples[:20]


def test_repr_pickle_copies_and_equality_are_those_of_the_length():
    space = UnicodeText(77, seed=2)
    assert repr(space) == "UnicodeText(77)"
    assert space != UnicodeText(78)
    assert space != spaces.Text(77)
    assert len(pickle.dumps(UnicodeText())) < 300
    for twin in (pickle.loads(pickle.dumps(space)), copy.deepcopy(space), UnicodeText(77, seed=2)):
        assert twin == space == UnicodeText(77)
        assert twin.sample() == copy.deepcopy(space).sample()


def test_a_batch_is_a_tuple_of_texts():
    space = UnicodeText(9, seed=1)
    batched = batch_space(space, 3)
    assert batched == spaces.Tuple([UnicodeText(9)] * 3)
    assert list(iterate(batched, ("a", "bc", ""))) == ["a", "bc", ""]
    assert len(set(batched.sample())) > 1, "each text of a batch has its own chance"
    assert batch_differing_spaces([UnicodeText(3), space]) == spaces.Tuple([UnicodeText(3), space])
    assert space.from_jsonable(space.to_jsonable(TEXTS)) == list(TEXTS)
    short = UnicodeText(3, seed=1)
    assert {len(short.sample()) for _ in range(200)} == {0, 1, 2, 3}
    assert concatenate(space, ["a", "é"], create_empty_array(space, 2)) == ("a", "é")
    assert create_empty_array(space, 2) == ("", "")


def test_flattening_a_dict_keeps_its_texts():
    space = spaces.Dict(text=UnicodeText(), turn=spaces.Discrete(3))
    assert not space.is_np_flattenable
    value = {"text": "日本語", "turn": np.int64(2)}
    flat = spaces.flatten(space, value)
    assert flat["text"] == "日本語"
    assert flat in spaces.flatten_space(space)
    assert spaces.unflatten(space, flat) == value


@pytest.mark.parametrize(
    ("refused", "words"),
    [
        *((lambda length=n: UnicodeText(length), "at least 1") for n in (0, -1, 2.5, "9", True, None)),
        (lambda: UnicodeText().sample(mask=(3, None)), "no finite alphabet"),
        (lambda: UnicodeText().sample(probability=(3, None)), "no finite alphabet"),
        (lambda: spaces.flatdim(UnicodeText()), "token ids"),
    ],
)
def test_wrong_use_is_refused(refused, words):
    with pytest.raises(ValueError, match=words):
        refused()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_shared_memory_holds_any_text(method):
    space = UnicodeText(50)
    memory = create_shared_memory(space, n=3, ctx=multiprocessing.get_context(method))
    view = read_from_shared_memory(space, memory, n=3)
    assert view == ("", "", "")
    for text in TEXTS:
        write_to_shared_memory(space, 1, text, memory)
        assert view == ("", text, "")


def test_a_view_is_live_and_its_copies_are_not():
    space = UnicodeText(50)
    memory = create_shared_memory(space, n=2)
    view = read_from_shared_memory(space, memory, n=2)
    write_to_shared_memory(space, 0, "before", memory)
    taken = [copy.deepcopy(view), copy.copy(view), pickle.loads(pickle.dumps(view)), view[:]]
    nested = copy.deepcopy({"text": view})["text"]
    write_to_shared_memory(space, 0, "after", memory)
    assert (view[0], view[-1], len(view), list(view)) == ("after", "", 2, ["after", ""])
    assert repr(view) == "('after', '')"
    for copied in (*taken, nested):
        assert copied == ("before", "")
        assert type(copied) is tuple
        assert all(type(text) is str for text in copied)
    with pytest.raises(IndexError):
        view[2]
    with pytest.raises(TypeError, match="unhashable"):
        hash(view)


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        ("x" * 51, ValueError, r"environment 1 .* 51 code points.*shorten it to 50"),
        ("ab\udc80", ValueError, r"environment 1 .* lone surrogate .* at code point 2"),
        (b"bytes", TypeError, "environment 1 .* type bytes, not str"),
    ],
)
def test_what_does_not_fit_shared_memory_is_refused_and_changes_nothing(value, error, words):
    space = UnicodeText(50)
    memory = create_shared_memory(space, n=3)
    view = read_from_shared_memory(space, memory, n=3)
    for index in range(3):
        write_to_shared_memory(space, index, f"text {index}", memory)
    with pytest.raises(error, match=words):
        write_to_shared_memory(space, 1, value, memory)
    assert view == ("text 0", "text 1", "text 2")
