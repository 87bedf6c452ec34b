"""Evaluations that can be cited: fixed lists of tasks, results that can be made again, and a leaderboard."""

from art_trainer.suites.catalog import load_suite, suite_names, write_suite
from art_trainer.suites.leaderboard import leaderboard_page
from art_trainer.suites.record import EvaluationRecord, PolicyRecord, read_record
from art_trainer.suites.suite import Suite
from art_trainer.suites.task_list import check_task_list, task_list_sha256
from art_trainer.suites.verification import differences

__all__ = [
    "EvaluationRecord",
    "PolicyRecord",
    "Suite",
    "check_task_list",
    "differences",
    "leaderboard_page",
    "load_suite",
    "read_record",
    "suite_names",
    "task_list_sha256",
    "write_suite",
]
