"""What runs did, in a minute: whether they learned, where they fail, and whether they cheat.

::

    from art_trainer.analysis import analyze

    analysis = analyze("runs/Email-v0-art-tiny-1")
    print(analysis.runs[0].verdict.cheats)
"""

from art_trainer.analysis.analyzing import Prices, analyze
from art_trainer.analysis.results import Analysis, Confidence, RunAnalysis, Sign, Verdict

__all__ = ["Analysis", "Confidence", "Prices", "RunAnalysis", "Sign", "Verdict", "analyze"]
