"""Weights written for an engine: named by their content, complete or absent."""

import pytest
import torch
from peft import get_peft_model

from art_trainer.models.loading import add_lora_adapter
from art_trainer.models.weights_io import remove_weights, save_weights
from tests.art_trainer.tiny_models import tiny_model

# Raised between two libraries: PEFT reads a property that Transformers has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")


def adapter(scale=0.1, seed=0):
    model = add_lora_adapter(tiny_model(), 2)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def test_equal_weights_have_equal_names_and_others_do_not(tmp_path):
    first, same = save_weights(adapter(), tmp_path, 1), save_weights(adapter(), tmp_path / "b", 1)
    other = save_weights(adapter(seed=1), tmp_path, 1)
    assert first.name == same.name != other.name
    assert first.adapter
    assert {file.name for file in first.folder.iterdir()} >= {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    assert not list(tmp_path.glob(".*"))


def test_an_adapter_with_a_name_of_its_own_is_saved_as_any_other(tmp_path):
    named = tiny_model()
    model = adapter()
    named = get_peft_model(named, model.peft_config["default"], adapter_name="mine")
    saved = save_weights(named, tmp_path, 1)
    assert (saved.folder / "adapter_model.safetensors").exists()
    assert [path.name for path in tmp_path.iterdir()] == [saved.name]


def test_old_weights_are_removed_and_nothing_else(tmp_path):
    (tmp_path / "notes").mkdir()
    second = [save_weights(adapter(seed=seed), tmp_path, seed) for seed in range(2)][1]
    remove_weights(tmp_path, keep=second.name)
    assert {path.name for path in tmp_path.iterdir()} == {"notes", second.name}
