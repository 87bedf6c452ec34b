"""Files on their way to a worker: cut, torn, flipped, endless; and models that it must not make."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import numpy as np
import pytest
import torch

from art_trainer.remote.backoff import Backoff
from art_trainer.remote.downloads import ServerFiles
from art_trainer.remote.messages import FileEntry, ModelManifest
from art_trainer.remote.tensor_files import file_entry
from art_trainer.remote.weights import WeightStore
from art_trainer.remote.worker_errors import DownloadError, RefusedError
from art_trainer.remote.worker_model import files_to_fetch, load_tokenizer, make_model
from tests.art_trainer.guess import guess_policy
from tests.art_trainer.remote.fake_server import described

CPU = torch.device("cpu")


class Files:
    """An HTTP server of one file, which a test may spoil.

    Attributes:
        ranges: The first byte that each request asked for.
        replies: What the next requests get: a function of the whole bytes and the first one asked for.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.ranges: list[int] = []
        self.replies: list[object] = []
        self.authorizations: set[str | None] = set()

    @asynccontextmanager
    async def running(self):
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
        fields = {name.lower(): value for name, value in fields.items()}
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


def torn(files, writer, first):
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


def fetch(tmp_path, replies, *, attempts=4, token=None):
    """Fetch a file past some replies; the server, and the file or the fault."""
    source = tmp_path / "source"
    source.write_bytes(np.random.default_rng(0).bytes(300_000))
    entry = file_entry(source)
    files = Files(source.read_bytes())
    files.replies = list(replies)

    async def go():
        async with files.running() as url:
            backoff = Backoff(np.random.default_rng(0), first=0.001)
            server = ServerFiles(url, token, tmp_path / "cache", backoff, attempts=attempts)
            try:
                return await server.model_file(entry)
            except (DownloadError, RefusedError) as fault:
                return fault
            finally:
                await server.close()

    found = asyncio.run(go())
    kept = sorted(path.name for path in (tmp_path / "cache" / "files").iterdir())
    if isinstance(found, Exception):
        assert kept == [], "nothing half fetched stays"
    else:
        assert kept == [entry.sha256]
        assert found.read_bytes() == files.data
    return files, found


def test_a_file_is_fetched_once_and_kept_by_its_hash(tmp_path):
    files, found = fetch(tmp_path, [], token="secret-token")
    assert files.ranges == [0]
    assert files.authorizations == {"Bearer secret-token"}
    again, same = fetch(tmp_path, [])
    assert again.ranges == []
    assert same == found


def test_a_kept_file_that_rotted_is_fetched_again(tmp_path):
    _, found = fetch(tmp_path, [])
    data = bytearray(found.read_bytes())
    data[7] ^= 1
    found.write_bytes(data)
    files, _ = fetch(tmp_path, [])
    assert files.ranges == [0]


def test_a_cut_connection_is_taken_up_where_it_was(tmp_path):
    files, _ = fetch(tmp_path, [cut, cut])
    assert files.ranges == [0, 150_000, 225_000]


def test_a_server_without_ranges_begins_again(tmp_path):
    files, _ = fetch(tmp_path, [cut, unranged])
    assert files.ranges == [0, 150_000]


@pytest.mark.parametrize("fault", [flipped, torn, endless], ids=["flipped", "torn", "endless"])
def test_what_came_damaged_once_is_fetched_again(tmp_path, fault):
    files, _ = fetch(tmp_path, [fault])
    assert files.ranges == [0, 0]


@pytest.mark.parametrize(
    ("fault", "words"),
    [(flipped, "its sha256 is not the manifest's"), (torn, "it has 299995 bytes, not 300000")],
    ids=["flipped", "torn"],
)
def test_what_is_damaged_on_the_server_is_refused_by_name(tmp_path, fault, words):
    _, found = fetch(tmp_path, [fault] * 9)
    assert isinstance(found, DownloadError)
    assert str(found) == f"source is damaged on the server: {words}"


def test_a_busy_server_is_asked_again_a_few_times(tmp_path):
    files, _ = fetch(tmp_path, [status(503), status(429)])
    assert files.ranges == [0, 0, 0]
    files, found = fetch(
        tmp_path / "more" if (tmp_path / "more").mkdir() is None else None, [status(503)] * 9
    )
    assert len(files.ranges) == 4
    assert "cannot be fetched" in str(found)


