"""The conformance kit: checks an environment against every rule of the ``TextEnv`` contract."""

from art_gym.testing.checker import ADVICE, CHECKS, CheckResult, Rule, check_results, check_text_env

__all__ = ["ADVICE", "CHECKS", "CheckResult", "Rule", "check_results", "check_text_env"]
