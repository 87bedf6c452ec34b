"""The results of self-play for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.table import Table

from art_trainer.commands.tables import comparison_lines
from art_trainer.display import number, percent
from art_trainer.evaluation import compare
from art_trainer.self_play import Match


def match_table(matches: Mapping[str, Sequence[Match]]) -> Table:
    """How each player did in each seat against each scripted player of the others.

    Args:
        matches: By the player's name; those of one seat and opponent stand together, in this order.
    """
    table = Table(title="Against scripted players, 95% intervals", title_justify="left", title_style="")
    for heading in ("seat", "against", "player"):
        table.add_column(heading, overflow="fold")
    for heading in ("success", "mean reward", "invalid"):
        table.add_column(heading, justify="right")
    for seat, opponent in pairings(match for found in matches.values() for match in found):
        table.add_section()
        for player, found in matches.items():
            for match in found:
                if (match.seat, match.opponent) == (seat, opponent):
                    evaluation = match.evaluation
                    invalid = f"{100 * evaluation.invalid_rate:.1f}%"
                    reward = number(evaluation.reward)
                    table.add_row(seat, opponent, player, percent(evaluation.success), reward, invalid)
    return table


def pairings(matches: Iterable[Match]) -> list[tuple[str, str]]:
    """The pairs of seat and opponent, in order of first appearance."""
    return list(dict.fromkeys((match.seat, match.opponent) for match in matches))


def difference_lines(before: Sequence[Match], after: Sequence[Match]) -> Iterator[str]:
    """For each seat and opponent the paired difference that training made."""
    for first, second in zip(before, after, strict=True):
        if first.evaluation.counted and second.evaluation.counted:
            yield f"{second.seat} against {second.opponent}, after training:"
            for line in comparison_lines(compare(first.evaluation, second.evaluation)):
                yield f"  {line}"
