"""Text environments that any RL code can use.

``import art_gym`` registers the environments with Gymnasium, after which ``gym.make("art/Email-v0")`` makes
one, and the games with PettingZoo, if that is installed. Authors of environments find the whole contract
here: :class:`TextEnv`, :func:`tool`, :class:`Task`, and :func:`check_text_env` to hold their work against it.
"""

from art_gym.base import Snapshot
from art_gym.env import Baseline, TextEnv
from art_gym.errors import (
    ArtGymError,
    ContractError,
    ResetNeededError,
    ToolDeclarationError,
    ToolError,
    UnknownTaskError,
)
from art_gym.parameters import Code, Parameter
from art_gym.parsing.parser import Call, ParseError, parse
from art_gym.registration import load_plugins as _load_plugins
from art_gym.registration import register_envs as _register_envs
from art_gym.registration import register_games as _register_games
from art_gym.spaces import UnicodeText
from art_gym.tasks import Task, TaskSet
from art_gym.testing.checker import check_text_env
from art_gym.tools import Outcome, Tool, tool

__all__ = [
    "ArtGymError",
    "Baseline",
    "Call",
    "Code",
    "ContractError",
    "Outcome",
    "Parameter",
    "ParseError",
    "ResetNeededError",
    "Snapshot",
    "Task",
    "TaskSet",
    "TextEnv",
    "Tool",
    "ToolDeclarationError",
    "ToolError",
    "UnicodeText",
    "UnknownTaskError",
    "check_text_env",
    "parse",
    "tool",
]

_register_envs()
_register_games()
_load_plugins()
