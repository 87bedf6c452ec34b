import json
import threading

import pytest

from art_gym.wrappers.judging import JudgeFailedError, JudgingError, RubricJudge, Score
from art_gym.wrappers.judging.budget import JudgeStatistics
from art_trainer.analysis.judge_evaluation import blind_judge, evaluate_judge
from art_trainer.analysis.mixed_groups import LabelledGroup
from art_trainer.types import Ending, Episode, Group, Turn


def played(rewards, task=0, **options):
    """Attempts that say what they earn, and succeed with more than 0."""
    episodes = tuple(
        Episode(
            "toy", f"task-{task}", task, f"Do {task}.", (Turn(f"go {reward}", "done", reward),), (),
            **({"ending": Ending.TERMINATED, "success": reward > 0} | options),
        )
        for reward in rewards
    )  # fmt: skip
    return LabelledGroup(Group(episodes), tuple(f"player {i}" for i in range(len(rewards))))


GROUPS = [played([3, -1, 2, 1], task) for task in range(12)]


def scores_of(group, change=lambda value, place: value):
    """Scores by what attempts say, and by the place at which they stand."""
    return {
        a.id: Score(change((float(a.steps[0].reply.split()[1]) + 1) / 4, place))
        for place, a in enumerate(group)
    }


class Counting:
    """A perfect judge that counts what it is asked, as judge models do."""

    def __init__(self, change=lambda value, place: value, fails=()):
        self._change, self._fails, self._lock = change, fails, threading.Lock()
        self.statistics = JudgeStatistics()

    @property
    def asked(self):
        return self.statistics.groups

    def __call__(self, group, rubric=None):
        with self._lock:
            n = self.asked + 1
            self.statistics = JudgeStatistics(
                groups=n, requests=2 * n, prompt_tokens=100 * n, completion_tokens=10 * n, cost=0.5 * n
            )
        if group[0].task in self._fails:
            raise JudgeFailedError("timeout", "no answer")
        return scores_of(group, self._change)


def evaluated(judge, groups=GROUPS, **options):
    return evaluate_judge("it", judge, groups, **options)


def test_a_perfect_judge_and_what_judging_each_group_once_costs():
    judge, done = Counting(), []
    found = evaluated(judge, on_done=lambda: done.append(1))
    tau, chance = found.figures["tau"], found.figures["chance"]
    assert (tau.value, tau.low, tau.high, tau.count) == (1, 1, 1, 12)
    assert (found.figures["top"].value, found.figures["success_above"].value, chance.value) == (1, 1, 0.25)
    assert (round(found.figures["top"].low, 2), found.figures["top"].high) == (0.76, 1)  # Wilson, 12 of 12
    assert (judge.asked, len(done)) == (12, 12)
    assert (found.usage.groups, found.usage.requests, found.usage.cost) == (12, 24, 6.0)
    assert evaluated(judge, GROUPS[:3]).usage.prompt_tokens == 300
    assert evaluated(RubricJudge()).usage is None


def test_a_judge_that_turns_the_order_round():
    found = evaluated(Counting(lambda value, place: 1 - value))
    assert [found.figures[name].value for name in ("tau", "top", "success_above")] == [-1, 0, 0]
    groups = [*GROUPS[:2], played([-1, 3, 2, 1], 2)]  # Student's interval of their taus ends above 1
    tau = evaluated(Counting(lambda value, place: value if place else 1), groups).figures["tau"]
    assert tau.low < tau.value < tau.high == 1


def test_a_group_that_it_fails_on_is_counted_and_is_in_no_average():
    found = evaluated(Counting(fails=("Do 0.", "Do 5.")))
    assert found.failures == {"timeout": 2}
    assert (len(found.groups), found.figures["tau"].count) == (10, 10)


def test_groups_without_an_order_count_nowhere():
    groups = [played([1, 1, 1]), played([0, 0, 0], 1)]
    assert set(evaluated(Counting(), groups).figures.values()) == {None}
    assert evaluated(Counting(), [*groups, *GROUPS]).figures["tau"].count == 12


def test_rewards_that_differ_by_rounding_are_equal():
    found = evaluated(Counting(), [played([0.1 + 0.2, 0.3, 0.0])])
    assert found.groups[0].rewards == (0.3, 0.3, 0.0)


def test_a_judge_set_up_wrongly_is_an_error():
    def wrong(group, rubric=None):
        raise JudgingError("no function for criterion `x`")

    with pytest.raises(JudgingError, match="no function"):
        evaluated(wrong)


@pytest.mark.parametrize("group", [played([1]), played([1, 2], ending=Ending.ENV_ERROR)])
def test_only_whole_groups_of_two_or_more_can_be_judged(group):
    with pytest.raises(ValueError, match="task-0: a judge is rated on whole groups"):
        evaluated(Counting(), [group])


def test_json_holds_the_figures_and_the_groups():
    found = evaluated(Counting(), GROUPS[:1])
    data = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert data["tau"] == {"value": 1.0, "low": None, "high": None, "count": 1}  # one group has no spread
    assert (data["groups"][0]["scores"], data["groups"][0]["tau"]) == ([1.0, 0.0, 0.75, 0.5], 1)
    assert data["usage"]["requests"] == 2


def test_a_blind_judge_sees_all_but_what_was_expected_and_what_came_of_it():
    seen = []

    def judge(group, rubric=None):
        seen.extend((dict(a.facts), a.steps) for a in group)
        return {a.id: Score(0.5) for a in group}

    facts = {"expected": 1, "result": 2, "optimal_turns": 3}
    groups = [played([1, 2], facts=facts)]
    evaluated(blind_judge(judge), groups)
    assert [one for one, _ in seen] == [{"optimal_turns": 3}] * 2
    assert groups[0].group.episodes[0].facts == facts
    assert seen[0][1][0].reply == "go 1"
