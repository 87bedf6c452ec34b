"""How a run ended, in words for whoever wrote the program."""

from __future__ import annotations

from art_gym.envs.coding.sandbox import Outcome, Run


def ending(run: Run) -> str:
    """How a run ended, in words that hold no measured time."""
    match run.outcome:
        case Outcome.EXITED:
            return f"the program ended early, with exit code {run.exit_code}"
        case Outcome.TIMEOUT | Outcome.CPU:
            return "the program took too long"
        case Outcome.MEMORY:
            return "the program used too much memory"
        case Outcome.OUTPUT:
            return "the program printed too much"
        case Outcome.KILLED:
            return f"the program was ended by signal {run.signal}"
        case Outcome.REFUSED:
            return f"the sandbox failed: {run.why}"
