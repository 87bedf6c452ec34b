"""What a worker keeps: weights on the disk; and what it leaves alone: how other models get their values."""

import asyncio
import hashlib
import threading
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from transformers import PreTrainedModel

from art_trainer.config import GRPOConfig
from art_trainer.remote import worker_model
from art_trainer.remote.compute import OwnModel
from art_trainer.remote.description import describe_run
from art_trainer.remote.downloads import ServerFiles
from art_trainer.remote.messages import FileEntry, WeightManifest
from art_trainer.remote.play_thread import PlayThread
from art_trainer.remote.weights import WeightStore
from tests.art_trainer.guess import guess_policy


class Shelf:
    """A server's files, and what of them is on this machine's disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.edition = ""

    async def weights(self, version: int) -> WeightManifest:
        digest = hashlib.sha256(f"{self.edition}{version}".encode()).hexdigest()
        entry = FileEntry(name=f"weights-{version}", size=1, sha256=digest)
        return WeightManifest(policy_version=version, kind="full", file=entry)

    async def weight_file(self, manifest: WeightManifest) -> Path:
        file = self._folder / manifest.file.sha256
        file.write_text(manifest.file.name)
        return file

    def forget(self, sha256: str) -> None:
        (self._folder / sha256).unlink()

    @property
    def kept(self) -> list[str]:
        return sorted(file.read_text() for file in self._folder.iterdir())


def test_a_worker_that_skips_versions_keeps_no_file_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = Shelf(tmp_path)
    monkeypatch.setattr(OwnModel, "_apply", lambda self, manifest, file: file.read_text())
    monkeypatch.setattr(OwnModel, "_set_version", lambda self, version: None)

    async def play() -> None:
        thread = PlayThread()
        files = cast(ServerFiles, shelf)
        model = OwnModel(files, thread, device="cpu", most_bytes=9, on_fault=pytest.fail)
        model.version = 0
        for version in (1, 2, 3):  # an update each second, an episode of a minute
            model.announce(version)
            await asyncio.sleep(0.01)
        assert shelf.kept == ["weights-1", "weights-2", "weights-3"]
        await model.bring(3)
        assert shelf.kept == ["weights-3"]
        model.announce(4)
        await asyncio.sleep(0.01)
        await model.bring(3)
        assert shelf.kept == ["weights-3", "weights-4"], "what is played with, and what will be"
        await model.bring(4)
        assert shelf.kept == ["weights-4"]
        shelf.edition = "of a server that was started anew"
        model.doubt()
        model.announce(4)
        await asyncio.sleep(0.01)
        assert shelf.kept == ["weights-4"]
        assert thread.close(20)

    asyncio.run(play())


def test_two_workers_of_one_process_leave_other_models_their_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = guess_policy(hidden=16)
    WeightStore(tmp_path, policy)
    run = describe_run(policy, "guess", {}, GRPOConfig())
    before = torch.nn.init.normal_, PreTrainedModel.init_weights
    models: Any = worker_model._MODELS
    making, others_turn, at_once, most = threading.Event(), threading.Event(), [0], [0]

    class Slow:
        @staticmethod
        def from_config(*args: Any, **options: Any) -> Any:
            at_once[0] += 1
            most[0] = max(most[0], at_once[0])
            making.set()
            others_turn.wait(0.3)  # long enough for the other one to come in, where nothing stops it
            at_once[0] -= 1
            return models.from_config(*args, **options)

    monkeypatch.setattr(worker_model, "_MODELS", Slow)
    make = lambda: worker_model.make_model(tmp_path / "model", run, torch.device("cpu"))  # noqa: E731
    threads = [threading.Thread(target=make) for _ in range(2)]
    for thread in threads:
        thread.start()
        assert making.wait(20)
    for thread in threads:
        thread.join(60)
    assert most == [1]
    assert (torch.nn.init.normal_, PreTrainedModel.init_weights) == before
