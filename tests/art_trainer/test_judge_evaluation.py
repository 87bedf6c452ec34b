import json
import threading

import numpy as np
import pytest

from art_gym.wrappers.judging import JudgeFailed, JudgingError, RubricJudge, Score
from art_gym.wrappers.judging.llm_statistics import JudgeStatistics
from art_trainer.episodes import Ending, Episode, Group, Turn
from art_trainer.judge_evaluation import JudgedGroup, RatedJudge, evaluate_judge
from art_trainer.mixed_groups import PlayedGroup
from art_trainer.noisy_judge import NoisyJudge
from art_trainer.without_facts import WithoutFacts


def played(rewards, task=0, **options):
    """Attempts that say what they earn, and succeed with more than 0."""
    episodes = tuple(
        Episode(
            "toy", f"task-{task}", task, f"Do {task}.", (Turn(f"go {reward}", "done", reward),), (),
            **({"ending": Ending.TERMINATED, "success": reward > 0} | options),
        )
        for reward in rewards
    )  # fmt: skip
    return PlayedGroup(Group(episodes), tuple(f"player {i}" for i in range(len(rewards))))


GROUPS = [played([3, -1, 2, 1], task) for task in range(12)]


def said(group, change=lambda value, place: value):
    """Scores by what attempts say, and by the place at which they stand."""
    return {
        a.id: Score(change((float(a.steps[0].reply.split()[1]) + 1) / 4, place))
        for place, a in enumerate(group)
    }


class Counting:
    """A perfect judge that counts what it is asked, as judge models do."""

    def __init__(self, change=lambda value, place: value, fails=()):
        self._change, self._fails, self._lock = change, fails, threading.Lock()
        self.asked = 0
        self.statistics = JudgeStatistics()

    def __call__(self, group, rubric=None):
        with self._lock:
            self.asked += 1
            self.statistics = JudgeStatistics(
                groups=self.asked, requests=2 * self.asked, prompt_tokens=100 * self.asked,
                completion_tokens=10 * self.asked, cost=0.5 * self.asked,
            )  # fmt: skip
        if group[0].task in self._fails:
            raise JudgeFailed("timeout", "no answer")
        return said(group, self._change)


def test_a_perfect_judge():
    judge = Counting()
    found = evaluate_judge(RatedJudge("it", judge), GROUPS, checks=4, orders=3)
    assert (found.tau.value, found.tau.low, found.tau.high, found.tau.count) == (1, 1, 1, 12)
    assert (found.top.value, found.chance) == (1, 0.25)
    assert found.success_above.value == 1
    assert (found.order_slope, found.order_spread) == (0, 0)
    assert (found.repeat_difference, found.repeat_tau) == (0, 1)
    assert (len(found.orders), len(found.repeats)) == (4, 4)
    assert found.misled == []
    assert judge.asked == 12 + 4 * (3 + 1)


def test_usage_is_that_of_judging_each_group_once():
    judge = Counting()
    found = evaluate_judge(RatedJudge("it", judge), GROUPS, checks=4)
    assert judge.statistics.groups > 12
    assert (found.usage.groups, found.usage.requests, found.usage.cost) == (12, 24, 6.0)
    again = evaluate_judge(RatedJudge("it", judge), GROUPS[:3])
    assert (again.usage.groups, again.usage.prompt_tokens) == (3, 300)
    assert evaluate_judge(RatedJudge("rubric", RubricJudge()), GROUPS).usage is None


def test_a_judge_that_turns_the_order_round():
    found = evaluate_judge(RatedJudge("it", Counting(lambda value, place: 1 - value)), GROUPS)
    assert found.tau.value == -1
    assert (found.top.value, found.success_above.value) == (0, 0)
    assert found.misled[0] == ("player 0", "player 1", 12)
    assert sum(count for _, _, count in found.misled) == 12 * 6


def test_a_judge_that_favours_the_first_place():
    judge = Counting(lambda value, place: value / 2 + 0.1 * (3 - place))
    found = evaluate_judge(RatedJudge("it", judge), GROUPS, checks=12, orders=4)
    # Places pay 0.3, 0.2, 0.1 and 0: from the first to the last 0.3 less, whatever the attempt is worth.
    assert found.order_slope == pytest.approx(-0.3)
    assert found.order_spread == pytest.approx(np.std([0.3, 0.2, 0.1, 0.0]))
    assert found.repeat_difference == 0


def test_a_judge_of_many_minds():
    sign = iter([1, -1] * 1000)

    def moody(group, rubric=None):
        turn = next(sign)
        return said(group, lambda value, place: value if turn > 0 else 1 - value)

    found = evaluate_judge(RatedJudge("it", moody), GROUPS[:1], checks=1, orders=2, max_concurrency=1)
    # One ask, two orders, one ask again: the second answer is of the other mind.
    assert found.repeat_tau == -1
    assert found.repeat_difference == pytest.approx(np.mean([1, 1, 0.5, 0]))


def test_asks_again_go_to_the_judge_without_a_cache():
    cached, fresh = Counting(), Counting(lambda value, place: value / 2)
    found = evaluate_judge(RatedJudge("it", cached, fresh), GROUPS, checks=2, orders=2)
    assert (cached.asked, fresh.asked) == (12 + 2 * 2, 2)
    assert found.repeat_difference == pytest.approx(np.mean([0.5, 0, 0.375, 0.25]))


