"""What a run's settings name: its model, its warm start, the reward of training.

The command line and benchmarks make them with the same functions.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
import shlex
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, PreTrainedTokenizerBase

from art_gym import catalog
from art_gym.errors import did_you_mean
from art_gym.wrappers.judging import (
    CLASSIC_RUBRIC,
    Judge,
    JudgeBudget,
    JudgingError,
    LLMJudge,
    Rubric,
    RubricJudge,
)
from art_gym.wrappers.judging.http_client import parse_openai
from art_trainer.errors import ConfigError, EngineError
from art_trainer.inference.engine_policy import EnginePolicy
from art_trainer.inference.engines.clients import VLLMEngine
from art_trainer.inference.sampling import SamplingParams
from art_trainer.inference.trainable_policy import TrainablePolicy
from art_trainer.inference.transformers_policy import TransformersPolicy
from art_trainer.models.chat_template import ChatFormat, context_limit
from art_trainer.models.known_models import KNOWN_MODELS, known_model_path
from art_trainer.models.loading import (
    ModelOptions,
    apply_model_options,
    default_threads,
    load_model,
    load_tokenizer,
    refuse_untrainable,
)
from art_trainer.models.memory import WorkSizes, usable_memory
from art_trainer.rollout.envs import MakeEnv, baseline_names, env_maker, find_env, player_names, train_split
from art_trainer.rollout.judge_rewards import ENV, JudgeRewards, RewardMix
from art_trainer.signals import Interruptible
from art_trainer.tracking.callbacks import TrainerCallback
from art_trainer.tracking.env_vars import env_var, load_env_vars
from art_trainer.tracking.loggers.base import LoggerCallback, RunInfo, make_logger
from art_trainer.tracking.loggers.redaction import without_secrets
from art_trainer.tracking.run_dir import RunFolder, private_folder
from art_trainer.training.checkpoint import (
    checkpoint_to_resume,
    read_warm_start,
    result_checkpoint,
    verify_checkpoint,
    write_warm_start,
)
from art_trainer.training.demonstrations import KEEP
from art_trainer.training.env_samples import episode_texts, repeats_state, sample_episodes
from art_trainer.training.memory_plan import (
    EpisodeShape,
    TrainingPlan,
    empty_model,
    episode_shape,
    plan_training,
)
from art_trainer.training.run_settings import AUTO, DEFAULT, SCRATCH, RunSettings, Settings, saved_settings
from art_trainer.training.scratch_model import ScratchSize, scratch_model, scratch_tokenizer
from art_trainer.training.self_play import game_maker
from art_trainer.training.sft import ImitationConfig, OnStep, imitate_until_valid, warm_start
from art_trainer.types import Episode

RUBRIC, RULER = "rubric", "ruler"
_log = logging.getLogger(__name__)


def find_checkpoint(settings: Settings) -> Path | None:
    """The checkpoint that a resumed run starts from, checked; ``None`` for a new run."""
    if settings.resume is None:
        return None
    found = checkpoint_to_resume(settings.folder.checkpoints, settings.resume_step)
    if found is not None:
        verify_checkpoint(found)
    return found


def local_policy(
    name: str,
    options: ModelOptions,
    *,
    sampling: SamplingParams,
    max_batch: int = 256,
    history_window: int | None = None,
    baselines: tuple[str, ...] = (),
) -> TransformersPolicy:
    """Load a model on this machine: from a folder, from Hugging Face, or one with a name of its own.

    Args:
        name: A name in :data:`.KNOWN_MODELS`, a folder, or a Hugging Face name.
        options: How it is loaded.
        sampling: How replies are sampled.
        max_batch: Largest number of conversations held at the same time.
        history_window: How many turns the model sees; ``None`` for all.
        baselines: Other names that were possible, for error messages.
    """
    path = model_path(name, baselines)
    # It would draw over what this command shows.
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        return TransformersPolicy(
            load_model(path, options),
            load_tokenizer(path),
            sampling=sampling,
            max_batch=max_batch,
            history_window=history_window,
            name=name,
        )
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"no policy {name!r}: no folder with a model, no baseline of the environment, and not found on "
            f"Hugging Face ({str(error).splitlines()[0]})"
        ) from error


def model_options(run: RunSettings) -> ModelOptions:
    """How a run's model is loaded; a ConfigError for settings that contradict each other."""
    for name in ("lora", "load_in_4bit"):
        if run.model == SCRATCH and getattr(run, name):
            raise ConfigError(
                f"{name} is set, but a scratch model's weights are random, not worth freezing: leave it out"
            )
    return ModelOptions(run.dtype, run.lora, run.load_in_4bit, run.gradient_checkpointing, run.device)


