"""Versions before the newest go on to be served, as many as are asked for."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import openai
import pytest
from peft import LoraConfig, get_peft_model

from art_trainer.serving import ServedPolicy
from art_trainer.slot_decoder import SlotDecoder
from art_trainer.transformers_policy import TransformersPolicy
from tests.art_trainer.agent_server.agent_helpers import tiny_policy
from tests.art_trainer.serving.serving_helpers import served_client
from tests.art_trainer.serving.test_serving_batching import change, chat, content, logprobs, own_logprobs


def test_past_versions_answer_by_name_until_newer_ones_take_their_place() -> None:
    policy = tiny_policy()
    with served_client(policy, past_versions=1) as (served, client):
        said = {0: content(chat(client, seed=1))}
        for version in (1, 2):
            change(policy.model)
            served.update(version)
            newest = chat(client, seed=1)
            said[version] = content(newest)
            assert newest.model == f"tiny@{version}"
            assert np.allclose(logprobs(newest), own_logprobs(policy.model, newest), atol=1e-4)
            before = chat(client, seed=1, model=f"tiny@{version - 1}")
            assert (before.model, content(before)) == (f"tiny@{version - 1}", said[version - 1])
            names = [model.id for model in client.models.list()]
            assert names == ["tiny", f"tiny@{version}", f"tiny@{version - 1}"]
            assert client.models.retrieve(names[-1]).id == names[-1]
        assert len(set(said.values())) == 3
        for stream in (False, True):
            with pytest.raises(openai.NotFoundError, match="version 0 is not loaded: 2 and 1 are"):
                chat(client, model="tiny@0", stream=stream)
        change(policy.model)
        served.update(2)  # other weights by the same number take the place of those
        assert served.versions == [2, 1]
        assert content(chat(client, seed=1)) != said[2]
        assert content(chat(client, seed=1, model="tiny@1")) == said[1]


def test_an_update_does_not_wait_for_the_version_before(monkeypatch: pytest.MonkeyPatch) -> None:
    sampled, go_on = threading.Event(), threading.Event()
    step = SlotDecoder.step

    def stopping(self: SlotDecoder, sequences: Any) -> None:
        step(self, sequences)
        if len(sequences[0].logprobs) == 3:
            sampled.set()
            go_on.wait(60)

    policy = tiny_policy()
    with served_client(policy, past_versions=1) as (served, client), ThreadPoolExecutor(1) as pool:
        alone = content(chat(client, seed=1))
        monkeypatch.setattr(SlotDecoder, "step", stopping)
        begun = pool.submit(chat, client, seed=1)
        assert sampled.wait(60)
        change(policy.model)
        served.update(1)
        assert not begun.done()
        go_on.set()
        new = chat(client, seed=1)
        assert (begun.result().model, content(begun.result())) == ("tiny@0", alone)
        assert (new.model, content(new) == alone) == ("tiny@1", False)


# Raised between two libraries: PEFT reads a property that Transformers has renamed.
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
def test_a_past_version_costs_an_adapter_and_not_the_weights_below_it() -> None:
    base = tiny_policy()
    model = get_peft_model(base.model, LoraConfig(r=2, init_lora_weights=False))
    with ServedPolicy(TransformersPolicy(model, base.tokenizer), past_versions=2) as served:
        copies = [dict(one.policy.model.named_parameters()) for one in served._loaded]
    distinct = {id(weight): weight for own in copies for weight in own.values()}
    adapter = sum(weight.numel() for name, weight in model.named_parameters() if "lora" in name)
    whole = sum(weight.numel() for weight in model.parameters())
    assert sum(weight.numel() for weight in distinct.values()) == whole + 2 * adapter


def test_a_number_of_versions_below_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="past_versions is at least 0, got -1"):
        ServedPolicy(tiny_policy(), past_versions=-1)
