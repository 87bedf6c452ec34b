"""Analysis of recorded runs: did they learn, where do they fail, is the reward hacked?

::

    from art_trainer.analysis import analyze

    analysis = analyze("runs/Email-v0-art-tiny-1")
    print(analysis.runs[0].verdict.learned)

Also here: the training report.
"""

from art_trainer.analysis.analyze import Analysis, RunAnalysis, analyze
from art_trainer.analysis.detectors import Confidence, Finding, Verdict
from art_trainer.analysis.run_records import episode_records

__all__ = [
    "Analysis",
    "Confidence",
    "Finding",
    "RunAnalysis",
    "Verdict",
    "analyze",
    "episode_records",
]
