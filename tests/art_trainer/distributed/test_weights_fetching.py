"""Files on their way to a worker: cut, short, flipped, endless; and models that it must not make."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from art_trainer.distributed.protocol import FileEntry, ModelManifest, WeightManifest
from art_trainer.distributed.weights import WeightStore, file_entry
from art_trainer.distributed.worker import model as worker_model
from art_trainer.distributed.worker.connection import Backoff, DownloadError, RefusedError
from art_trainer.distributed.worker.downloads import ArtifactCache
from art_trainer.distributed.worker.model import files_to_fetch, load_tokenizer, make_model
from tests.art_trainer.distributed.fake_server import described
from tests.art_trainer.guess import guess_policy

CPU = torch.device("cpu")


class Files:
    """An HTTP server of one file, which a test may damage.

    Attributes:
        ranges: The first byte that each request asked for.
        replies: What the next requests get: a function of the whole bytes and the first one asked for.
    """

    def __init__(self, data, replies=()):
        self.data = data
        self.ranges = []
        self.replies = list(replies)
        self.authorizations = set()

    def fetch(self, ask, cache, *, token=None):
        """What comes of asking a worker's cache of this server for something."""

        async def go():
            async with await asyncio.start_server(self._serve, "127.0.0.1", 0) as server:
                url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
                files = ArtifactCache(url, token, cache, Backoff(np.random.default_rng(0), first=0.001))
                try:
                    return await ask(files)
                finally:
                    await files.close()

        return asyncio.run(go())

    async def _serve(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
        self.authorizations.add(fields.get("authorization"))
        first = int(fields.get("range", "bytes=0-")[6:-1])
        self.ranges.append(first)
        reply = self.replies.pop(0) if self.replies else whole
        reply(self, writer, first)
        await writer.drain()
        writer.close()


def head(writer, status, length):
    line = f"HTTP/1.1 {status} x\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    writer.write(line.encode())


def whole(files, writer, first):
    head(writer, 206 if first else 200, len(files.data) - first)
    writer.write(files.data[first:])


def cut(files, writer, first):
    """Half of what is left, then the cable breaks."""
    head(writer, 206 if first else 200, len(files.data) - first)
    writer.write(files.data[first : first + (len(files.data) - first) // 2])


def unranged(files, writer, first):
    """A server that knows no ranges."""
    whole(files, writer, 0)


def flipped(files, writer, first):
    head(writer, 200, len(files.data))
    writer.write(files.data[:-1] + bytes([files.data[-1] ^ 1]))


def short(files, writer, first):
    head(writer, 200, len(files.data) - 5)
    writer.write(files.data[:-5])


def endless(files, writer, first):
    head(writer, 200, 50 * len(files.data))
    writer.write(files.data * 50)


def status(number):
    def reply(files, writer, first):
        head(writer, number, 2)
        writer.write(b"{}")

    return reply


def fetch(tmp_path, replies, *, token=None):
    """Fetch a file past some replies; the server, and the file or the error."""
    source = tmp_path / "source"
    source.write_bytes(np.random.default_rng(0).bytes(300_000))
    entry = file_entry(source)
    files = Files(source.read_bytes(), replies)
    kept = tmp_path / "cache" / "files"
    try:
        found = files.fetch(lambda cache: cache.model_file(entry), tmp_path / "cache", token=token)
    except (DownloadError, RefusedError) as error:
        assert list(kept.iterdir()) == [], "nothing half fetched stays"
        return files, error
    assert [path.name for path in kept.iterdir()] == [entry.sha256]
    assert found.read_bytes() == files.data
    return files, found


def test_a_file_is_fetched_once_and_kept_by_its_hash(tmp_path):
    files, found = fetch(tmp_path, [], token="secret-token")
    assert files.ranges == [0]
    assert files.authorizations == {"bearer secret-token"}
    again, same = fetch(tmp_path, [])
    assert (again.ranges, same) == ([], found)
    found.write_bytes(b"x" + found.read_bytes()[1:])
    assert fetch(tmp_path, [])[0].ranges == [0], "what is damaged on the disk is fetched again"


@pytest.mark.parametrize(
    ("replies", "ranges"),
    [
        ([cut, cut], [0, 150_000, 225_000]),
        ([cut, unranged], [0, 150_000]),
        ([flipped], [0, 0]),
        ([short], [0, 0]),
        ([endless], [0, 0]),
        ([status(503), status(429)], [0, 0, 0]),
    ],
    ids=["cut", "no ranges", "flipped", "short", "endless", "busy"],
)
def test_a_download_is_resumed_or_repeated(tmp_path, replies, ranges):
    files, _ = fetch(tmp_path, replies)
    assert files.ranges == ranges


@pytest.mark.parametrize(
    ("reply", "kind", "words", "requests"),
    [
        (flipped, DownloadError, "source is damaged: its sha256", 2),
        (status(503), DownloadError, "cannot be fetched", 6),
        (status(401), RefusedError, "it wants its token", 1),
        (status(403), RefusedError, "it refuses this worker", 1),
        (status(404), DownloadError, "it answered 404", 1),
        (status(302), DownloadError, "it answered 302", 1),
    ],
)
def test_what_does_not_change_ends_the_download(tmp_path, reply, kind, words, requests):
    files, found = fetch(tmp_path, [reply] * 9)
    assert isinstance(found, kind)
    assert words in str(found)
    assert len(files.ranges) == requests


def test_the_newest_weights_are_kept(tmp_path):
    data = [bytes([version]) * 10 for version in range(6)]

    async def ask(cache):
        for version, body in enumerate(data):
            files.data = body
            entry = FileEntry(name="w", size=10, sha256=hashlib.sha256(body).hexdigest())
            await cache.weight_file(WeightManifest(policy_version=version, kind="full", file=entry))

    files = Files(b"")
    files.fetch(ask, tmp_path)
    assert sorted(file.read_bytes() for file in (tmp_path / "weights").iterdir()) == data[3:]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{}", "files"),
        (b"[" * 100_000, "Invalid JSON"),
        (b" " * 2_000_000, "too large"),
        (json.dumps({"files": [{"name": "../x", "size": 1, "sha256": "0" * 64}]}).encode(), "files.0.name"),
    ],
    ids=["empty", "deep", "large", "path"],
)
def test_a_manifest_that_is_none_is_refused(tmp_path, body, words):
    with pytest.raises(DownloadError, match=words):
        Files(body).fetch(lambda cache: cache.model(), tmp_path)


def entry_of(name, size=10):
    return FileEntry(name=name, size=size, sha256="0" * 64)


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        *(([entry_of(name)], name) for name in ("modeling_evil.py", "pytorch_model.bin", "config.pkl")),
        ([entry_of("model.safetensors", 101)], "more than 100"),
        ([entry_of("tokenizer.json", 2**30)], "tokenizer.json has"),
        ([entry_of("config.json")] * 2, "twice"),
    ],
)
def test_files_of_other_kinds_and_sizes_are_not_even_fetched(entries, words, monkeypatch):
    monkeypatch.setattr(worker_model, "MAX_WEIGHT_BYTES", 100)
    with pytest.raises(RefusedError, match=words):
        files_to_fetch(ModelManifest(files=entries), weights=True)


