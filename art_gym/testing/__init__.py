"""The conformance kit: checks an environment against every rule of the ``TextEnv`` contract."""

from art_gym.testing.checker import ADVICE, CHECKS, CheckResult, Rule, check_results, check_text_env
from art_gym.testing.degenerate import degenerate_policies

__all__ = [
    "ADVICE",
    "CHECKS",
    "CheckResult",
    "Rule",
    "check_results",
    "check_text_env",
    "degenerate_policies",
]
