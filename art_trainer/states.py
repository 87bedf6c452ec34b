"""When are two states of an environment the same? For estimators that compare turns of equal states.

GiGPO (arXiv:2505.10978) calls a state that several turns met an anchor state, and means the environment's
state, not the moment: coming back to a page three turns later is meeting the same state again. Two things can
stand for the state:

* What the environment shows, as in the paper. Any environment can be compared so, but two states that look
  alike ("No results.") fall together, and a line such as "2 turns left" keeps equal ones apart.
* What the environment is: its snapshot, with hidden memory and random generator. Equal digests then mean
  that equal replies have equal results. Only the clock is left out: the count of turns and the other
  bookkeeping of ``TextEnv`` below. A count that an environment keeps itself (moves played) stays in and keeps
  its states apart, which costs comparisons and is never wrong.

Reading a snapshot costs about 0.1 ms a turn for the environments here. Where a part of the state has no
order of its own (a set), equal states may get different digests: a comparison lost, never a wrong one.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from typing import Any

import gymnasium as gym

CLOCK = ("turn", "_invalid_actions", "_latest", "_running")
"""Attributes of ``TextEnv`` that say when and how a state was reached, not what it is."""


def state_digest(env: gym.Env[Any, Any]) -> str | None:
    """Return a digest that is the same for equal states of an environment, whenever they are met.

    Args:
        env: An environment, wrapped or not. Its state is that of ``env.unwrapped.snapshot()``.

    Returns:
        Hexadecimal digits, or ``None`` where the environment has no snapshots of attributes.
    """
    take = getattr(env.unwrapped, "snapshot", None)
    snapshot = take() if callable(take) else None
    state = getattr(snapshot, "state", None)
    if not isinstance(state, bytes):
        return None
    attributes = pickle.loads(state)
    if not isinstance(attributes, dict):
        return None
    kept = {name: attributes[name] for name in sorted(attributes) if name not in CLOCK}
    return hashlib.blake2b(_plain_pickle(kept), digest_size=16).hexdigest()


def _plain_pickle(value: object) -> bytes:
    """Pickle without references: what is equal gives equal bytes, whichever objects are one and the same."""
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, pickle.HIGHEST_PROTOCOL)
    pickler.fast = True
    try:
        pickler.dump(value)
    except (ValueError, RecursionError):  # an object that holds itself cannot be written without references
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    return buffer.getvalue()
