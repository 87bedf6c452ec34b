"""What ``art-gym certify`` says of other authors' environments: each bad finding is explained here, or false.

Few episodes and no training, so that all of it takes a few minutes. GEM 0.1.0 wants the reasoning-gym that is
pinned here.
"""

import contextlib

import gymnasium as gym
import pytest

pytest.importorskip("gem")

import nltk

from art_gym.lookup import make_env
from art_gym.testing.certificate import Level, Survey, certify
from art_gym.wrappers.text_adapter import TextAdapter

LEVELS = (Level.BEHAVIOUR, Level.LEARNABILITY, Level.ADVERSARIAL)
WORDS = "bark barn boat bold card cast coat cold cord corn dark dust goat hold horn mist pool rust wood wool"
DATASETS = (
    "base_conversion", "basic_arithmetic", "caesar_cipher", "chain_sum", "color_cube_rotation", "countdown",
    "course_schedule", "family_relationships", "leg_counting", "letter_counting", "propositional_logic",
    "simple_equations", "spell_backward", "syllogism", "word_sorting",
)  # fmt: skip
SOLO = (
    "Bandit-v0", "FifteenPuzzle-v0", "FrozenLake-v0-random", "GuessTheNumber-v0", "LightsOut-v0",
    "Mastermind-v0", "Minesweeper-v0", "PegJump-v0", "TowerOfHanoi-v0",
)  # fmt: skip
GEM = (
    "game:FifteenPuzzle-v0-easy", "game:GuessTheNumber-v0-easy", "game:Mastermind-v0-easy",
    "game:Minesweeper-v0-easy", "game:Sudoku-v0-easy", "game:TowerofHanoi-v0-easy", "rg:leg_counting",
)  # fmt: skip


CLIFF = {
    "observe": "You are on field {} of 48, in rows of 12.".format, "actions": ["up", "right", "down", "left"],
    "success": lambda episode: episode.terminated, "max_turns": 60, "invalid_reward": -1,
}  # fmt: skip
BLACKJACK = {
    "observe": lambda seen: "You have {}, the dealer shows {}, usable ace: {}.".format(*seen),
    "actions": ["stick", "hit"], "success": lambda episode: episode.env_return > 0,
}  # fmt: skip
ENVIRONMENTS = {
    **{
        f"reasoning-gym {name}": ("reasoning-gym/Task-v0", {"dataset": name, "allow_eval": True})
        for name in DATASETS
    },
    **{f"TextArena {name}": ("textarena/Solo-v0", {"game": name}) for name in SOLO},
    **{f"GEM {name}": ("gem/Env-v0", {"env_id": name}) for name in GEM},
    "verifiers textarena": (
        "verifiers/Env-v0",
        {"env_id": "textarena", "settings": {"game": "Hangman-v0"}, "most": 10},
    ),
    "Gymnasium CliffWalking": (lambda: TextAdapter(gym.make("CliffWalking-v1"), **CLIFF), {}),
    "Gymnasium Blackjack": (lambda: TextAdapter(gym.make("Blackjack-v1"), **BLACKJACK), {}),
}
AGAIN = "the generator has few different questions, and asks those of one split again in another"
PARTS = "pays a part of the reward for any answer that has something in common with the right one"
KNOWN = {
    "reasoning-gym base_conversion": {"tasks.split_overlap": AGAIN},
    "reasoning-gym caesar_cipher": {"tasks.split_overlap": AGAIN},
    "reasoning-gym chain_sum": {"tasks.split_overlap": AGAIN},
    "reasoning-gym propositional_logic": {"tasks.split_overlap": AGAIN},
    "reasoning-gym spell_backward": {
        "tasks.split_overlap": AGAIN,
        "statistical.gameability_gap": f"{PARTS}: for each letter in its place, so copying the word is paid",
    },
    "reasoning-gym syllogism": {
        "statistical.gameability_gap": f"{PARTS}: `None` has a `No` in it, which is half of the reward",
    },
    "reasoning-gym course_schedule": {
        "statistical.gameability_gap": f"{PARTS}: `True or False` has the right answer in it",
    },
}
"""Findings that are right, and why."""
alarms: dict[str, dict[str, str]] = {}


@pytest.fixture(scope="module", autouse=True)
def words(tmp_path_factory):
    """A word list where nltk looks for one; the games would download another."""
    folder = tmp_path_factory.mktemp("nltk")
    (folder / "corpora" / "words").mkdir(parents=True)
    for name in ("en", "en-basic"):
        (folder / "corpora" / "words" / name).write_text(WORDS.replace(" ", "\n"))
    nltk.data.path.insert(0, str(folder))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nltk, "download", lambda *names, **options: True)
        yield
    nltk.data.path.remove(str(folder))


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_certify(name):
    """``art-gym certify`` plays other authors' environments through all its checks but training."""
    made, arguments = ENVIRONMENTS[name]
    with contextlib.closing(make_env(made, arguments) if isinstance(made, str) else made()) as env:
        findings = list(certify(Survey(env, episodes=24, seconds=1.5), LEVELS))
    bad = [one for one in findings if one.passed is False]
    for one in bad:
        print(f"{name}: {one.id}: {one.evidence}")
    alarms[name] = {one.id: one.evidence for one in bad if one.id not in KNOWN.get(name, {})}
    assert len(findings) > len(bad)
    assert {one.level for one in findings} == set(LEVELS)


def test_false_alarms():
    """``art-gym certify`` raises a false alarm in at most one of 34 environments; the rest are defects."""
    assert len(alarms) == len(ENVIRONMENTS) == 34
    assert sum(map(bool, alarms.values())) <= 1, alarms
