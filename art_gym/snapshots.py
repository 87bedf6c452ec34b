"""Going back to an earlier state of an environment or game."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of an episode at one moment, random generator included. Restores any number of times."""

    env: str
    """The class it was taken from."""
    state: bytes


class Restorable:
    """Gives a class :meth:`snapshot` and :meth:`restore`: all its attributes, random generators included.

    Class attributes:

    * ``shared``: names of attributes set in ``__init__`` that never change afterwards (a mailbox, a table);
      snapshots share them instead of copying.
    """

    shared: ClassVar[tuple[str, ...]] = ()
    _fixed: ClassVar[frozenset[str]] = frozenset()
    """The names that every class of a kind shares so."""

    def snapshot(self) -> Snapshot:
        """The state at this moment, to come back to with :meth:`restore`, here or in another instance."""
        kept = self._fixed.union(self.shared)
        state = {key: value for key, value in self.__dict__.items() if key not in kept}
        return Snapshot(_qualified_name(type(self)), pickle.dumps(state, pickle.HIGHEST_PROTOCOL))

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot, which stays usable.

        Raises:
            ValueError: Where the snapshot is of another class.
        """
        name = _qualified_name(type(self))
        if snapshot.env != name:
            raise ValueError(f"this snapshot is of {snapshot.env}, not of {name}")
        kept = self._fixed.union(self.shared)
        fixed = {key: value for key, value in self.__dict__.items() if key in kept}
        self.__dict__.clear()
        self.__dict__.update(fixed | pickle.loads(snapshot.state))


def _qualified_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
