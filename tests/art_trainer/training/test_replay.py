"""A run's updates, done again from the disk, give the numbers it logged; a change in the records does not."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model

from art_trainer.config import GRPOConfig
from art_trainer.errors import RecordError, ReplayError
from art_trainer.inference.transformers_policy import TransformersPolicy
from art_trainer.models.weights_io import weights_digest
from art_trainer.tracking.episode_store import FILE
from art_trainer.tracking.frame_file import append_frame, read_frames
from art_trainer.tracking.run_dir import RunFolder, checkpoint_path, list_checkpoints
from art_trainer.training.replay import replay
from art_trainer.training.trainer import GRPOTrainer
from tests.art_trainer.guess import GuessEnv, guess_policy
from tests.art_trainer.training.test_trainer import Doomed

KINDS: dict[str, dict[str, Any]] = {
    "grpo": {},
    "gigpo": {"advantage_estimator": "gigpo", "step_states": "observation"},
    "gae": {"advantage_estimator": "gae", "scale_rewards": "batch"},
    "with a reference": {"beta": 0.05},
    "two passes": {"num_iterations": 2, "steps_per_generation": 3},
    "filtered sampling": {"top_k": 5},
    "dynamic sampling": {
        "dynamic_sampling": True, "max_resampled_groups": 4, "drop_zero_variance_groups": True,
        "make_env": lambda: Doomed(GuessEnv()), "seed": 3,
    },
    "lora": {"lora": True, "beta": 0.05},
}  # fmt: skip


SETTINGS: dict[str, Any] = {
    "learning_rate": 2e-3,
    "groups_per_step": 3,
    "num_generations": 4,
    "max_completion_length": 1,
    "drop_zero_variance_groups": False,
    "entropy_coef": 0.01,
}


def policy_of(lora: bool = False, seed: int = 0) -> TransformersPolicy:
    """The policy that runs begin with."""
    policy = guess_policy(seed, hidden=16)
    if lora:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = get_peft_model(
                policy.model, LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
            )
        return TransformersPolicy(model, policy.tokenizer, sampling=policy.sampling)
    return policy


def builder(lora: bool = False) -> Callable[[Path | None], torch.nn.Module]:
    """What makes the model of such a run, as it began; a checkpoint's weights are loaded into it."""
    return lambda checkpoint: policy_of(lora).model


def record_run(
    folder: Path,
    steps: int = 3,
    *,
    save_at: tuple[int, ...] = (),
    lora: bool = False,
    resume: bool = False,
    limit: int | None = None,
    make_env: Any = GuessEnv,
    **settings: Any,
) -> GRPOTrainer:
    """Train for some steps, or go on from the newest checkpoint; write what the trainer writes."""
    config = GRPOConfig(output_dir=str(folder), **{**SETTINGS, "max_steps": 10, **settings})
    trainer = GRPOTrainer(policy_of(lora), make_env, config)
    if resume:
        trainer.load_checkpoint(list_checkpoints(folder / "checkpoints")[-1])
    log = RunFolder(folder)
    log.begin(config.to_mapping(), trainer.step, weights_digest(trainer.policy.model))
    while trainer.step < steps:
        groups = trainer.collect_episodes()
        replaced = list(trainer._replaced)
        metrics = trainer.update_policy(groups)
        log.write_metrics(metrics)
        log.write_episodes(trainer.step, groups, limit, replaced)
        if trainer.step in save_at:
            log.sync()
            trainer.save_checkpoint(checkpoint_path(log.checkpoints, trainer.step))
    trainer.close()
    return trainer


