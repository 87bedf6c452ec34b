"""The remote backend: one run a folder, results the learner cannot use, a server that has failed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from art_trainer.cli.run_config import gather_settings
from art_trainer.cli.serve import serve
from art_trainer.config import GRPOConfig
from art_trainer.distributed.backend import RemoteBackend, run_spec
from art_trainer.distributed.prompts import PromptRenderer
from art_trainer.distributed.protocol import FROM_CLIENT, MessageError, RunSpec, read_message
from art_trainer.distributed.result_checks import disagreements, episode_error
from art_trainer.distributed.result_log import Entry, ResultLog, ResultLogError
from art_trainer.distributed.worker.model import make_policy
from art_trainer.errors import EngineError
from art_trainer.training.trainer import GRPOTrainer
from art_trainer.types import Ending, Episode, Span, TokenHistory, Turn
from tests.art_trainer.distributed.played import episode, task
from tests.art_trainer.distributed.server_helpers import Wire, played
from tests.art_trainer.guess import guess_policy


@contextmanager
def lying(folder: Path) -> Iterator[tuple[RemoteBackend, Wire]]:
    """A trainer's backend that wants a group of three, and somebody who has said hello to it."""
    policy = guess_policy(0, hidden=16)
    config = GRPOConfig(output_dir=str(folder), num_generations=3, top_p=0.95)
    with (
        pytest.MonkeyPatch.context() as patch,
        closing(RemoteBackend(policy, "made/Env-v0", {}, config, folder, drain_seconds=0)) as backend,
    ):
        patch.setattr(PromptRenderer, "error", lambda self, episode: None)
        backend.publish(policy.version)
        backend.prefetch([task(0, size=3)])
        with connect(backend.url.replace("http", "ws") + "/ws/liar", proxy=None) as socket:
            wire = Wire(socket)
            wire.ask(type="hello", protocol=1)
            yield backend, wire


def test_episodes_that_would_break_the_learner_are_invalid(tmp_path: Path) -> None:
    with lying(tmp_path) as (backend, wire):
        beyond = played(wire.lease()[0])
        beyond["episode"]["histories"][0][1]["tokens"] = [4, 2**31]
        elsewhere = played(wire.lease()[0])
        elsewhere["episode"]["env_id"] = "someone/Else-v9"
        for result, words in (
            (beyond, "the model knows those from 0"),
            (elsewhere, "'someone/Else-v9', the run's environment is 'made/Env-v0'"),
        ):
            receipt = wire.ask(**result)
            assert receipt["outcome"] == "invalid"
            assert words in receipt["reason"]
        assert "accepted" not in backend.status().results
        assert wire.play(wire.lease()[0])["outcome"] == "accepted", "the attempt is still there to be played"