def model_path(name: str, baselines: tuple[str, ...] = ()) -> str:
    """What Transformers loads: of a run the latest checkpoint, of a checkpoint the model in it.

    Raises:
        ConfigError: For a folder that does not exist, a run without a checkpoint, or a near miss of a known
            model or a baseline.
        ModelFetchError: If a known model cannot be fetched or kept.
        CheckpointError: If a file of a checkpoint's model is damaged or missing.
    """
    if name in KNOWN_MODELS:
        return known_model_path(name)
    path = Path(name)
    if not path.exists():
        _refuse_typos(name, (*KNOWN_MODELS, *baselines))
    run = RunFolder(path)
    path = result_checkpoint(run.checkpoints) or path
    if path == run.path and run.holds_run:
        raise ConfigError(
            f"the run {name} has no checkpoint yet: resume it with --resume {shlex.quote(name)}"
        )
    if not (path / "model").is_dir():
        return name
    if (path / "manifest.json").exists():
        verify_checkpoint(path, "model/")
    return str(path / "model")


def _refuse_typos(name: str, known: tuple[str, ...]) -> None:
    """Refuse what can be no name on the Hub, before it is asked."""
    path = Path(name)
    in_folder = path.parent != Path(".") and path.parent.is_dir()
    # The Hub's names have two parts; what lies in runs/ is a run, here or on another machine.
    no_hub_name = len(path.parts) > 2 or path.parts[0] == "runs" or name.startswith((".", "~"))
    if in_folder or path.is_absolute() or no_hub_name:
        raise ConfigError(f"no model at {name!r}: there is no such folder")
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.75)
    if near:
        raise ConfigError(f"no policy {name!r}; did you mean `{near[0]}`?")


# ----------------------------------------------------------------------
# The policy that a run starts from: loaded or made from scratch, then warmed up if the settings say so.


def prepare_policy(
    settings: Settings, texts: Callable[[], Sequence[str]], *, checkpoint: Path | None
) -> TransformersPolicy:
    """Load the model, or make it with a vocabulary from ``texts``.

    A resumed run starts from its checkpoint; of a model from scratch that is the only copy.
    """
    run, config = settings.run, settings.config
    options = model_options(run)
    torch.manual_seed(config.seed)  # a new LoRA adapter starts from torch's generator
    kept = {"max_batch": run.max_batch, "history_window": run.history_window}
    play: dict[str, Any] = {"sampling": SamplingParams.for_training(config), **kept}
    if run.model == SCRATCH and checkpoint is None:
        model, tokenizer = scratch_model(texts(), size=ScratchSize(**run.scratch), seed=config.seed)
        policy = TransformersPolicy(apply_model_options(model, options), tokenizer, name=SCRATCH, **play)
    else:
        name = run.model if checkpoint is None or run.model != SCRATCH else str(checkpoint)
        refuse_untrainable(model_path(name, (SCRATCH,)), options)
        policy = local_policy(name, options, **play)
    weights = sum(parameter.numel() for parameter in policy.model.parameters())
    torch.set_num_threads(run.threads or default_threads(weights))
    return policy


