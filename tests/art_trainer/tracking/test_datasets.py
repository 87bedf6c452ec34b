"""Rows for other trainers: who is chosen, what a row says, and that TRL takes it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from art_trainer.errors import ConfigError
from art_trainer.tracking.datasets import export_data, selected_episodes, sft_rows
from art_trainer.tracking.episode_store import append_episodes
from art_trainer.types import Ending, Episode, Group, Turn
from tests.art_trainer.tiny_models import byte_tokenizer, tiny_model

TOOLS = tuple(
    {"type": "function", "function": {"name": name, "parameters": {"properties": properties}}}
    for name, properties in (("say", {"word": {"type": "string"}}), ("stop", {}))
)


def attempt(reward: float, *replies: str, task: int = 0, **changes: Any) -> Episode:
    """An attempt that said these words and was answered by them."""
    turns = [Turn(reply, f"heard {reply}", 0.0) for reply in replies]
    if turns:
        turns[-1] = replace(turns[-1], reward=reward)
    episode = Episode(
        "e", f"task-{task}", task, "Be brief.\n\nGo!", tuple(turns), (), Ending.TERMINATED, tools=TOOLS
    )
    return replace(episode, **changes)


def test_episodes_are_selected_by_reward_and_step_without_faults_and_empty_ones(tmp_path: Path) -> None:
    def rewards(**selection: Any) -> list[float]:
        return [episode.reward for episode in selected_episodes(tmp_path, **selection)]

    broken = attempt(1.0, "x", ending=Ending.ENV_ERROR, error="x")
    first = Group((attempt(0.1, "a"), attempt(0.9, "b"), broken, attempt(1.0), attempt(0.5, "c")))
    second = Group((attempt(0.7, "d", task=1), attempt(0.3, "e", task=1)))
    for step in (1, 2):
        append_episodes(tmp_path, step, (first, second))
    assert rewards() == [0.1, 0.9, 0.5, 0.7, 0.3]
    assert rewards(min_reward=0.5) == [0.9, 0.5, 0.7]
    assert rewards(min_reward=0.6, duplicates=True) == [0.9, 0.7] * 2
    assert rewards(min_reward=0.6, duplicates=True, steps=range(2, 9)) == [0.9, 0.7]
    assert rewards(min_reward=2.0) == []


class TestRows:
    def test_each_reply_completes_the_conversation_before_it(self) -> None:
        first, row = sft_rows(attempt(1.0, "a", "b"), ["Be slow.", "Be brief."])
        assert row["prompt"] == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Go!"},
            {"role": "assistant", "content": "a"},
            {"role": "user", "content": "heard a"},
        ]
        assert row["completion"] == [{"role": "assistant", "content": "b"}]
        assert first["prompt"] + first["completion"] == row["prompt"][:3]
        assert json.loads(row["tools"]) == list(TOOLS)
        assert all("tools" not in row for row in sft_rows(attempt(1.0, "a", tools=())))


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A run of 12 tasks, each done well once and badly once."""
    groups = [
        Group((attempt(1.0, "hello", f"good {k}", task=k), attempt(0.0, "hello", f"bad {k}", task=k)))
        for k in range(12)
    ]
    (tmp_path / "run").mkdir()
    append_episodes(tmp_path / "run", 1, groups)
    return tmp_path / "run"


class TestFiles:
    def test_trl_takes_conversations(self, mixed: Path, tmp_path: Path) -> None:
        from trl.data_utils import apply_chat_template, is_conversational

        tokenizer: Any = byte_tokenizer()
        file = tmp_path / "out.jsonl"
        assert export_data(mixed, file, min_reward=1.0, systems=["Be brief."]) == 24
        rows = loaded(file, tmp_path)
        assert all(is_conversational(row) for row in rows)
        assert json.loads(rows[0]["tools"]) == list(TOOLS)
        text = apply_chat_template(rows[7], tokenizer, tools=json.loads(rows[7]["tools"]))
        assert text["completion"] == "good 3<|im_end|>\n"
        assert text["prompt"].startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nGo!")

    @pytest.mark.filterwarnings("ignore:`gradient_checkpointing:FutureWarning")
    def test_trl_trains_on_replies_only(self, mixed: Path, tmp_path: Path) -> None:
        from datasets import Dataset
        from trl import SFTConfig, SFTTrainer

        tokenizer: Any = byte_tokenizer()
        export_data(mixed, tmp_path / "out.jsonl", min_reward=1.0)
        rows = Dataset.from_list(loaded(tmp_path / "out.jsonl", tmp_path)[:2])
        config = SFTConfig(
            str(tmp_path), max_steps=1, use_cpu=True, bf16=False, report_to=[], logging_steps=1
        )
        trainer = SFTTrainer(tiny_model(), config, train_dataset=rows, processing_class=tokenizer)
        (batch,) = trainer.get_train_dataloader()
        learned = {tokenizer.decode(labels[labels >= 0]).rstrip() for labels in batch["labels"]}
        assert learned == {"hello<|im_end|>", "good 0<|im_end|>"}
        trainer.train()
        assert trainer.state.log_history[0]["grad_norm"] > 0

    def test_what_was_there_stays_until_all_is_written(self, mixed: Path, tmp_path: Path) -> None:
        file = tmp_path / "out.jsonl"
        file.write_text("before")
        data = bytearray((mixed / "episodes.jsonl.zst").read_bytes())
        data[-1] ^= 1
        (mixed / "episodes.jsonl.zst").write_bytes(bytes(data))
        with pytest.raises(ValueError, match="is damaged"):
            export_data(mixed, file)
        assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["out.jsonl"]
        assert file.read_text() == "before"

    def test_a_file_of_another_type_is_refused(self, mixed: Path, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"use .jsonl"):
            export_data(mixed, tmp_path / "a.csv")


def loaded(file: Path, tmp_path: Path) -> list[dict[str, Any]]:
    """The rows as the ``datasets`` library reads them."""
    from datasets import Dataset

    return list(Dataset.from_json(str(file), cache_dir=str(tmp_path / "cache")))
