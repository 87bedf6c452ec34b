"""What is closed at the end of a ``with`` block."""

from abc import ABC, abstractmethod
from typing import Self


class CloseOnExit(ABC):
    """A context manager whose block ends with :meth:`close`."""

    @abstractmethod
    def close(self) -> object:
        """Release what is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *fault: object) -> None:
        self.close()