def rewrite(file: Path, step: int, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a step's first line and write the file anew, with digests that fit: a careful forgery."""
    frames = [(dict(frame.header), [line.decode() for line in frame.lines()]) for frame in read_frames(file)]
    file.unlink()
    for header, lines in frames:
        if header.get("step") == step:
            data = json.loads(lines[0])
            change(data)
            lines[0] = json.dumps(data)
        append_frame(file, header, lines)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_the_numbers_are_those_logged(kind: str, tmp_path: Path) -> None:
    settings = KINDS[kind]
    trainer = record_run(tmp_path, 3, save_at=(2,), **settings)
    build = builder(lora=settings.get("lora", False))
    steps = []
    early = replay(tmp_path, 2, build=build, on_step=steps.append)
    assert early.start is None
    assert [done.step for done in steps] == [1, 2]
    late = replay(tmp_path, 3, build=build)
    assert late.start == checkpoint_path(tmp_path / "checkpoints", 2)
    for result in (early, late):
        assert result.equal, [done.differences for done in result.steps]
        logged = {number.name: number.logged for number in result.steps[-1].numbers}
        assert {"loss", "policy_loss", "kl", "entropy", "reward", "learning_rate"} <= logged.keys()
        assert logged["grad_norm"] > 0
    assert late.weights == weights_digest(trainer.policy.model)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    record_run(folder, 3)
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A run of three steps without checkpoints, to spoil."""
    for name in (FILE, "metrics.jsonl", "run.yaml"):
        (tmp_path / name).write_bytes((finished / name).read_bytes())
    return tmp_path


def _sampled(line: dict[str, Any]) -> dict[str, Any]:
    return next(span for span in line["histories"][0] if span["turn"] is not None)


def _other_token(line: dict[str, Any]) -> None:
    _sampled(line)["tokens"][0] ^= 1


def _one_bit_of_a_log_prob(line: dict[str, Any]) -> None:
    span = _sampled(line)
    values = np.frombuffer(base64.b64decode(span["logprobs"]), "<u4").copy()
    values[0] ^= 1 << 12
    span["logprobs"] = base64.b64encode(values.tobytes()).decode()


def _other_reward(line: dict[str, Any]) -> None:
    line["turns"][-1]["reward"] += 0.25


@pytest.mark.parametrize("change", [_other_token, _one_bit_of_a_log_prob, _other_reward])
def test_a_careful_forgery_shows_in_the_loss_of_its_step(change: Any, run: Path) -> None:
    rewrite(run / FILE, 2, change)
    result = replay(run, 3, build=builder())
    assert not result.equal
    different = [done.step for done in result.steps if done.differences]
    assert different[0] == 2
    assert {"loss", "grad_norm", "kl"} & {number.name for number in result.steps[1].differences}


def test_a_careless_one_is_refused_and_its_step_named(run: Path) -> None:
    frame = next(frame for frame in read_frames(run / FILE) if frame.header.get("step") == 2)
    data = bytearray((run / FILE).read_bytes())
    data[frame.end - 20] ^= 1
    (run / FILE).write_bytes(bytes(data))
    with pytest.raises(RecordError, match=r"episodes.jsonl.zst, step 2 at byte \d+ is damaged: its sha256"):
        replay(run, 3, build=builder())
    assert replay(run, 1, build=builder()).equal


def test_a_changed_log_shows_as_well_and_a_tolerance_forgives_the_last_digits(run: Path) -> None:
    first, rest = (run / "metrics.jsonl").read_text().split("\n", 1)
    line = json.loads(first)
    line["loss"] *= 1 + 1e-9
    (run / "metrics.jsonl").write_text(f"{json.dumps(line)}\n{rest}")
    (number,) = replay(run, 1, build=builder()).steps[0].differences
    assert number.name == "loss"
    assert replay(run, 1, build=builder(), tolerance=1e-6).equal


def test_another_start_is_noticed_before_anything_is_computed(run: Path) -> None:
    with pytest.raises(ReplayError, match="the model that the run began with cannot be made again"):
        replay(run, 1, build=lambda checkpoint: policy_of(seed=1).model)


def test_each_step_is_done_with_the_settings_of_its_time(tmp_path: Path) -> None:
    settings = {"beta": 0.05, "advantage_estimator": "gae"}
    record_run(tmp_path, 2, save_at=(2,), **settings)
    record_run(tmp_path, 4, resume=True, learning_rate=5e-3, entropy_coef=0.0, max_steps=20, **settings)
    (tmp_path / "checkpoints" / "step-000002").rename(tmp_path / "elsewhere")
    result = replay(tmp_path, 4, build=builder())
    assert result.start is None
    assert result.equal, [done.differences for done in result.steps]
    rates = [
        next(number.replayed for number in done.numbers if number.name == "learning_rate")
        for done in result.steps
    ]
    assert rates == pytest.approx([2e-3, 2e-3 * 0.9, 5e-3 * 0.9, 5e-3 * 0.85])


def test_says_what_is_missing(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ReplayError, match="no line of step 7 to compare with: it has 3 steps, up to 3"):
        replay(run, 7, build=builder())
    with pytest.raises(ReplayError, match="has no recorded settings"):
        replay(tmp_path / "nowhere", 1, build=builder())
    part = tmp_path / "part"
    record_run(part, 1, limit=2)
    with pytest.raises(ReplayError, match="kept only a part of the episodes of step 1"):
        replay(part, 1, build=builder())


def test_the_digest_of_weights_depends_on_every_bit_and_type() -> None:
    def digest(*changes: Any) -> str:
        model = torch.nn.Linear(3, 2)
        for parameter in model.parameters():
            torch.nn.init.constant_(parameter, 0.5)
        for change in changes:
            change(model)
        return weights_digest(model)

    def one_bit(model: torch.nn.Linear) -> None:
        model.weight.data[1, 2] = np.nextafter(np.float32(0.5), np.float32(1)).item()

    assert digest() == digest()
    assert len({digest(), digest(one_bit), digest(lambda m: m.double()), digest(lambda m: m.bfloat16())}) == 4
