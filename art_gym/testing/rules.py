"""The rules of the ``TextEnv`` contract, and the register of the checks of an environment."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from art_gym.errors import ContractError, described

if TYPE_CHECKING:
    from art_gym.testing.trajectories import Subject

Check = Callable[["Subject"], Iterator[str]]
"""Yields what was seen for each breach of its rule."""


class Rule(enum.StrEnum):
    """A rule of the contract, in the order in which they are checked."""

    RESETS = "reset must return a str and a dict with str keys, and never raise for a seed."
    STEPS = "step must return a str, a float, two bools and a dict with str keys, all of exactly these types."
    SPACES = "action_space and observation_space must be UnicodeText spaces."
    TOOLS = "Every tool must have a JSON schema in OpenAI's format, with every part described."
    INFO = "info must hold the standard keys with the standard types."
    JSON = "info must be JSON-able."
    WITHIN = "Every observation must lie in the observation space."
    SYSTEM = "The first observation must begin with info['system'] and a blank line."
    SCORE_TERMS = "score_terms must be named floats that sum to the reward."
    TASK_ID = "task_id must name one of env.tasks, the same for a whole episode."
    BASELINE = "baselines['random'] must reply with valid calls."
    NOT_BOTH = "terminated and truncated must not both be true."
    MAX_TURNS = "An episode must be truncated at exactly max_turns turns."
    AT_THE_END = "success (a bool) and metrics (named floats) must be in info at the end, and only then."
    SAME_SEED = "The same seed and the same replies must give the same episode."
    ANY_INSTANCE = "The same seed and the same replies must give the same episode in any instance."
    INTERLEAVED = "Instances stepped in turn must not affect each other."
    FRESH = "What reset and step return must be fresh objects that nothing else holds."
    GLOBAL_STATE = "The global state of random and numpy.random must not be changed."
    OPTIONS = "reset(options=…) must start the task, or a task of the split, that the options name."
    WRONG_OPTIONS = "reset must reject an unknown task, split or option with a message that names it."
    NEVER_RAISES = "step must not raise, whatever the reply."
    RESET_NEEDED = "step before reset and after the end must raise ResetNeededError."
    SNAPSHOT_CHANGES_NOTHING = "Taking a snapshot must change nothing."
    SNAPSHOT_RESTORES = "restore must bring back the episode and its random generator, any number of times."
    SNAPSHOT_TRAVELS = "A pickled snapshot must restore in another instance."
    PICKLES = "A pickled environment must continue the original's episode."
    COPIES = "A deep copy must continue the original's episode, and neither may change the other."
    GYMNASIUM = "gymnasium.utils.env_checker.check_env must pass without a warning."
    DOCSTRING = "The class docstring must have Gymnasium's headings in their order."


ADVICE = (Rule.BASELINE, Rule.DOCSTRING)
"""Rules that only an environment which is published must keep."""
_PICKLE_ADVICE = {
    "cannot pickle": ". An open handle (a database, a browser, a container) cannot be copied: keep "
    "it in a class whose __reduce__ says how to open it again, see Open handles in docs/guides/authors.md.",
    "local object": ". Define the function or class at the top of its file, not inside a function.",
}
"""What to do, by words of the error."""
CHECKS: dict[Rule, Check] = {}
"""The check of each rule, in the order in which they run."""


def check(rule: Rule) -> Callable[[Check], Check]:
    """Register a function as the check of a rule."""

    def register(function: Check) -> Check:
        CHECKS[rule] = function
        return function

    return register


def broken(rule: Rule, seen: str) -> ContractError:
    """Return the error for a broken rule."""
    return ContractError(f"{rule} {seen}")


@contextlib.contextmanager
def must_not_raise(rule: Rule, doing: str) -> Iterator[None]:
    """Turn any error of an environment while ``doing`` something into one about the broken rule."""
    try:
        yield
    except ContractError:
        raise
    except Exception as error:
        what = f"{doing} raised {described(error)}"
        advice = next((text for words, text in _PICKLE_ADVICE.items() if words in what), "")
        raise broken(rule, f"{what}{advice}") from error
