"""Tasks of two splits that are the same, by their texts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

Texts = Mapping[str, tuple[str, ...]]
"""The tokens of each task's text, by its id."""

_FEWEST_RARE = 4
"""Words that one task in a hundred has at most: with fewer, two texts may share them by chance."""


def tokens(text: str) -> tuple[str, ...]:
    """Words and signs, in order and without case: 6 - 2, 6 + 2 and 2 - 6 are three tasks."""
    return tuple(re.findall(r"\w+|[^\w\s]", text.casefold()))


def split_overlap(train: Texts, tasks: Texts) -> tuple[dict[str, str], dict[str, str]]:
    """Find tasks that have the text of a training task, and others that have four of five of its rare words.

    Returns:
        Both by task, each with a training task.
    """
    texts = [*train.values(), *tasks.values()]
    often = max(2.0, 0.01 * len(texts))
    times, common = Counter(train.values()), Counter(word for words in texts for word in set(words))
    # A text that many training tasks begin with, as a hidden word's board does, does not identify a task.
    whole = {words: task for task, words in train.items() if times[words] <= often}
    duplicates = {task: whole[words] for task, words in tasks.items() if words in whole}
    rare = {task: {word for word in words if common[word] <= often} for task, words in train.items()}
    having = dict[str, list[str]]()
    for task, words in rare.items():
        for word in words if len(words) >= _FEWEST_RARE else ():
            having.setdefault(word, []).append(task)
    near = dict[str, str]()
    for task in tasks.keys() - duplicates.keys():
        words = set(tasks[task])
        for other in {other for word in words for other in having.get(word, ())}:
            if len(rare[other] & words) >= 0.8 * len(rare[other]):
                near[task] = min(other, near.get(task, other))
    return duplicates, dict(sorted(near.items()))
