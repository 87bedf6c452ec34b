"""Clear names and table rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from art_trainer.tracking.sinks.base import EpisodesPlayed, RunInfo
from art_trainer.tracking.sinks.rows import action_rows, dashboard_metrics, episode_rows
from art_trainer.types import Turn
from tests.art_trainer.tracking.sinks.sink_runs import played_episode

_RUN = RunInfo(Path("run"), max_turns=4)


def test_metrics_have_the_names_of_dashboards() -> None:
    names = {
        "policy_loss": "train/policy_loss", "clip_ratio": "train/clip_fraction",
        "grad_norm": "train/gradient_norm", "reward": "rollout/average_reward",
        "success": "rollout/success_rate", "turns": "rollout/average_episode_length",
        "tokens_per_second": "rollout/tokens_per_second", "eval_success": "eval/success",
        "time/update": "time/update", "score/found": "score/found", "new": "train/new",
    }  # fmt: skip
    assert list(dashboard_metrics({"step": 3.0, **dict.fromkeys(names, 1.0)})) == list(names.values())


def test_rows_show_what_an_episode_was() -> None:
    call = {"name": "search", "arguments": {"query": "tea"}}
    turns = (
        Turn("search('tea')", "Two mails.", 0.25, call=call),
        Turn("?", "Say what to do.", -0.5, error={"kind": "no_call", "message": "no call"}),
        Turn("free text", "", 1.0),
    )
    episode = replace(played_episode(0, np.random.default_rng(0)), turns=turns, success=True)
    event = EpisodesPlayed(7, (episode, replace(episode, metrics={"passed": 0.5, "efficiency": 0.1})))
    first, second = episode_rows(event, _RUN)
    assert first == (7, "000007-0000", 0.75, 3, True, 1 - 1 / 3, 0.25)
    assert (second.episode_id, second.accuracy, second.efficiency) == ("000007-0001", 0.5, 0.1)
    rows = list(action_rows(event))[:3]
    assert [(row.turn, row.action_type, row.reward) for row in rows] == [
        (1, "search", 0.25),
        (2, "invalid:no_call", -0.5),
        (3, "text", 1.0),
    ]
    assert rows[0].state.startswith("You search a mailbox. ")
    assert rows[0].state.endswith("Who wrote about tea?")
    assert [row.state for row in rows[1:]] == ["Two mails.", "Say what to do."]
