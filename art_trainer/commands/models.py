"""Models on this machine as policies. Apart from the other policies, because it takes seconds to import."""

from __future__ import annotations

import difflib
from pathlib import Path

import transformers

from art_trainer import art_tiny, scratch
from art_trainer.checkpoint import verify_checkpoint
from art_trainer.commands.settings import RunSettings
from art_trainer.errors import ConfigError
from art_trainer.loading import AUTO, ModelOptions, load_model
from art_trainer.result_checkpoint import result_checkpoint
from art_trainer.run_folder import RunFolder
from art_trainer.sampler import SamplingParams
from art_trainer.tokenizer_loading import load_tokenizer
from art_trainer.transformers_policy import TransformersPolicy


def local_policy(
    words: str,
    *,
    sampling: SamplingParams,
    max_batch: int = 256,
    device: str | None = None,
    lora: int | None = None,
    dtype: str = AUTO,
    load_in_4bit: bool = False,
    gradient_checkpointing: bool = False,
    history_window: int | None = None,
    baselines: tuple[str, ...] = (),
) -> TransformersPolicy:
    """A model on this machine, from a folder, from Hugging Face, or the one in the package.

    Args:
        words: ``art-tiny``, a folder, or a Hugging Face name.
        sampling: How replies are sampled.
        max_batch: Most conversations held at one time.
        device: Where the model lives; by default a GPU where there is one.
        lora: Rank of a new LoRA adapter on all linear layers.
        dtype: What the weights are loaded as, see :class:`~art_trainer.loading.ModelOptions`.
        load_in_4bit: Whether the frozen weights are loaded as 4-bit numbers.
        gradient_checkpointing: Whether layers are computed again in the backward pass.
        history_window: How many turns the model sees; ``None`` for all.
        baselines: Names that were possible too, for the words of an error.

    Raises:
        ConfigError: Where there is no such model.
    """
    options = ModelOptions(dtype, lora, load_in_4bit, gradient_checkpointing, device)
    path = model_path(words, baselines)
    # It would draw over what this command shows.
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        return TransformersPolicy(
            load_model(path, options),
            load_tokenizer(path),
            sampling=sampling,
            max_batch=max_batch,
            history_window=history_window,
            name=words,
        )
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"no policy {words!r}: no folder with a model, no baseline of the environment, and not found on "
            f"Hugging Face ({str(error).splitlines()[0]})"
        ) from error


def model_options(run: RunSettings) -> ModelOptions:
    """How a run's settings have its model loaded.

    Raises:
        ConfigError: For settings that do not go together.
    """
    if run.model == scratch.NAME and (run.lora is not None or run.load_in_4bit):
        raise ConfigError(
            "lora is set, but a scratch model's weights are random and not worth freezing: leave it out"
        )
    return ModelOptions(run.dtype, run.lora, run.load_in_4bit, run.gradient_checkpointing, run.device)


def _refuse_slips(words: str, known: tuple[str, ...]) -> None:
    """Find slips of the pen at once, before Hugging Face is asked over the network.

    Raises:
        ConfigError: For a folder that does not exist, or almost the name of something known.
    """
    path = Path(words)
    if words in known or path.exists():
        return
    in_folder = path.parent != Path(".") and path.parent.is_dir()
    # The hub's names have two parts; what lies in runs/ is a run, here or on another machine.
    no_hub_name = len(path.parts) > 2 or path.parts[0] == "runs" or words.startswith((".", "~"))
    if in_folder or path.is_absolute() or no_hub_name:
        raise ConfigError(f"no model at {words!r}: there is no such folder")
    near = difflib.get_close_matches(words, known, n=1, cutoff=0.75)
    if near:
        raise ConfigError(f"no policy {words!r}; did you mean `{near[0]}`?")


def model_path(words: str, baselines: tuple[str, ...] = ()) -> str:
    """What Transformers loads: of a run the latest checkpoint, of a checkpoint the model in it.

    Args:
        words: ``art-tiny``, a folder, or a Hugging Face name.
        baselines: Names that were possible too, for the words of an error.

    Raises:
        ConfigError: For a folder that does not exist, or almost the name of something known.
        CheckpointError: Where a file of a checkpoint's model is damaged or missing.
    """
    _refuse_slips(words, (art_tiny.NAME, *baselines))
    if words == art_tiny.NAME:
        return str(art_tiny.path())
    path = Path(words)
    path = result_checkpoint(RunFolder(path).checkpoints) or path
    if not (path / "model").is_dir():
        return words
    if (path / "manifest.json").exists():
        verify_checkpoint(path, "model/")
    return str(path / "model")
