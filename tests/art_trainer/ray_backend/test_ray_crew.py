"""The crew of the Ray backend, with actors in this process: each fault, asserted by counts."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from art_trainer.episodes import Ending, Episode, Group
from art_trainer.ray_backend.actor import OnPlayed, Player
from art_trainer.ray_backend.hand import ClusterError, Hand
from art_trainer.remote.journal import JournalError
from art_trainer.remote.messages import Lease
from tests.art_trainer.ray_backend.hands import (
    CALM,
    AbsentHand,
    Company,
    DyingHand,
    LocalHand,
    SleepingHand,
    company,
)
from tests.art_trainer.ray_backend.players import MadeUpPlayer, tasks
from tests.art_trainer.waiting import until


def collect(made: Company, count: int = 4, size: int = 4, batch: int = 0) -> list[Group]:
    return made.groups.collect(tasks(count, size, batch), on_episode=lambda episode: None)


def whole(groups: list[Group], count: int = 4, size: int = 4, batch: int = 0) -> None:
    """Each attempt at each task is there once, played with its own randomness."""
    assert [[episode.observation for episode in group.episodes] for group in groups] == [
        [str([*task.rng_seed, member]) for member in range(size)] for task in tasks(count, size, batch)
    ]
    assert all(group.whole for group in groups)


def versions(group: Group) -> set[int]:
    """Of the weights that sampled it."""
    histories = [history for episode in group.episodes for history in episode.histories]
    return {span.policy_version for history in histories for span in history.spans}


def test_every_attempt_is_played_once_and_weights_travel_once_a_version(tmp_path: Path) -> None:
    heard: list[Episode] = []
    places: list[int] = []
    with company(tmp_path) as made:
        made.publish(0)
        groups = made.groups.collect(
            tasks(4), on_episode=heard.append, on_group=lambda place, group: places.append(place)
        )
        whole(groups)
        made.publish(1)
        whole(collect(made, batch=1), batch=1)
        results = made.ledger.status().results
    assert len(heard) == 16
    assert sorted(places) == [0, 1, 2, 3]
    assert results["accepted"] == results["leased"] == 32
    assert not made.crew.losses
    for hand in made.hired:
        assert isinstance(hand, LocalHand)
        sent = [work.weights for work in hand.works if work.weights is not None]
        assert sent == sorted(set(sent))
        assert all(len({lease.group for lease in work.leases}) == 1 for work in hand.works)
        assert hand.stopped
        assert hand.killed


def test_what_a_dead_actor_was_playing_is_played_by_another(tmp_path: Path) -> None:
    def hands(number: int) -> Hand:
        return DyingHand(MadeUpPlayer) if number == 0 else LocalHand(MadeUpPlayer)

    with company(tmp_path, hands) as made:
        made.publish(0)
        whole(collect(made))
        results = made.ledger.status().results
    assert made.crew.losses == {"died": 1}
    assert results["accepted"] == 16
    assert results["failed"] == 4
    assert "hit by lightning; its 4 episodes are played again" in made.said[0]


def test_a_silent_actors_work_goes_to_others_and_its_late_results_are_dropped(tmp_path: Path) -> None:
    """Between the end of its leases and its end, a sleeper may wake."""
    now, sleeper = [0.0], SleepingHand(MadeUpPlayer)

    def hands(number: int) -> Hand:
        return sleeper if number == 0 else LocalHand(MadeUpPlayer)

    with company(tmp_path, hands, clock=lambda: now[0]) as made:
        made.publish(0)
        made.ledger.submit(tasks(4))
        until(lambda: made.ledger.status().results.get("accepted") == 12)
        now[0] += 2 * CALM.lease
        whole(collect(made))
        assert made.ledger.status().results["expired"] == 4
        sleeper.awake.set()
        until(lambda: made.ledger.status().results.get("late") == 4)
        results = made.ledger.status().results
    assert results["accepted"] == 16
    assert results["late"] == 4
    assert not made.crew.losses


def test_an_actor_that_stays_silent_is_killed_and_replaced(tmp_path: Path) -> None:
    def hands(number: int) -> Hand:
        return SleepingHand(MadeUpPlayer) if number == 0 else LocalHand(MadeUpPlayer)

    with company(tmp_path, hands, size=1, patience=replace(CALM, lease=1.0, silence=1.0)) as made:
        made.publish(0)
        whole(collect(made))
        sleeper = made.hired[0]
    assert isinstance(sleeper, LocalHand)
    assert sleeper.killed
    assert not sleeper.stopped
    assert made.crew.losses == {"silent": 1}
    assert "it was silent for 1 s" in made.said[0]


def test_an_actor_that_answers_but_gets_nowhere_is_killed_and_replaced(tmp_path: Path) -> None:
    forever = threading.Event()

    def hands(number: int) -> Hand:
        stuck = number == 0
        return LocalHand(lambda: MadeUpPlayer(before=lambda lease: stuck and forever.wait(60)))

    with company(tmp_path, hands, size=1, patience=replace(CALM, progress=1.0)) as made:
        made.publish(0)
        whole(collect(made))
        forever.set()
    assert made.crew.losses == {"stuck": 1}
    assert "none of 4 episodes ended within 1 s" in made.said[0]


def test_a_cluster_without_room_ends_the_run_in_words(tmp_path: Path) -> None:
    patience = replace(CALM, start=0.5)
    with company(tmp_path, lambda number: AbsentHand(MadeUpPlayer), patience=patience) as made:
        made.publish(0)
        with pytest.raises(ClusterError, match=r"did not start within 0.5 s. There is no room at all"):
            collect(made)
    assert all(hand.killed for hand in made.hired if isinstance(hand, AbsentHand))


def test_an_actor_without_room_is_told_of_once_while_others_play(tmp_path: Path) -> None:
    def hands(number: int) -> Hand:
        slow = MadeUpPlayer(seconds=0.12)
        return LocalHand(lambda: slow) if number == 0 else AbsentHand(MadeUpPlayer)

    with company(tmp_path, hands, patience=replace(CALM, start=0.5)) as made:
        made.publish(0)
        whole(collect(made))
    assert made.crew.losses["unplaced"] >= 2
    assert len(made.said) == 1
    assert made.said[0].endswith("It is tried again; meanwhile 1 others play")


def test_actors_that_cannot_make_their_model_end_the_run_with_the_last_ones_words(tmp_path: Path) -> None:
    def no_model() -> Player:
        raise FileNotFoundError("no such model")

    with company(tmp_path, lambda number: LocalHand(no_model), size=1) as made:
        made.publish(0)
        with pytest.raises(ClusterError, match=r"4 times, .* \(broken\): FileNotFoundError: no such model"):
            collect(made)
    assert made.crew.losses == {"broken": 4}


def test_an_episode_that_no_actor_survives_is_given_up_with_its_words(tmp_path: Path) -> None:
    def fall(lease: Lease) -> None:
        if lease.seed == 101:
            raise RuntimeError("the floor is lava")

    with company(tmp_path, lambda number: LocalHand(lambda: MadeUpPlayer(before=fall))) as made:
        made.publish(0)
        groups = collect(made)
        results = made.ledger.status().results
    assert [group.whole for group in groups] == [True, False, True, True]
    assert {episode.ending for episode in groups[1].episodes} == {Ending.POLICY_ERROR}
    assert all("the floor is lava" in str(episode.error) for episode in groups[1].episodes)
    assert results["accepted"] == 12
    assert results["unplayable"] == 4
    assert not made.crew.losses


def test_work_of_which_nothing_ever_comes_ends_the_run(tmp_path: Path) -> None:
    class Useless(MadeUpPlayer):
        def play(self, leases: tuple[Lease, ...], on_played: OnPlayed, stop: threading.Event) -> None:
            raise ValueError("not my model")

    with company(tmp_path, lambda number: LocalHand(Useless)) as made:
        made.publish(0)
        with pytest.raises(ClusterError, match=r"[78] times, .* broke off: ValueError: not my model"):
            collect(made)


def test_an_actor_short_of_memory_gets_less(tmp_path: Path) -> None:
    sizes: list[int] = []

    class Small(MadeUpPlayer):
        def play(self, leases: tuple[Lease, ...], on_played: OnPlayed, stop: threading.Event) -> None:
            sizes.append(len(leases))
            if len(leases) > 1:
                raise MemoryError("that is too much")
            super().play(leases, on_played, stop)

    with company(tmp_path, lambda number: LocalHand(Small), size=1, capacity=8) as made:
        made.publish(0)
        whole(collect(made, count=2), count=2)
    assert sizes == [8, 4, 2, *[1] * 8]
    assert "that is too much; from now on it plays at most 4 at a time" in made.said[0]


def test_weights_that_do_not_go_in_are_sent_again(tmp_path: Path) -> None:
    class Refusing(MadeUpPlayer):
        def update(self, weights: int) -> None:
            super().update(weights)
            if len(self.updates) == 1:
                raise ValueError("damaged on the way")

    with company(tmp_path, lambda number: LocalHand(Refusing), size=1) as made:
        made.publish(0)
        whole(collect(made))
        (hand,) = made.hired
    assert isinstance(hand, LocalHand)
    assert [work.weights for work in hand.works] == [0, 0, None, None, None]
    assert "4 episodes broke off: ValueError: damaged on the way" in made.said[0]


def test_what_is_too_old_when_it_is_wanted_is_played_again(tmp_path: Path) -> None:
    with company(tmp_path, max_staleness=1) as made:
        made.publish(0)
        made.ledger.submit(tasks(2, batch=1))
        until(lambda: made.ledger.status().queue.finished == 8)
        made.publish(1)
        fresh = collect(made, count=1, batch=1)
        assert {span.policy_version for e in fresh[0].episodes for h in e.histories for span in h.spans} == {
            0
        }
        made.publish(2)
        (old,) = made.groups.collect(tasks(2, batch=1)[1:], on_episode=lambda episode: None)
        assert versions(old) == {2}
        assert made.ledger.status().results["requeued"] == 4


def test_groups_of_a_step_that_was_broken_off_are_there_again_at_once(tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(place: int, group: Group) -> None:
        raise Stop

    with company(tmp_path) as made:
        made.publish(0)
        with pytest.raises(Stop):
            made.groups.collect(tasks(4), on_episode=lambda episode: None, on_group=stop)
        whole(collect(made))
        assert made.ledger.status().results["accepted"] == 16


def test_the_crews_own_fault_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with company(tmp_path) as made:

        def full(entries: object) -> None:
            raise JournalError("no space left on device")

        monkeypatch.setattr(made.journal, "append", full)
        made.publish(0)
        with pytest.raises(JournalError, match="no space left"):
            collect(made)


def test_closing_gives_leases_back_and_leaves_no_actor(tmp_path: Path) -> None:
    with company(tmp_path, lambda number: LocalHand(lambda: MadeUpPlayer(seconds=60))) as made:
        made.publish(0)
        made.ledger.submit(tasks(2))
        until(lambda: made.ledger.status().queue.leased == 8)
        made.close()
        assert made.ledger.status().results["released"] >= 4
        assert all(hand.killed for hand in made.hired if isinstance(hand, LocalHand))
        assert not [thread for thread in threading.enumerate() if thread.name == "ray crew"]