READ = {"turn": None, "version": 0, "tokens": [1, 2, 3]}
SAMPLED = {"turn": 0, "version": 0, "tokens": [4, 5]}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "task": ({"task_id": "zzz"}, "its task is 'zzz', another attempt of its group has 'task-0'"),
    "start": ({"observation": "another"}, "its first observation is 'another', another attempt of its group"),
    "log-probs": (
        {"histories": [[READ, SAMPLED | {"logprobs": "AAAgwAAA9ME="}]]},
        "nats a token, at most by 2",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_result_is_played_again_and_the_others_count(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    (change, words), wanted = WRONG[what], task(0, size=3)
    with lying(tmp_path) as (backend, wire), ThreadPoolExecutor(1) as threads:
        lies, *honest = [played(lease) for lease in wire.lease(3)]
        lies["episode"] |= change
        collecting = threads.submit(backend.collect, [wanted], on_episode=lambda episode: None)
        assert [wire.ask(**result)["outcome"] for result in (lies, *honest)] == ["accepted"] * 3
        (again,) = wire.lease(3)
        assert (again["rng_seed"][-1], wire.play(again)["outcome"]) == (0, "accepted")
        (group,) = collecting.result(60)
        results = backend.status().results
    assert {episode.task_id for episode in group.episodes} == {"task-0"}
    assert {episode.histories[0].logprobs for episode in group.episodes} == {(-0.5, -0.25)}
    assert (results["accepted"], results["rejected"]) == (4, 1)
    assert f"group {wanted.id}, attempt 0 is played again: client liar sent a wrong result: " in caplog.text
    assert words in caplog.text


def test_attempts_of_which_no_task_is_the_usual_one_are_all_wrong() -> None:
    one, two, failed = (episode(task(), task_id=name) for name in ("one", "two", "failed"))
    failed = dataclasses.replace(failed, ending=Ending.ENV_ERROR)
    assert sorted(disagreements([one, two, failed])) == [0, 1]
    assert list(disagreements([one, two, one])) == [1]
    assert disagreements([one, one, failed]) == {}


NONSENSE = {
    "facts": '"facts":{"deep":[{"er":NaN}]}',
    "a call": '"call":{"arguments":{"x":-Infinity}}',
    "tools": '"tools":[{"x":NaN}]',
    "a reward that cannot be added up": '"reward":1e308',
    "a score term": '"score_terms":{"x":-1e300}',
    "a log-prob that is none": '"logprobs":"AACAfw=="',
    "a log-prob above 0": '"logprobs":"AACAPw=="',
    "more metrics than anyone has": f'"metrics":{json.dumps({str(n): 1.0 for n in range(1_001)})}',
}


@pytest.mark.parametrize("what", NONSENSE)
def test_numbers_that_are_not_finite_are_refused_everywhere(what: str) -> None:
    result = played({"seed": 1, "lease": "l", "token": "t"})
    whole = json.dumps(result, separators=(",", ":"))
    assert read_message(FROM_CLIENT, whole)
    name = NONSENSE[what].split(":")[0]
    start = whole.rindex(f"{name}:")
    old = json.dumps(json.JSONDecoder().raw_decode(whole, start + len(name) + 1)[0], separators=(",", ":"))
    with pytest.raises(MessageError):
        read_message(FROM_CLIENT, whole.replace(f"{name}:{old}", NONSENSE[what]))


def test_bounds_of_episodes() -> None:
    def check(one: Episode, *limits: int | None) -> str | None:
        return episode_error(one, "made/Env-v0", limits[0] or 0, limits[1])

    fine = episode(task())  # its tokens are 1 to 5
    assert check(fine, 6, 5) is check(fine, 6, None) is None
    assert "the token 5" in str(check(fine, 5, 5))
    assert "the context holds 4" in str(check(fine, 6, 4))
    prompt = dataclasses.replace(fine, histories=(TokenHistory((Span((9,), None),)),))
    assert "the token 9" in str(check(prompt, 6, None))
    broken = TokenHistory((Span((), None), Span((1,), 1, (-0.5,))))
    for ending, valid in ((Ending.ENV_ERROR, True), (Ending.TERMINATED, False)):
        odd = Episode("made/Env-v0", "t", 1, "o", (Turn("a", "b", 0.0),), (broken,), ending)
        assert (check(odd, 8, None) is None) == valid, "an environment may break after the reply"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def test_a_run_in_use_by_another_server_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("env: toy/Guess-v0\nlearning_rate: 0.001\n")
    with closing(ResultLog(tmp_path / "journal")) as log:
        log.append([Entry(task(), 0, 0, episode(task()))])
        before = contents(tmp_path)
        flags = {"env": "toy/Guess-v0", "learning_rate": 1.0}
        for step in (None, 1):
            settings = gather_settings(flags, overrides={}, resume=tmp_path, resume_step=step)
            with pytest.raises(ResultLogError, match="in use"):
                serve(settings, port=0, no_api=True, no_dashboard=True)
            assert contents(tmp_path) == before


def test_a_server_does_not_begin_with_another_runs_results(tmp_path: Path) -> None:
    policy, config = guess_policy(0, hidden=16), GRPOConfig(output_dir=str(tmp_path))
    with closing(ResultLog(tmp_path / "journal")) as log:
        log.bind_to_run(run_spec(policy, "guess", {}, config))
        log.append([Entry(task(), 0, 0, episode(task()))])
    RemoteBackend(policy, "guess", {}, config, tmp_path).close()
    with pytest.raises(ResultLogError, match="there env is 'guess', in this run 'other'"):
        RemoteBackend(policy, "other", {}, config, tmp_path)
    ResultLog(tmp_path / "journal").close()


def test_a_worker_samples_as_the_trainer_does() -> None:
    policy = guess_policy(0)
    policy.sampling = dataclasses.replace(policy.sampling, stop_token_ids=(3, 5))
    config = GRPOConfig(
        temperature=0.7, top_p=0.9, top_k=7, min_p=0.05, repetition_penalty=1.2, stop_strings=("HIGH",),
        max_completion_length=9,
    )  # fmt: skip
    GRPOTrainer(policy, "art/2048-v0", config).close()
    sent = run_spec(policy, "art/2048-v0", {"board_size": 3}, config)
    got = RunSpec.model_validate_json(sent.model_dump_json())
    assert make_policy(policy.model, policy.tokenizer, got, 4).sampling == policy.sampling
    assert policy.sampling.stop_token_ids == (3, 5)


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[RemoteBackend]:
    policy = guess_policy(0, hidden=16)
    backend = RemoteBackend(policy, "guess", {}, GRPOConfig(output_dir=str(tmp_path)), tmp_path)
    backend.publish(policy.version)
    yield backend
    backend.close()


def test_collect_fails_if_the_servers_thread_has_ended(backend: RemoteBackend) -> None:
    backend.server._thread._server.should_exit = True
    with pytest.raises(EngineError, match=r"has stopped \(its thread has ended\): resume the run"):
        backend.collect([task(0)], on_episode=lambda episode: None)


def test_collect_fails_if_no_lease_expires(backend: RemoteBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend._queue, "expire", lambda: 1 / 0)
    with pytest.raises(EngineError, match=r"has stopped \(ZeroDivisionError: division by zero\)"):
        backend.collect([task(0)], on_episode=lambda episode: None)
