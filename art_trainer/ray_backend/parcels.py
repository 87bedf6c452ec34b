"""Files on their way through the cluster's object store, checked by their sha256 when they come out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from art_trainer.remote.messages import FileEntry, WeightManifest
from art_trainer.remote.tensor_files import WeightError, check_file
from art_trainer.remote.weights import WeightStore

FETCH_SECONDS = 600.0
"""For a file to arrive on a node; what takes longer is not coming."""

Put = Callable[[NDArray[np.uint8]], Any]
"""Lays bytes into the object store; returns what stands for them."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """A file in the object store."""

    entry: FileEntry
    content: Any
    """An object reference to its bytes."""

    @classmethod
    def of(cls, entry: FileEntry, path: Path, put: Put) -> Parcel:
        """Lay a file into the object store."""
        return cls(entry, put(np.fromfile(path, np.uint8)))

    def unpack(self, folder: Path) -> Path:
        """Write the file into a folder, in an actor; return where it is.

        Raises:
            WeightError: Where it does not arrive in time, or is damaged.
        """
        import ray

        path = folder / self.entry.name
        try:
            content = ray.get(self.content, timeout=FETCH_SECONDS)
        except ray.exceptions.RayError as fault:
            words = str(fault).strip().splitlines()[0]
            raise WeightError(f"{self.entry.name} does not come through the object store: {words}") from fault
        with path.open("wb") as stream:
            stream.write(memoryview(content))
        check_file(path, self.entry, self.entry.name)
        return path


@dataclass(frozen=True, slots=True)
class WeightParcel:
    """The weights of a version."""

    manifest: WeightManifest
    file: Parcel


def weight_parcel(store: WeightStore, version: int, put: Put) -> WeightParcel:
    """Lay the policy's present weights into the object store.

    Args:
        store: Writes them.
        version: Theirs.
        put: Lays bytes there.

    Raises:
        WeightError: Where they cannot be written.
    """
    manifest = store.publish(version)
    path = store.path(version)
    assert path is not None  # it was published a moment ago
    return WeightParcel(manifest, Parcel.of(manifest.file, path, put))


def model_parcels(store: WeightStore, put: Put) -> tuple[Parcel, ...]:
    """Lay the files that weights stand on into the object store."""
    parcels = []
    for entry in store.model().files:
        path = store.model_path(entry.name)
        assert path is not None  # the store lists it
        parcels.append(Parcel.of(entry, path, put))
    return tuple(parcels)