def fit_to_device(
    settings: Settings, model: torch.nn.Module, form: ChatFormat, make_env: MakeEnv
) -> Settings:
    """Set ``max_batch`` and ``tokens_per_microbatch``, where nobody has, to what the device has memory for.

    Args:
        settings: All settings.
        model: The model, loaded on its device.
        form: Its chat format, which tells how long contexts get.
        make_env: Makes the environment, in which a few episodes are played if memory is not plenty.
    """
    device = next(model.parameters()).device
    settings = sized_for(settings, device)
    run, config = settings.run, settings.config
    base: Any = getattr(model, "get_base_model", lambda: model)()
    options = replace(model_options(run), dtype=str(base.dtype).removeprefix("torch."))
    empty = empty_model(base.config, options)

    def plan_for(shape: EpisodeShape) -> TrainingPlan:
        return plan_training(empty, config, options, shape, max_batch=run.max_batch)

    plan = plan_for(EpisodeShape(context_limit(base) or 2**20, 0, 1))
    free = usable_memory(device) + plan.size("weights")
    if plan.total <= free:
        return settings
    split = train_split(make_env, config.train_split)
    shape = episode_shape(form, make_env, split=split, seed=config.seed)
    plan = plan_for(shape)
    rows, tokens = plan.fitted(free)
    if rows < plan.rows and settings.sources["max_batch"] == DEFAULT:
        run = replace(run, max_batch=rows)
        _log.info("max_batch is %d, for the free memory of %s", rows, device)
    if tokens < plan.tokens and settings.sources["tokens_per_microbatch"] == DEFAULT:
        config = replace(config, tokens_per_microbatch=tokens)
        _log.info("tokens_per_microbatch is %d, for the free memory of %s", tokens, device)
    if plan_for(shape).total > free:
        sizes = plan.smallest / 2**30, device, free / 2**30
        _log.warning("A run of at least %.1f GiB on %s, which has %.1f: it may run out of memory", *sizes)
    return replace(settings, run=run, config=config)


def sized_for(settings: Settings, device: torch.device) -> Settings:
    """Return the settings with the micro-batches that suit a device, unless somebody has set them."""
    if settings.sources["tokens_per_microbatch"] != DEFAULT:
        return settings
    tokens = WorkSizes.of(device).microbatch_tokens
    return replace(settings, config=replace(settings.config, tokens_per_microbatch=tokens))


def check_players(run: RunSettings, make_env: MakeEnv) -> None:
    """Raise a ConfigError for a baseline or warm start that the environment does not have or cannot give."""
    wanted = [] if run.warm_start in (None, AUTO) else [run.warm_start]
    for setting, names, known in (
        ("baselines", run.baselines or (), baseline_names(make_env)),
        ("warm_start", wanted, player_names(make_env)),
    ):
        for name in names:
            if name not in known:
                near = did_you_mean(name, known)
                raise ConfigError(f"{setting}: the environment has no player `{name}`{near}")
    if wanted and run.warm_start_rounds > 1 and run.warm_start_keep != "all":
        kept = f"warm_start_rounds is {run.warm_start_rounds}, warm_start_keep {run.warm_start_keep}"
        raise ConfigError(f"{kept}: from the second round on all is imitated; set all, or 1 round")


def imitation_config(settings: Settings) -> ImitationConfig:
    """The settings of the warm start's training."""
    run, most = settings.run, settings.config.tokens_per_microbatch
    return ImitationConfig(
        tokens_per_microbatch=min(most, ImitationConfig().tokens_per_microbatch),
        epochs=run.warm_start_epochs,
        batch_size=run.warm_start_batch_size,
        learning_rate=run.warm_start_learning_rate,
    )


def warm_up(
    policy: TransformersPolicy, settings: Settings, make_env: MakeEnv, on_step: OnStep | None = None
) -> None:
    """Imitate the scripted policy that the settings name, or until replies are valid.

    The weights are kept after each round, and a resumed run continues from there.
    """
    run, config, kept = settings.run, settings.config, settings.folder.warm_start
    assert run.warm_start is not None
    split = train_split(make_env, config.train_split)
    policy.version = done = read_warm_start(kept, policy.model)
    if done:
        _log.info("Resuming the warm start after round %d.", done)

    def keep_weights(rounds: int) -> None:
        with Interruptible() as interruptible, interruptible.defer_sigint():
            write_warm_start(kept, policy.model, policy.tokenizer, rounds)

    if run.warm_start == AUTO:
        if done:
            return
        names = demonstrators(run, make_env)
        if not names:
            _log.info("no warm start: the environment has no scripted policy to imitate")
            return
        found = imitate_until_valid(
            policy,
            make_env,
            names,
            seed=config.seed,
            split=split,
            config=imitation_config(settings),
            on_step=on_step,
        )
        _log.info(
            "warm start: %.0f%% of the replies are valid calls, after the best %d of %d episodes of %s",
            *(100 * found.valid, found.imitated, found.played, " and ".join(names)),
        )
        keep_weights(1)
        return
    warm_start(
        policy,
        make_env,
        run.warm_start,
        episodes=run.warm_start_episodes,
        rounds=run.warm_start_rounds,
        noise=run.warm_start_noise,
        keep=KEEP[run.warm_start_keep],
        split=split,
        seed=config.seed,
        config=imitation_config(settings),
        on_step=on_step,
        done=done,
        on_round=keep_weights,
    )


