import json
import warnings
from pathlib import Path
from typing import Any

import pytest

import art_gym  # noqa: F401 (registers the environments)
from art_gym.spaces import UnicodeText
from art_gym.wrappers import RecordEpisodes
from tests.art_gym.toys import CounterEnv

for needed in ("minari", "pyarrow", "PIL"):
    pytest.importorskip(needed, reason=f"{needed} is not installed: pip install minari pyarrow pillow")

import minari  # noqa: E402
from minari.serialization import serialize_space  # noqa: E402

from art_gym.wrappers.minari_recording import episodes_from_minari, episodes_to_minari  # noqa: E402

REPLIES = ("add(1)", "no such \ud800 thing", "größer 日本 😀\0\n", "", "stop()")


@pytest.fixture(autouse=True)
def datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep datasets out of the user's folder."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    return tmp_path / "datasets"


def converted(episodes: Any, dataset_id: str = "toy/counter-v0", **about: Any) -> minari.MinariDataset:
    with warnings.catch_warnings():
        for advice in ("`.*` is set to None", "env_spec is None"):
            warnings.filterwarnings("ignore", advice)
        return episodes_to_minari(episodes, dataset_id, **about)


def recorded(path: Path) -> list[dict[str, Any]]:
    env = RecordEpisodes(CounterEnv(max_turns=5), path)
    for seed in range(4):
        env.reset(seed=seed)
        for reply in REPLIES[seed:]:
            *_, terminated, truncated, _ = env.step(reply)
            if terminated or truncated:
                break
    env.reset(seed=9)
    env.step("add(1)")
    env.close()
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("data_format", ["arrow", "parquet"])
def test_episodes_come_back_as_they_were_recorded(tmp_path: Path, data_format: Any) -> None:
    lines = recorded(tmp_path / "episodes.jsonl")
    assert len(lines) == 5
    assert any(turn["reply"] == REPLIES[1] for line in lines for turn in line["turns"])
    made = converted(tmp_path / "episodes.jsonl", data_format=data_format)
    assert list(episodes_from_minari(made)) == lines
    assert list(episodes_from_minari(minari.load_dataset("toy/counter-v0"))) == lines


def test_what_minari_sees_are_texts_in_their_spaces_and_the_flags(tmp_path: Path) -> None:
    lines = recorded(tmp_path / "episodes.jsonl")
    dataset = converted(lines)
    assert dataset.total_episodes == 5
    assert dataset.total_steps == sum(len(line["turns"]) for line in lines)
    for line, episode in zip(lines, dataset.iterate_episodes(), strict=True):
        assert all(text in dataset.observation_space for text in episode.observations)
        assert all(text in dataset.action_space for text in episode.actions)
        assert episode.observations == [line["observation"], *(turn["observation"] for turn in line["turns"])]
        assert [text.replace("?", "\ud800") for text in episode.actions if "such" in text] == [
            turn["reply"] for turn in line["turns"] if "such" in turn["reply"]
        ]
        assert episode.rewards.tolist() == [turn["reward"] for turn in line["turns"]]
        assert episode.terminations.tolist() == [False] * (len(line["turns"]) - 1) + [line["terminated"]]
        assert episode.truncations.tolist() == [False] * (len(line["turns"]) - 1) + [not line["terminated"]]
    assert [about["seed"] for about in dataset.storage.get_episode_metadata(range(5))] == [0, 1, 2, 3, 9]


def test_a_dataset_without_a_character_can_be_made() -> None:
    turn = {"reply": "", "observation": "", "reward": 1.0}
    line = {"env_id": "e", "seed": None, "observation": "", "turns": [turn], "terminated": True}
    dataset = converted([line])
    assert "" in dataset.action_space
    assert list(episodes_from_minari(dataset)) == [line]


def test_what_cannot_be_a_dataset_is_refused(tmp_path: Path) -> None:
    line = {"env_id": "one", "turns": []}
    with pytest.raises(ValueError, match="at least one episode"):
        converted([])
    with pytest.raises(ValueError, match="these episodes are of one, two"):
        converted([line, {"env_id": "two", "turns": []}])
    dataset = converted(recorded(tmp_path / "episodes.jsonl"))
    metadata = tmp_path / "datasets" / "toy" / "counter-v0" / "data" / "0" / "metadata.json"
    metadata.write_text("{}")
    with pytest.raises(ValueError, match=r"episode 0 of toy/counter-v0 was not made by episodes_to_minari"):
        list(episodes_from_minari(dataset))


def test_minari_has_no_place_for_our_space() -> None:
    """Should this ever fail, datasets can have the environment's own spaces."""
    with pytest.raises(NotImplementedError, match="No serialization method"):
        serialize_space(UnicodeText())
