"""``art-trainer analyze``: the analysis of runs as tables, as a file of numbers and as a page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from art_trainer.analysis import Analysis, Prices, analyze
from art_trainer.analysis.page import analysis_page
from art_trainer.analysis.tables import print_analysis
from art_trainer.run_folder import write_text


@dataclass(frozen=True, slots=True)
class AnalyzeRequest:
    """What ``art-trainer analyze`` was asked for; the flags' help texts say what each means."""

    runs: Sequence[Path]
    compare: bool
    between: tuple[str, str] | None
    price: float | None
    price_read: float
    json_file: Path | None
    html_file: Path | None


def run_analyze(request: AnalyzeRequest, console: Console) -> Analysis:
    """Analyse, print the tables and write the files.

    Raises:
        ConfigError: Where a run has no evaluation of a name asked for, or none to compare.
    """
    prices = None if request.price is None else Prices(request.price, request.price_read)
    analysis = analyze(request.runs, compare=request.compare, between=request.between, prices=prices)
    print_analysis(analysis, console)
    if request.json_file is not None:
        write_text(request.json_file, json.dumps(analysis.to_json(), ensure_ascii=False, indent=1))
    if request.html_file is not None:
        write_text(request.html_file, analysis_page(analysis))
        console.print(f"Page: {request.html_file}", highlight=False, soft_wrap=True)
    return analysis