def test_a_group_that_it_fails_on_is_counted_and_is_in_no_average():
    judge = Counting(lambda value, place: value, fails=("Do 0.", "Do 5."))
    found = evaluate_judge(RatedJudge("it", judge), GROUPS, checks=12)
    assert found.failures == {"timeout": 2}
    assert (len(found.groups), found.tau.count, len(found.repeats), len(found.orders)) == (10, 10, 10, 10)


def test_groups_without_an_order_count_nowhere():
    groups = [played([1, 1, 1]), played([0, 0, 0], 1)]
    found = evaluate_judge(RatedJudge("it", Counting()), groups, checks=2)
    assert (found.tau, found.success_above, found.top, found.chance) == (None, None, None, None)
    assert found.orders == ()  # attempts that read the same have no order to be shown in
    mixed = evaluate_judge(RatedJudge("it", Counting()), [*groups, *GROUPS])
    assert mixed.tau.count == 12


def test_rewards_that_differ_by_rounding_are_equal():
    group = played([0.1 + 0.2, 0.3, 0.0])
    found = evaluate_judge(RatedJudge("it", NoisyJudge(0.0)), [group])
    assert found.groups[0].rewards == (0.3, 0.3, 0.0)
    assert found.groups[0].scores == (0.75, 0.75, 0.0)
    assert found.tau.value == 1


def test_the_instrument_reads_what_a_noisy_judge_was_set_to():
    groups = [played([0, 0, 1, 2, 3, 3], task) for task in range(600)]
    found = evaluate_judge(RatedJudge("noisy", NoisyJudge(0.4, seed=3)), groups, checks=3)
    assert found.tau.low < 0.6 < found.tau.high
    assert found.tau.high - found.tau.low < 0.1
    assert (found.order_slope, found.repeat_difference) == (0, 0)


def test_a_judge_set_up_wrongly_is_an_error():
    def wrong(group, rubric=None):
        raise JudgingError("no function for criterion `x`")

    with pytest.raises(JudgingError, match="no function"):
        evaluate_judge(RatedJudge("it", wrong), GROUPS)


def test_only_whole_groups_of_two_or_more_can_be_judged():
    with pytest.raises(ValueError, match="this one has 1, 0 of them failed"):
        evaluate_judge(RatedJudge("it", Counting()), [played([1])])
    with pytest.raises(ValueError, match="this one has 2, 2 of them failed"):
        evaluate_judge(RatedJudge("it", Counting()), [played([1, 2], ending=Ending.ENV_ERROR)])


def test_everything_done_is_told():
    told = []
    evaluate_judge(RatedJudge("it", Counting()), GROUPS, checks=5, on_done=lambda: told.append(1))
    assert len(told) == 12 + 5


def test_json_holds_the_figures_and_the_groups():
    found = evaluate_judge(RatedJudge("it", Counting()), GROUPS[:1], checks=1)
    data = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert data["tau"] == {"value": 1.0, "low": None, "high": None, "count": 1}  # one group has no spread
    assert data["groups"][0]["scores"] == [1.0, 0.0, 0.75, 0.5]
    assert data["groups"][0]["tau"] == 1
    assert data["usage"]["requests"] == 2


def test_success_that_nobody_tells_is_failure():
    group = JudgedGroup("t", 0, ("a", "b"), (1.0, 0.0), (True, None), (0.9, 0.1), ("", ""))
    assert group.success_above == 1


class TestWithoutFacts:
    def test_hides_what_was_expected_and_what_came_of_it_and_nothing_else(self):
        seen = []

        def judge(group, rubric=None):
            seen.extend((dict(a.facts), a.steps, rubric) for a in group)
            return {a.id: Score(0.5) for a in group}

        facts = {"expected": 1, "result": 2, "optimal_turns": 3, "task_type": "game"}
        groups = [played([1, 2], facts=facts)]
        evaluate_judge(RatedJudge("it", WithoutFacts(judge)), groups)
        assert [one for one, _, _ in seen] == [{"optimal_turns": 3, "task_type": "game"}] * 2
        assert groups[0].group.episodes[0].facts == facts
        assert seen[0][1][0].reply == "go 1"

    def test_the_rubric_then_guesses(self):
        # A wrong answer given at once, and the right one given later: only facts tell them apart.
        def attempt(result, turns):
            steps = tuple(Turn("look", "a wall", 0.0) for _ in range(turns - 1))
            facts = {"expected": "door", "result": result, "optimal_turns": 1}
            end = Turn(f"say {result}", "the end", float(result == "door"))
            return Episode("toy", "t", 0, "Say it.", (*steps, end), (), Ending.TERMINATED, facts=facts)

        group = PlayedGroup(Group((attempt("door", 3), attempt("xyz", 1))), ("slow", "hasty"))
        told = evaluate_judge(RatedJudge("told", RubricJudge()), [group])
        blind = evaluate_judge(RatedJudge("blind", WithoutFacts(RubricJudge())), [group])
        assert (told.tau.value, blind.tau.value) == (1, -1)
        assert blind.misled == [("slow", "hasty", 1)]
