"""Open a mailbox with its questions; generated ones are cached on disk and shared.

The generated world is written to a mail store in the user's cache folder the first time it is needed; all
environments of all processes then share that file read-only.
"""

from __future__ import annotations

import functools
import hashlib
import json
import tempfile
from collections.abc import Iterable
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from art_gym.cache import cache_folder
from art_gym.envs.mail.questions import Question, known_item_questions, world_questions
from art_gym.envs.mail.questions.model import check_in_store
from art_gym.envs.mail.store.store import MailStore, MailStoreWriter
from art_gym.envs.mail.synthetic.world import generate
from art_gym.tasks import Task, TaskSet

_IMPORTED_QUESTIONS = 1_200  # at most so many are made for an imported mailbox


def open_collection(
    mailbox: str | PathLike[str] | None,
    questions: str | PathLike[str] | Iterable[Question] | None,
    *,
    world_seed: int,
    difficulty: int | Iterable[int] | None,
) -> tuple[MailStore, TaskSet]:
    """The store and the tasks of a mail environment.

    Args:
        mailbox: Path of a mail store, or ``None`` for the generated world.
        questions: Questions, a JSONL path of them, or ``None`` for generated ones.
        world_seed: The seed of the generated world, and of the questions made for an imported mailbox.
        difficulty: Which levels to keep; ``None`` keeps all.

    Raises:
        ValueError: If no question is left, or a question is not what it should be or does not fit the mail.
        FileNotFoundError: If a path does not exist.
    """
    path = world_path(world_seed) if mailbox is None else Path(mailbox).resolve()
    levels = (
        None if difficulty is None else tuple([difficulty] if isinstance(difficulty, int) else difficulty)
    )
    if questions is None or isinstance(questions, str | PathLike):
        named = None if questions is None else str(Path(questions).resolve())
        return _open(str(path), _state(path), named, _state(named), world_seed, levels)
    store, chosen = MailStore(path), list(questions)
    check_in_store({f"question {question.id}": question for question in chosen}, store)
    return store, _tasks(chosen, levels)


def world_path(seed: int) -> Path:
    """The mail store of the generated world, made now if it is not in the cache yet.

    The cache is :func:`~art_gym.cache.cache_folder`.

    Raises:
        ValueError: For a negative seed.
    """
    if seed < 0:
        raise ValueError(f"world_seed must be 0 or more, not {seed}")
    path = _writable_cache() / f"world-{_generator_version()}-{seed}.db"
    if not path.exists():
        world = generate(seed)
        questions = world_questions(world, np.random.default_rng([seed, 1]))
        with MailStoreWriter(path, private=False) as writer:
            for message in world.messages:
                writer.add(message)
            writer.meta["questions"] = json.dumps([question.to_json() for question in questions])
    return path


def read_questions(path: str | PathLike[str], store: MailStore) -> list[Question]:
    """Read questions about a store from a JSONL file, one ``Question`` a line, and check them.

    Raises:
        ValueError: For the first line that is not a question about this store, with its number and field.
        FileNotFoundError: If there is no such file.
    """
    questions: dict[str, Question] = {}
    with Path(path).open("rb") as lines:  # a line in another charset is an error of that line
        for number, line in enumerate(lines, 1):
            if line.strip():
                place = f"{path}, line {number}"
                try:
                    questions[place] = Question.from_json(json.loads(line))
                except ValueError as error:
                    raise ValueError(f"{place}: {error}") from error
    if not questions:
        raise ValueError(f"{path}: there is no question in it; write one a line, as JSON")
    check_in_store(questions, store)
    return list(questions.values())


def _state(path: str | Path | None) -> tuple[int, int]:
    """A file's time and size, so that one that was written again is read again."""
    if path is None or not Path(path).exists():
        return 0, 0
    found = Path(path).stat()
    return found.st_mtime_ns, found.st_size


@functools.lru_cache(maxsize=16)
def _open(
    path: str,
    _store_state: tuple[int, int],
    questions: str | None,
    _questions_state: tuple[int, int],
    seed: int,
    levels: tuple[int, ...] | None,
) -> tuple[MailStore, TaskSet]:
    store = MailStore(path)
    if questions is not None:
        chosen = read_questions(questions, store)
    elif "questions" in store.meta:
        chosen = [Question.from_json(item) for item in json.loads(store.meta["questions"])]
    else:
        chosen = known_item_questions(store, np.random.default_rng([seed, 2]), _IMPORTED_QUESTIONS)
    return store, _tasks(chosen, levels)


def _tasks(questions: list[Question], levels: tuple[int, ...] | None) -> TaskSet:
    kept = [q for q in questions if levels is None or q.difficulty in levels]
    if not kept:
        there = sorted({q.difficulty for q in questions})
        raise ValueError(
            f"no question of difficulty {list(levels or ())}; there are {there or 'none at all'}"
        )
    return TaskSet(_task(question) for question in kept)


def _task(question: Question) -> Task:
    asked_on: datetime | None = question.asked_on
    data: dict[str, Any] = {
        "kind": question.kind,
        "difficulty": question.difficulty,
        "gold_ids": list(question.gold_ids),
        "answers": list(question.answers),
        "answer_type": question.answer_type,
        "telling": list(question.keywords),
        "asked_on": asked_on.isoformat() if asked_on else None,
        "mailbox": question.mailbox,
    }
    return Task(question.id, question.text, question.split, data)


@functools.cache
def _generator_version() -> str:
    """A digest of the generator's source, so that a world made by an older one is never taken for its own."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*")):
        made_from = path.parent.name in ("synthetic", "questions", "store") or path.stem in (
            "message",
            "words",
        )
        if made_from and path.suffix in (".py", ".toml"):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _writable_cache() -> Path:
    base = cache_folder()
    try:
        base.mkdir(parents=True, exist_ok=True)
    except OSError:
        # A read-only home: the world is made again for each boot instead of once.
        base = Path(tempfile.gettempdir()) / "art-gym"
        base.mkdir(parents=True, exist_ok=True)
    return base
