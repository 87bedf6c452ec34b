"""The one space of text environments: any Unicode text up to a length, also across processes.

``gymnasium.spaces.Text`` wants a finite character set: its default holds no blank, and one of all Unicode
costs seconds and megabytes. Under ``AsyncVectorEnv``'s default shared memory its observations never change
either: Gymnasium 1.4 decodes the memory once, when the vector environment is built, and hands out that
object ever after. :class:`UnicodeText` asks only for a length, and what is read of its shared memory is a
live view, which turns into a plain tuple of ``str`` when the vector environment copies it (its default).

A batch of texts is a ``tuple`` of ``str`` in a ``gymnasium.spaces.Tuple``, as for Gymnasium's own ``Text``.
``gymnasium.vector.utils.iterate`` is on purpose not registered: registering it would make Gymnasium iterate
over the characters of each text of a batch. ``batch_space`` and ``concatenate`` need no registration, for
what Gymnasium does for any space is right.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from copy import deepcopy
from ctypes import c_uint8
from typing import Any, Final, overload

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Tuple
from gymnasium.spaces.utils import flatdim, flatten, flatten_space, is_space_dtype_shape_equiv, unflatten
from gymnasium.vector.utils import (
    batch_differing_spaces,
    create_empty_array,
    create_shared_memory,
    read_from_shared_memory,
    write_to_shared_memory,
)
from gymnasium.wrappers.utils import create_zero_array

__all__ = ["MAX_LENGTH", "UnicodeText"]

MAX_LENGTH: Final = 16_384
"""Code points in the longest text of every environment here: vector environments want equal spaces."""

_MEAN_SAMPLE_LENGTH: Final = 40
_LONG_SAMPLES: Final = 0.005
_SAMPLE_ALPHABET: Final = (
    "eeeeaaaaiiiioooottttnnnnrrrrssssllllddddhhhhuuubcfgjkmpqvwxyz" * 2
    + " " * 24
    + "\n\n\n\t"
    + "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    + ".,;:!?'\"(){}[]<>/\\|@#$%&*+-=_~^`"
    + "àâçéèêëíñóöøßüžćŁœ"
    + "中文字日本語한국어ไทยעבעربйжяλπ"
    + "😀🚀📧👍🏽\u200d\u0301\u20ac"
)


class UnicodeText(Space[str]):
    """All texts of at most ``max_length`` Unicode code points; lone surrogates are not text.

    Args:
        max_length: The largest number of code points; the empty text is always a member.
        seed: Seed or generator of :meth:`sample`.

    Raises:
        ValueError: If ``max_length`` is not a whole number of at least 1.
    """

    def __init__(self, max_length: int = MAX_LENGTH, seed: int | np.random.Generator | None = None) -> None:
        if isinstance(max_length, bool) or not isinstance(max_length, int) or max_length < 1:
            raise ValueError(f"max_length must be a whole number of at least 1, got {max_length!r}")
        self.max_length = max_length
        super().__init__(dtype=str, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """Always false: a text has no one number for each of its places."""
        return False

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:
        """Draw a text: mostly short, at times as long as the space allows, of many scripts.

        Letters are mixed with blanks, newlines, accents, other scripts and emoji. Equal seeds draw equal
        texts.

        Raises:
            ValueError: If ``mask`` or ``probability`` is given: there is no finite alphabet to mask.
        """
        if mask is not None or probability is not None:
            raise ValueError(f"{self} has no finite alphabet: sample it without mask and probability")
        if self.np_random.random() < _LONG_SAMPLES:
            length = int(self.np_random.integers(self.max_length + 1))
        else:
            length = min(self.max_length, int(self.np_random.exponential(_MEAN_SAMPLE_LENGTH)))
        places = self.np_random.integers(len(_SAMPLE_ALPHABET), size=length)
        return "".join(_SAMPLE_ALPHABET[place] for place in places.tolist())

    def contains(self, x: Any) -> bool:
        """Return whether ``x`` is a text without surrogates and not too long."""
        return isinstance(x, str) and len(x) <= self.max_length and _surrogate_at(x) is None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnicodeText) and self.max_length == other.max_length

    def __repr__(self) -> str:
        return f"UnicodeText({self.max_length})"


class _SharedTexts(Sequence[str]):
    """A live view of the texts in a vector environment's shared memory, in the environments' order.

    Every look decodes what the workers wrote last. Copies, deep copies and pickles are plain tuples.
    """

    def __init__(self, records: np.ndarray) -> None:
        self._records = records

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        if isinstance(index, slice):
            return tuple(self)[index]
        record = self._records[index]
        return bytes(record["data"][: record["size"]]).decode()

    def __len__(self) -> int:
        return len(self._records)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, tuple | list | _SharedTexts) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # what is seen changes with every step

    def __repr__(self) -> str:
        return repr(tuple(self))

    def __reduce__(self) -> tuple[type[tuple[str, ...]], tuple[tuple[str, ...]]]:
        return tuple, (tuple(self),)


def _surrogate_at(text: str) -> int | None:
    """The place of the first lone surrogate of ``text``, which no encoding can carry; usually none."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return None