def test_weights_that_are_not_needed_may_be_large():
    assert files_to_fetch(ModelManifest(files=[entry_of("model.safetensors", 2**50)]), weights=False) == []


@pytest.fixture
def folder(tmp_path):
    WeightStore(tmp_path, guess_policy(hidden=16))
    return tmp_path / "model"


def edit(file, **changes):
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize(
    ("file", "changes", "words"),
    [
        ("config.json", {"auto_map": {"AutoModelForCausalLM": "evil.Model"}}, "sets auto_map"),
        ("config.json", {"text_config": {"auto_map": {}}}, "sets auto_map"),
        ("config.json", {"attn_implementation": "someone/kernel"}, "sets attn_implementation"),
        ("config.json", {"_attn_implementation": "someone/kernel"}, "sets _attn_implementation"),
        ("config.json", {"quantization_config": {"quant_method": "x"}}, "sets quantization_config"),
        ("config.json", {"model_type": "nobodys"}, "makes no model here"),
        ("config.json", {"num_attention_heads": "many"}, "makes no model here"),
        ("tokens.json", {"eos_token_id": "; rm -rf /"}, "is no token"),
        ("adapter.json", {}, "--inference server"),
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["evil.T", None]}}, "sets auto_map"),
        ("tokenizer_config.json", {"vocab_file": "/etc/passwd"}, "names files of this machine: vocab_file"),
        ("tokenizer.json", {"pre_tokenizer": None}, "makes other tokens here than there"),
        ("tokenizer.json", {"model": None}, "tokenizer cannot be loaded"),
    ],
)
def test_files_that_could_load_code_or_differ_make_no_model(folder, file, changes, words):
    (folder / "adapter.json").write_text("{}") if file == "adapter.json" else edit(folder / file, **changes)
    with pytest.raises(RefusedError, match=words):  # noqa: PT012
        make_model(folder, described(guess_policy(hidden=16)), CPU)
        load_tokenizer(folder)


def test_weights_of_another_type_are_refused(folder):
    run = described(guess_policy(hidden=16)).model_copy(update={"dtype": "float8"})
    with pytest.raises(RefusedError, match="the server's weights are 'float8'"):
        make_model(folder, run, CPU)


def test_a_tokenizer_without_code_is_loaded(folder):
    edit(folder / "tokenizer_config.json", unk_token="GUESS", eos_token="<none>")
    load_tokenizer(folder)


def test_two_workers_of_one_process_leave_other_models_their_values(folder, monkeypatch):
    run = described(guess_policy(hidden=16))
    before = torch.nn.init.normal_, PreTrainedModel.init_weights
    models = worker_model._MODELS
    at_once, most = [0], [0]

    class Slow:
        @staticmethod
        def from_config(*args, **options):
            at_once[0] += 1
            most[0] = max(most[0], at_once[0])
            time.sleep(0.3)  # long enough for the other one to come in, if nothing stops it
            at_once[0] -= 1
            return models.from_config(*args, **options)

    monkeypatch.setattr(worker_model, "_MODELS", Slow)
    with ThreadPoolExecutor(2) as threads:
        made = [threads.submit(make_model, folder, run, CPU) for _ in range(2)]
    assert all(one.result() for one in made)
    assert most == [1]
    assert (torch.nn.init.normal_, PreTrainedModel.init_weights) == before