def demonstrators(run: RunSettings, make_env: MakeEnv) -> tuple[str, ...]:
    """The scripted policies that a model of random weights takes its vocabulary from, and imitates.

    One that searches for seconds a move can be left out with the setting ``baselines``.
    """
    if run.warm_start not in (None, AUTO):
        return (run.warm_start,)
    return run.baselines or player_names(make_env)


def env_episodes(settings: Settings, make_env: MakeEnv) -> list[Episode]:
    """Some episodes of the environment's scripted policies, on the training tasks."""
    run, config = settings.run, settings.config
    split = train_split(make_env, config.train_split)
    return sample_episodes(make_env, demonstrators(run, make_env), split=split, seed=config.seed)


def env_texts(settings: Settings, make_env: MakeEnv) -> list[str]:
    """What an environment and its scripted policies say."""
    return [text for episode in env_episodes(settings, make_env) for text in episode_texts(episode)]


# A rough measure of what an episode costs, in tokens read: a sampled token counts as five, and a turn as nine
# more. If the longest costs more than ``_LONG``, a step has fewer groups, half of them at least.
_SAMPLED, _TURN, _LONG = 5, 9, 240


def fit_to_env(settings: Settings) -> Settings:
    """Choose what nobody set for a model of random weights: length of replies, groups, history window."""
    run, config = settings.run, settings.config
    if run.model != SCRATCH or settings.resume is not None:
        return settings
    left = [name for name, source in settings.sources.items() if source in (DEFAULT, f"default of {SCRATCH}")]
    episodes = env_episodes(settings, env_maker(run.env, run.env_args))
    replies = {turn.reply for episode in episodes for turn in episode.turns}
    if not replies:  # no scripted policy, or none of that name, which the run refuses
        return settings
    size = ScratchSize(**run.scratch)
    texts = [text for episode in episodes for text in episode_texts(episode)]
    tokenizer = scratch_tokenizer(texts, vocabulary_size=size.vocabulary_size)
    tokens = {text: len(ids) for text, ids in zip(texts, tokenizer(texts)["input_ids"], strict=True)}
    if "max_completion_length" in left:
        config = replace(config, max_completion_length=max(map(tokens.__getitem__, replies)) + 2)
    if "groups_per_step" in left:
        longest = max(
            sum(_SAMPLED * tokens[turn.reply] + tokens[turn.observation] + _TURN for turn in episode.turns)
            for episode in episodes
        )
        share = max(0.5, min(1.0, _LONG / longest))
        parts = config.steps_per_generation
        config = replace(
            config, groups_per_step=max(parts, int(share * config.groups_per_step) // parts * parts)
        )
    if "history_window" in left and repeats_state(episodes):
        run = replace(run, history_window=1)
    return replace(settings, run=run, config=config)


# ----------------------------------------------------------------------
# The training reward.


def reward_model(run: RunSettings, folder: Path) -> JudgeRewards | None:
    """The judges of a run's training reward; ``None`` for the environment's own reward.

    A judge model's answers are kept in the run's folder, so that a resumed run does not ask again.
    """
    mix = RewardMix.parse(run.reward, (RUBRIC, RULER))
    if mix.weights == {ENV: 1.0}:
        return None
    judges: dict[str, Judge] = {}
    try:
        rubric = Rubric.of(run.rubric) if run.rubric else None
        if RUBRIC in mix.judges:
            judges[RUBRIC] = RubricJudge(rubric or CLASSIC_RUBRIC)
        if RULER in mix.judges:
            judges[RULER] = _ruler(run, rubric, folder)
    except (JudgingError, TypeError) as error:
        raise ConfigError(f"reward {run.reward!r}: {error}") from error
    return JudgeRewards(mix, judges)


def _ruler(run: RunSettings, rubric: Rubric | None, folder: Path) -> Judge:
    if run.judge is None:
        raise ConfigError(
            "the reward `ruler` needs a judge model: --judge openai:MODEL@URL, as in "
            "--judge openai:qwen3@http://localhost:8000/v1"
        )
    private_folder(folder)
    given = {"cache": folder / "judge_cache.sqlite", **({} if rubric is None else {"rubric": rubric})}
    return llm_judge(run.judge, **{**given, **run.judge_args})


def llm_judge(name: str, **arguments: Any) -> LLMJudge:
    """The judge model that ``openai:MODEL@URL`` names; its key comes from ``OPENAI_API_KEY``.

    Args:
        name: The model.
        arguments: Other arguments of :class:`~art_gym.wrappers.judging.llm_judge.LLMJudge`; the budget may be
            a mapping.
    """
    model, url = parse_openai(name)
    if isinstance(arguments.get("budget"), dict):
        arguments["budget"] = JudgeBudget(**arguments["budget"])
    try:
        return LLMJudge(model, url, **{"api_key": env_var("OPENAI_API_KEY"), **arguments})
    except ImportError as error:
        raise ConfigError(f'{name} needs the package openai: pip install "art-gym[openai]"') from error


# ----------------------------------------------------------------------
# The engine that samples, the loggers, the environment's instructions, the model without weights.

_SERVED = re.compile(r"vllm[:@](?:(?P<model>(?!https?://).+?)@)?(?P<url>https?://.+)")


def with_engine(policy: TransformersPolicy, run: RunSettings) -> TrainablePolicy:
    """The policy that samples in training: the model itself, or the engine that the settings name.

    Raises:
        ConfigError: If the engine does not answer, or cannot take the weights that are trained.
    """
    if run.engine is None:
        return policy
    if run.model == SCRATCH:
        raise ConfigError("engine is set, but no engine serves a scratch model's weights: leave it out")
    engine = connect_engine(run.engine, f"engine is {run.engine!r}: write vllm@URL")
    try:
        return EnginePolicy(
            engine,
            policy.model,
            policy.tokenizer,
            sampling=policy.sampling,
            history_window=policy.format.history_window,
            weights_dir=run.engine_weights_dir,
            name=f"{policy.name} on {run.engine}",
        )
    except EngineError as error:
        raise ConfigError(f"engine: {error}") from error


def connect_engine(name: str, refusal: str) -> VLLMEngine:
    """The engine that ``vllm:MODEL@URL`` or ``vllm@URL`` names; a ConfigError if it names none."""
    match = _SERVED.fullmatch(name)
    if match is None:
        raise ConfigError(f"{refusal}, with a URL such as http://localhost:8000")
    return VLLMEngine(match["url"], match["model"], api_key=env_var("VLLM_API_KEY"))


def make_loggers(settings: Settings) -> list[TrainerCallback]:
    """The callback of the loggers that ``log`` names; empty if it names none."""
    if not settings.run.log:
        return []
    # Their libraries look for keys and addresses in the environment; here those of `.env` join it.
    known = load_env_vars().values
    os.environ.update({name: known[name] for name in known if name.startswith("WANDB_")})
    run = RunInfo(settings.folder.path, without_secrets(settings.to_mapping()))
    return [LoggerCallback(run, [make_logger(name, run) for name in settings.run.log])]


def system_messages(folder: RunFolder) -> list[str]:
    """The system messages of a run's environment or a game's seats; none without settings of either."""
    if not folder.settings().get("env"):
        return []
    run = saved_settings(folder).run
    if find_env(run.env).id in catalog.games():
        with closing(game_maker(run.env, **run.all_env_args)()) as game:
            game.reset(seed=0)
            infos = list(game.infos.values())
    else:
        with closing(env_maker(run.env, run.all_env_args)()) as env:
            infos = [env.reset(seed=0)[1]]
    return [str(info["system"]) for info in infos if info.get("system")]


def empty_run_model(
    settings: Settings, options: ModelOptions, make_env: MakeEnv
) -> tuple[torch.nn.Module, PreTrainedTokenizerBase]:
    """The model without weights, and its tokenizer."""
    run = settings.run
    if run.model == SCRATCH:
        with torch.device("meta"):
            made, tokenizer = scratch_model(env_texts(settings, make_env), size=ScratchSize(**run.scratch))
        return empty_model(made.config, options), tokenizer
    path = model_path(run.model, (SCRATCH,))
    if (Path(path) / "adapter_config.json").exists():
        raise ConfigError(f"{path} is an adapter: give --model the model below it, and --lora its rank")
    refuse_untrainable(path, options)
    try:
        loaded = load_tokenizer(path)
        return empty_model(AutoConfig.from_pretrained(path), options), loaded
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"no configuration of {run.model!r} here or on Hugging Face ({str(error).splitlines()[0]})"
        ) from error
