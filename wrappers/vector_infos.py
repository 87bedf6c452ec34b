"""The ``info`` of a vector environment: one for each environment, and back.

Gymnasium keeps the two apart with masks: beside ``infos[key]``, an array, ``infos["_" + key]`` says whose
values are meant. Its own way there (``VectorEnv._add_info``) takes the first value's type for all of them,
and fails if one environment has a dictionary and another has none; this one does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

# What Gymnasium makes of a plain bool, int or float.
_PLAIN = (np.bool_, np.int64, np.float64)
_NUMBERS = (bool, int, float, np.number)


def split_infos(infos: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """Each environment's own ``info``, of the ``info`` of ``count`` environments."""
    return [_row(infos, index) for index in range(count)]


def join_infos(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The ``info`` of a vector environment, from that of each of its environments.

    Equal to Gymnasium's for values of one type; numbers of several types become ``float64``, any other
    mixture an array of objects.
    """
    infos: dict[str, Any] = {}
    for key in dict.fromkeys(key for row in rows for key in row):
        mask = np.array([key in row for row in rows], np.bool_)
        values = [row[key] for row in rows if key in row]
        if all(isinstance(value, dict) for value in values) and key != "final_obs":
            infos[key] = join_infos([row.get(key, {}) for row in rows])
        else:
            infos[key] = _column(values, mask)
        infos[f"_{key}"] = mask
    return infos


def _row(infos: Mapping[str, Any], index: int) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for key, values in infos.items():
        mask = infos.get(f"_{key}")
        is_mask = key.startswith("_") and key[1:] in infos
        if is_mask or (mask is not None and not mask[index]):
            continue
        if isinstance(values, Mapping):
            row[key] = _row(values, index)
        else:
            value = values[index]
            row[key] = value.item() if isinstance(value, _PLAIN) else value
    return row


def _column(values: Sequence[Any], mask: np.ndarray) -> np.ndarray:
    """An array with the values where the mask is, and nothing (0 or ``None``) elsewhere."""
    first, types = values[0], {type(value) for value in values}
    if len(types) == 1 and isinstance(first, _NUMBERS):
        column = np.zeros(len(mask), type(first))
    elif all(isinstance(value, _NUMBERS) and not isinstance(value, bool) for value in values):
        column = np.zeros(len(mask), np.float64)
    elif all(isinstance(value, np.ndarray) and value.shape == first.shape for value in values):
        column = np.zeros((len(mask), *first.shape), np.result_type(*values))
    else:
        column = np.full(len(mask), None, object)
    for index, value in zip(mask.nonzero()[0], values, strict=True):
        column[index] = value
    return column