def _record(space: UnicodeText) -> np.dtype[np.void]:
    """One environment's slot in shared memory: the number of bytes, then room for the longest UTF-8."""
    return np.dtype([("size", np.uint32), ("data", np.uint8, (4 * space.max_length,))])


def _records(space: UnicodeText, shared_memory: Any) -> np.ndarray:
    return np.frombuffer(shared_memory.get_obj(), dtype=_record(space))


@create_shared_memory.register(UnicodeText)
def _create_shared_memory(space: UnicodeText, n: int = 1, ctx: Any = multiprocessing) -> Any:
    return ctx.Array(c_uint8, n * _record(space).itemsize)


@read_from_shared_memory.register(UnicodeText)
def _read_from_shared_memory(space: UnicodeText, shared_memory: Any, n: int = 1) -> _SharedTexts:
    return _SharedTexts(_records(space, shared_memory)[:n])


@write_to_shared_memory.register(UnicodeText)
def _write_to_shared_memory(space: UnicodeText, index: int, value: str, shared_memory: Any) -> None:
    if not isinstance(value, str):
        raise TypeError(f"environment {index} gave an observation of type {type(value).__name__}, not str")
    if len(value) > space.max_length:
        raise ValueError(
            f"environment {index} gave an observation of {len(value):,} code points, but its space is "
            f"{space}: the environment must shorten it to {space.max_length:,} or declare a longer space"
        )
    place = _surrogate_at(value)
    if place is not None:
        raise ValueError(
            f"environment {index} gave an observation with the lone surrogate {value[place]!r} at code point "
            f"{place}: that is no Unicode text; the environment must replace it"
        )
    encoded = np.frombuffer(value.encode(), dtype=np.uint8)
    record = _records(space, shared_memory)[index]
    record["data"][: len(encoded)] = encoded
    record["size"] = len(encoded)


@create_empty_array.register(UnicodeText)
def _create_empty_array(space: UnicodeText, n: int = 1, fn: Callable[..., Any] = np.zeros) -> tuple[str, ...]:
    return ("",) * n


@create_zero_array.register(UnicodeText)
def _create_zero_array(space: UnicodeText) -> str:  # type: ignore[misc]  # a generic first argument
    return ""


@batch_differing_spaces.register(UnicodeText)
def _batch_differing_spaces(spaces: Sequence[UnicodeText]) -> Tuple[Any]:  # type: ignore[misc]  # its key is the item
    return Tuple([deepcopy(space) for space in spaces], seed=deepcopy(spaces[0].np_random))


@is_space_dtype_shape_equiv.register(UnicodeText)
def _is_space_dtype_shape_equiv(space_1: UnicodeText, space_2: Space[Any]) -> bool:
    return space_1 == space_2


@flatdim.register(UnicodeText)
def _flatdim(space: UnicodeText) -> int:
    raise ValueError(
        f"{space} cannot be flattened to a numpy array: turn its texts into token ids first, "
        "for instance with gymnasium.wrappers.TransformObservation and a tokenizer"
    )


@flatten_space.register(UnicodeText)
def _flatten_space(space: UnicodeText) -> UnicodeText:
    return space


@flatten.register(UnicodeText)
def _flatten(space: UnicodeText, x: str) -> str:  # type: ignore[misc]  # a generic first argument
    return x


@unflatten.register(UnicodeText)
def _unflatten(space: UnicodeText, x: str) -> str:  # type: ignore[misc]  # a generic first argument
    return x
