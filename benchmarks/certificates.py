"""Certificates of this project's environments, in every reward mode, and the page that shows them.

    python benchmarks/certificates.py --json certificates.json --page docs/certificates.md

runs what ``art-gym certify --no-train`` runs, one environment after another, with nothing beside it: their
steps a second are part of it. ``--check`` exits 1 if a finding is bad.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import harness

from art_gym.cli.certify import verdict_of
from art_gym.lookup import make_env
from art_gym.testing.certificate import Finding, Level, Survey, certify


def _grid(env: str, **values: Iterable[Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """An environment with every combination of some arguments."""
    for chosen in itertools.product(*values.values()):
        yield env, dict(zip(values, chosen, strict=True))


ENVIRONMENTS = (
    *_grid("art/Email-v0", difficulty=(1, 2, 3, 4), reward=("outcome", "shaped")),
    *_grid("art/Coding-v0", level=(0, 1, 2, 3), reward=("all", "fraction")),
    *_grid("art/2048-v0", reward=("score", "shaped"), max_turns=(300,)),
    *_grid("art/2048-v0", reward=("target",), max_turns=(300,), target=(256,)),
    *_grid("art/Judge-v0"),
    *_grid("toy/FrozenLake-v0", start=("corner", "anywhere")),
)
"""Ids and arguments."""
HEAD = """# Certificates

What [`art-gym certify`](guides/authors.md#is-it-worth-training-on) finds in this project's environments. No
model is trained here; what is learned stands in each environment's guide. On one core of an x86-64 virtual
machine. Command: `python benchmarks/certificates.py --page docs/certificates.md`.

One finding stands. `reward="fraction"` of Coding pays for a part of the tests, as it says; where one line is
missing, the name of an argument passes a fifth of them. Use `"all"` there, as the recipes do.
""".splitlines()
KNOWN = {("art/Coding-v0 level=0 reward=fraction", "statistical.gameability_gap")}
"""Findings that stand; the page says why."""
WORDS = {True: "yes", False: "**no**", None: "not known"}


@dataclass(frozen=True)
class Certificate:
    """What was found in one environment."""

    env: str
    arguments: dict[str, Any]
    findings: list[Finding]

    @property
    def name(self) -> str:
        """As on the command line."""
        return " ".join([self.env, *(f"{key}={value}" for key, value in self.arguments.items())])

    @property
    def bad(self) -> list[str]:
        """Ids of what did not pass."""
        return [one.id for one in self.findings if one.passed is False]


def certificate(env: str, arguments: dict[str, Any], *, quick: bool) -> Certificate:
    """Look at one environment."""
    made = make_env(env, arguments)
    survey = Survey(made, episodes=16, seconds=0.2) if quick else Survey(made)
    found = list(certify(survey, [level for level in Level if level is not Level.CONTRACT or not quick]))
    made.close()
    return Certificate(env, arguments, found)


def page(certificates: list[Certificate]) -> Iterator[str]:
    """The lines of the page."""
    yield from HEAD
    yield ""
    yield "| | sound | learnable | not hackable | fast | bad findings |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for one in certificates:
        words = [WORDS[good] for good in verdict_of(one.findings).values()]
        yield f"| {' | '.join([f'`{one.name}`', *words, ', '.join(one.bad)])} |"
    for one in certificates:
        yield ""
        yield f"## `{one.name}`"
        yield ""
        rules = [finding.passed for finding in one.findings if finding.level is Level.CONTRACT]
        yield f"- {rules.count(True)} of {len(rules)} rules of the contract hold"
        for finding in one.findings:
            if finding.level is not Level.CONTRACT:
                evidence = finding.evidence.replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")
                yield f"- {'' if finding.passed else WORDS[finding.passed] + ': '}{finding.id}: {evidence}"


def main() -> int:
    """Command line."""
    parser = harness.parser(__doc__, quick="few episodes of each, without the contract: shows that it runs")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the page here")
    options = parser.parse_args()
    certificates = []
    for env, arguments in ENVIRONMENTS:
        certificates.append(one := certificate(env, arguments, quick=options.quick))
        print(f"{one.name}: {', '.join(one.bad) or 'nothing bad'}", flush=True)
    if options.page is not None:
        options.page.write_text("\n".join(page(certificates)) + "\n")
    bad = [(one.name, name) for one in certificates for name in one.bad]
    failures = [f"{env}: {name}" for env, name in bad if (env, name) not in KNOWN]
    figures = {"certificates": [{"name": one.name, **asdict(one)} for one in certificates]}
    clean = sum(not one.bad for one in certificates)
    return harness.finish(options, figures, failures, f"{clean} of {len(certificates)} have no bad finding")


if __name__ == "__main__":
    sys.exit(main())