@pytest.mark.parametrize(
    ("number", "kind", "words"),
    [
        (401, RefusedError, "it wants its token"),
        (403, RefusedError, "it refuses this worker"),
        (404, DownloadError, "the server has no source: it answered 404"),
        (302, DownloadError, "it answered 302"),
    ],
)
def test_an_answer_that_will_not_change_ends_it_at_once(tmp_path, number, kind, words):
    files, found = fetch(tmp_path, [status(number)] * 9)
    assert isinstance(found, kind)
    assert words in str(found)
    assert len(files.ranges) == 1


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{}", "files: Field required"),
        (b"not json", "Invalid JSON"),
        (b"[" * 100_000, "Invalid JSON"),
        (b" " * 2_000_000, "too large for a manifest"),
        (json.dumps({"files": [{"name": "../x", "size": 1, "sha256": "0" * 64}]}).encode(), "files.0.name"),
    ],
    ids=["empty", "no json", "deep", "large", "path"],
)
def test_a_manifest_that_is_none_is_refused(tmp_path, body, words):
    files = Files(body)

    async def go():
        async with files.running() as url:
            server = ServerFiles(url, None, tmp_path, Backoff(np.random.default_rng(0), first=0.001))
            try:
                with pytest.raises(DownloadError, match=words):
                    await server.model()
            finally:
                await server.close()

    asyncio.run(go())


def entry_of(name, size=10):
    return FileEntry(name=name, size=size, sha256="0" * 64)


@pytest.mark.parametrize("name", ["modeling_evil.py", "pytorch_model.bin", "config.pkl", "setup.cfg"])
def test_files_of_other_kinds_are_not_even_fetched(name):
    manifest = ModelManifest(files=[entry_of("config.json"), entry_of(name)])
    with pytest.raises(RefusedError, match=f"{name}', which no worker takes"):
        files_to_fetch(manifest, weights=True, most_bytes=100)


def test_sizes_are_bounded():
    large = ModelManifest(files=[entry_of("model.safetensors", 101)])
    with pytest.raises(RefusedError, match=r"model.safetensors has 101 bytes, more than 100"):
        files_to_fetch(large, weights=True, most_bytes=100)
    assert files_to_fetch(large, weights=False, most_bytes=100) == []
    with pytest.raises(RefusedError, match=r"tokenizer.json has"):
        files_to_fetch(
            ModelManifest(files=[entry_of("tokenizer.json", 2**30)]), weights=True, most_bytes=2**40
        )
    with pytest.raises(RefusedError, match="twice"):
        files_to_fetch(ModelManifest(files=[entry_of("config.json")] * 2), weights=True, most_bytes=1)


@pytest.fixture
def folder(tmp_path):
    WeightStore(tmp_path, guess_policy(hidden=16))
    return tmp_path / "model"


def edit(file, **changes):
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"auto_map": {"AutoModelForCausalLM": "evil.Model"}}, "config.json sets auto_map"),
        ({"text_config": {"auto_map": {}}}, "config.json sets auto_map"),
        ({"attn_implementation": "someone/kernel"}, "config.json sets attn_implementation"),
        ({"_attn_implementation": "someone/kernel"}, "config.json sets _attn_implementation"),
        ({"quantization_config": {"quant_method": "x"}}, "config.json sets quantization_config"),
        ({"model_type": "nobodys"}, "config.json makes no model here"),
        ({"num_attention_heads": "many"}, "config.json makes no model here"),
    ],
)
def test_a_configuration_that_could_load_code_makes_no_model(folder, changes, words):
    run = described(guess_policy(hidden=16))
    edit(folder / "config.json", **changes)
    with pytest.raises(RefusedError, match=words):
        make_model(folder, run, CPU)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"auto_map": {"AutoTokenizer": ["evil.Tokenizer", None]}}, "sets auto_map"),
        ({"vocab_file": "/etc/passwd"}, "names files of this machine: vocab_file"),
        ({"unk_token": "GUESS", "eos_token": "<none>"}, None),
    ],
)
def test_a_tokenizer_that_names_code_or_files_is_refused(folder, changes, words):
    edit(folder / "tokenizer_config.json", **changes)
    if words is None:
        load_tokenizer(folder)
    else:
        with pytest.raises(RefusedError, match=words):
            load_tokenizer(folder)


def test_a_tokenizer_that_reads_otherwise_here_is_refused(folder):
    edit(folder / "tokenizer.json", pre_tokenizer=None)
    with pytest.raises(RefusedError, match="makes other tokens here than there"):
        load_tokenizer(folder)


def test_a_tokenizer_that_is_damaged_is_refused(folder):
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(RefusedError, match="tokenizer cannot be loaded"):
        load_tokenizer(folder)


def test_the_words_that_end_a_reply_must_be_tokens(folder):
    edit(folder / "tokens.json", eos_token_id="; rm -rf /")
    with pytest.raises(RefusedError, match=r"tokens.json names '; rm -rf /', which is no token"):
        make_model(folder, described(guess_policy(hidden=16)), CPU)


def test_weights_of_another_type_are_refused(folder):
    run = described(guess_policy(hidden=16)).model_copy(update={"dtype": "float8"})
    with pytest.raises(RefusedError, match="the server's weights are 'float8'"):
        make_model(folder, run, CPU)


def test_a_model_in_4_bits_is_not_for_workers(folder):
    (folder / "adapter.json").write_text("{}")
    with pytest.raises(RefusedError, match="--inference server"):
        make_model(folder, described(guess_policy(hidden=16)), CPU)
