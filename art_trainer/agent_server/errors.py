"""Errors of episodes that a client is told in OpenAI's form."""

from __future__ import annotations

from art_trainer.web.errors import ApiError


class EpisodeOver(ApiError):
    """A request under an episode that has its reward, or was given up."""

    def __init__(self) -> None:
        super().__init__("this episode is over: it takes no more requests", status=410, code="episode_over")
