"""Weights on their way to a worker's model, bit for bit; and every file that is damaged, another, or code."""

import asyncio
import errno
import hashlib
import json
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from art_trainer.distributed import weights as module
from art_trainer.distributed.protocol import FileEntry, ModelManifest, WeightManifest
from art_trainer.distributed.weights import (
    WeightError,
    WeightStore,
    adapter_shape,
    apply_weights,
    file_entry,
    match_dtypes,
)
from art_trainer.distributed.worker import model as worker_model
from art_trainer.distributed.worker.connection import Backoff, DownloadError, RefusedError
from art_trainer.distributed.worker.downloads import ArtifactCache
from art_trainer.distributed.worker.model import files_to_fetch, load_tokenizer, make_model
from art_trainer.inference.transformers_policy import TransformersPolicy
from art_trainer.models.loading import add_lora_adapter
from tests.art_trainer.distributed.server_helpers import described
from tests.art_trainer.guess import guess_policy
from tests.art_trainer.tiny_models import byte_tokenizer, tiny_model

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
    loaded = load_tokenizer(folder)
    assert (loaded.unk_token, loaded.eos_token) == ("GUESS", "<none>")


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


pytestmark = [pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys:RuntimeWarning")]


def policy_of(model):
    return TransformersPolicy(model, byte_tokenizer())


def trained(model, seed=1):
    """The model with other weights in all that training changes."""
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=rng).to(parameter.dtype))
    return model


def logits(model):
    with torch.inference_mode():
        return model.eval()(input_ids=torch.arange(12)[None]).logits


@pytest.mark.parametrize(
    ("family", "lora", "dtype"),
    [
        ("qwen2", False, "float32"),
        ("llama", True, "bfloat16"),
        ("llama", True, "float32 on bfloat16"),
        ("deepseek-v3", False, "bfloat16"),
        ("deepseek-v3", True, "float32"),
    ],
)
def test_a_model_made_from_the_store_computes_the_same_bits(tmp_path, family, lora, dtype):
    adapted, _, dtype = dtype.rpartition(" on ")
    model = tiny_model(family).to(getattr(torch, dtype))
    model = add_lora_adapter(model, 2) if lora else model
    for parameter in model.parameters():
        if adapted and parameter.requires_grad:
            parameter.data = parameter.data.float()
    policy = policy_of(trained(model))
    store = WeightStore(tmp_path, policy)
    store.publish(0)
    run = described(policy).model_copy(update={"dtype": dtype})
    other = make_model(tmp_path / "model", run, CPU)
    match_dtypes(other, store.path(0))
    for version in (0, 1):
        trained(policy.model, seed=version)
        manifest = store.publish(version)
        assert manifest.kind == ("adapter" if lora else "full")
        apply_weights(other, store.path(version), manifest)
        assert torch.equal(logits(policy.model), logits(other))
    assert load_tokenizer(tmp_path / "model").chat_template == policy.tokenizer.chat_template


@pytest.mark.parametrize("kind", ["rounded buffers", "tied weights"])
def test_models_that_are_stored_in_another_way_compute_the_same_bits(tmp_path, kind):
    """``apply_model_options`` rounds computed buffers of a model that was made, not loaded: its rotation is
    bfloat16 too. Tied weights are stored once."""
    model = tiny_model()
    if kind == "tied weights":
        model.config.tie_word_embeddings = True
        model.lm_head.weight = model.model.embed_tokens.weight
    else:
        model.to(torch.bfloat16).model.rotary_emb.inv_freq.mul_(1.01)
    policy = policy_of(model)
    store = WeightStore(tmp_path, policy)
    manifest = store.publish(0)
    run = described(policy).model_copy(update={"dtype": str(model.dtype).removeprefix("torch.")})
    other = make_model(tmp_path / "model", run, CPU)
    match_dtypes(other, store.path(0))
    apply_weights(other, store.path(0), manifest)
    assert torch.equal(logits(model), logits(other))
    if kind == "tied weights":
        assert "lm_head.weight" not in load_file(store.path(0))
        assert other.lm_head.weight is other.model.embed_tokens.weight


def test_an_adapter_is_all_that_travels_of_a_lora_model(tmp_path):
    policy = policy_of(add_lora_adapter(tiny_model(), 2))
    store = WeightStore(tmp_path, policy)
    manifest = store.publish(0)
    sizes = {entry.name: entry.size for entry in store.model().files}
    assert manifest.file.size < sizes["model.safetensors"] / 5
    assert all("lora_" in name for name in load_file(store.path(0)))
    assert not any("lora_" in name for name in load_file(tmp_path / "model" / "model.safetensors"))
    full = WeightStore(tmp_path / "full", policy_of(tiny_model()))
    assert "model.safetensors" not in {entry.name for entry in full.model().files}


