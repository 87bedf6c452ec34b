"""Weights written for an engine: named by their content, complete or absent."""

import pytest
from peft import get_peft_model

from art_trainer.models.weights_io import remove_weights, save_weights
from tests.art_trainer.tiny_models import lora_model, tiny_model

# Raised between two libraries: PEFT reads a property that Transformers has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")


def test_equal_weights_have_equal_names_and_others_do_not(tmp_path):
    first, same = save_weights(lora_model(), tmp_path, 1), save_weights(lora_model(), tmp_path / "b", 1)
    other = save_weights(lora_model(1, scale=0.1), tmp_path, 1)
    assert first.name == same.name != other.name
    assert first.adapter
    assert {"adapter_config.json", "adapter_model.safetensors"} <= {x.name for x in first.folder.iterdir()}
    assert not list(tmp_path.glob(".*"))


def test_an_adapter_with_a_name_of_its_own_is_saved_as_any_other(tmp_path):
    named = get_peft_model(tiny_model(), lora_model().peft_config["default"], adapter_name="mine")
    saved = save_weights(named, tmp_path, 1)
    assert (saved.folder / "adapter_model.safetensors").exists()
    assert [path.name for path in tmp_path.iterdir()] == [saved.name]


def test_old_weights_are_removed_and_nothing_else(tmp_path):
    (tmp_path / "notes").mkdir()
    second = [save_weights(lora_model(seed, scale=0.1), tmp_path, seed) for seed in range(2)][1]
    remove_weights(tmp_path, keep=second.name)
    assert {path.name for path in tmp_path.iterdir()} == {"notes", second.name}
