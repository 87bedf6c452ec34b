"""What PettingZoo's own tests warn of in any game of this project."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

# Of any observation that is a Dict, and of actions that are text.
ALWAYS = (
    "Observation is not a NumPy array",
    "Observation space for each agent probably should be gymnasium.spaces.box",
    "Action space for each agent probably should be gymnasium.spaces.box",
)
MASK_AT_THE_END = "Action mask numpy array is all zeros"
UNEQUAL_SEATS = "Agents have different observation space sizes"


@contextmanager
def no_other_warnings(*more: str) -> Iterator[None]:
    """Fail on every warning but these."""
    with warnings.catch_warnings():
        for message in (*ALWAYS, *more):
            warnings.filterwarnings("ignore", message)
        yield