@pytest.fixture
def published(tmp_path):
    policy = guess_policy(hidden=16)
    store = WeightStore(tmp_path, policy)
    manifest = store.publish(4)
    other = make_model(tmp_path / "model", described(policy), CPU)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    return policy, store, manifest, other


def flip(data):
    return data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]


def wider(tensors):
    name = "model.embed_tokens.weight"
    return {**tensors, name: torch.cat([tensors[name], tensors[name]])}


def refused(model, file, manifest, words):
    """A file changes nothing in a model, and the error names it."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(WeightError, match=rf"{file.name} .*{words}"):
        apply_weights(model, file, manifest)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (flip, "sha256"),
        (lambda data: data[:9], "wrong size"),
        (lambda data: data + b"more", "wrong size"),
        (None, "read"),
    ],
    ids=["bit flipped", "truncated", "too long", "missing"],
)
def test_a_damaged_file_changes_nothing(published, damage, words):
    _, store, manifest, other = published
    file = store.path(4)
    file.unlink() if damage is None else file.write_bytes(damage(file.read_bytes()))
    refused(other, file, manifest, words)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (wider, r"model.embed_tokens.weight is torch.float32 \(46, 16\)"),
        (lambda t: {name: value.double() for name, value in t.items()}, "is torch.float64"),
        (lambda t: dict(list(t.items())[1:]), "it lacks lm_head.weight"),
        (lambda t: {**t, "more": torch.zeros(1)}, "it has more"),
        (None, "is no safetensors file"),
    ],
    ids=["wider", "other type", "one missing", "one more", "a pickle"],
)
def test_another_models_weights_change_nothing(published, tmp_path, change, words):
    _, store, manifest, other = published
    file = tmp_path / "other.safetensors"
    if change is None:
        file.write_bytes(b"\x80\x04pickle" * 100)
    else:
        save_file(change(load_file(store.path(4))), file)
    refused(other, file, manifest.model_copy(update={"file": file_entry(file)}), words)


def test_an_adapter_is_no_full_model(published):
    _, store, manifest, other = published
    adapter = manifest.model_copy(update={"kind": "adapter"})
    refused(other, store.path(4), adapter, "holds an adapter's weights, the model here takes all weights")


def test_the_newest_versions_stay_and_the_others_go(published):
    _, store, _, _ = published
    first = store.path(4)
    store.publish(5)
    store.publish(6)
    assert (store.manifest(4), store.path(4), first.exists()) == (None, None, False)
    assert [store.manifest(version).policy_version for version in (5, 6)] == [5, 6]
    store.publish(2)  # a run that went back
    assert store.manifest(2).policy_version == 2
    assert store.path(5) is None


def test_what_an_earlier_process_left_is_removed(published, tmp_path):
    policy, store, _, _ = published
    left = [store.path(4), tmp_path / ".weights-000005.safetensors.partial"]
    left[1].write_bytes(b"torn")
    again = WeightStore(tmp_path, policy)
    assert not any(file.exists() for file in left)
    assert again.manifest(4) is None


def test_a_full_disk_leaves_the_version_before(published, monkeypatch):
    _, store, manifest, _ = published

    def full(tensors, file):
        file.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "save_file", full)
    with pytest.raises(WeightError, match=r"weights-000005.safetensors cannot be written: .*No space left"):
        store.publish(5)
    assert store.manifest(4) == manifest
    assert store.manifest(5) is None
    assert file_entry(store.path(4)) == manifest.file
    assert list(store.path(4).parent.glob(".*")) == []


def test_the_manifest_says_no_paths_of_the_server(tmp_path):
    policy = guess_policy(hidden=16)
    policy.tokenizer.init_kwargs["special_tokens_map_file"] = str(tmp_path / "map.json")
    store = WeightStore(tmp_path, policy)
    load_tokenizer(tmp_path / "model")
    for entry in store.model().files:
        assert str(tmp_path) not in store.model_path(entry.name).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"peft_type": "IA3"}, "of the kind IA3"),
        ({"peft_type": "LORA", "r": 4, "arrow_config": {"a": 1}}, "with arrow_config"),
    ],
)
def test_an_adapter_that_no_worker_makes_is_refused(settings, words):
    with pytest.raises(WeightError, match=words):
        adapter_shape(settings)
