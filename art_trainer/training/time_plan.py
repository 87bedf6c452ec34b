"""Estimate how long a run takes: the tokens that it samples, reads and learns from, times seconds a token.

Seconds a token are measured on this machine with random weights of the model's shapes, or computed for a GPU
by its data sheet. How long episodes get is not known before: there is an estimate for short and for the
longest ones. Tokens, and seconds a token, are arrays of three: sampled (with as many conversations at a time
as there will be), read in rollouts, learned from.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from art_gym.errors import did_you_mean
from art_trainer.config import GRPOConfig
from art_trainer.errors import ConfigError
from art_trainer.inference.generation import TokenSequence, sampling_mode
from art_trainer.inference.sampling import SamplingParams
from art_trainer.inference.slot_decoder import SlotDecoder
from art_trainer.models.loading import ModelOptions, apply_model_options
from art_trainer.models.lora import base_model
from art_trainer.models.memory import WorkSizes
from art_trainer.training.learner import Learner
from art_trainer.training.memory_plan import (
    EpisodeShape,
    TrainingPlan,
    cache_bytes_per_token,
    text_config,
)
from art_trainer.training.run_settings import AUTO, SCRATCH, Settings
from art_trainer.types import Ending, Episode, Group, Span, TokenHistory, Turn


def run_tokens(settings: Settings, plan: TrainingPlan, shape: EpisodeShape, *, longest: bool) -> np.ndarray:
    """Count the tokens of a run's training, evaluations and warm start; a group's prompt counts once.

    With ``longest`` all episodes are as long as they can be, and dynamic sampling replaces as many groups as
    it may; else all are like the shortest that were played.
    """
    run, config = settings.run, settings.config
    turns, reply, later = _lengths(shape, config, longest=longest)

    def played(episodes: int, prompts: int) -> np.ndarray:
        seen = prompts * shape.prompt + episodes * (turns - 1) * (shape.prompt if shape.windowed else later)
        return np.array([episodes * turns * reply, seen, 0])

    size, groups = config.num_generations, config.groups_per_step
    learned = played(size * groups, groups if plan.shares_prefixes else size * groups).sum()
    groups += config.resampling_budget if longest else 0
    step = played(size * groups, groups) + np.array([0, 0, learned])
    evaluations = 2 + (config.max_steps // config.eval_steps + 1 if config.eval_steps else 0)
    evaluations += run.warm_start is not None and run.model != SCRATCH
    found: np.ndarray = (
        step * config.max_steps + played(config.eval_episodes, config.eval_episodes) * evaluations
    )
    # How many of a noisy player's episodes succeed is not known before.
    if run.warm_start not in (None, AUTO) and (longest or run.warm_start_keep == "all"):
        shown = played(run.warm_start_episodes, run.warm_start_episodes)
        found += shown * (run.warm_start_rounds - 1)
        found[2] += shown.sum() * run.warm_start_epochs * run.warm_start_rounds
    return found


def _lengths(shape: EpisodeShape, config: GRPOConfig, *, longest: bool) -> tuple[int, int, int]:
    """Turns of an episode, tokens of a reply, and of each observation after the first."""
    if longest:
        return shape.turns, config.max_completion_length, shape.observation
    return shape.fewest_turns, min(shape.reply, config.max_completion_length), shape.short_observation


# ----------------------------------------------------------------------
# Measured on this machine.

_SMALL, _SECONDS, _STEPS = 2**25, 1.0, 4
"""A model of so many weights is measured whole; a measurement is repeated for so long; decode steps."""


def measured_seconds(
    model: nn.Module, config: GRPOConfig, options: ModelOptions, shape: EpisodeShape, plan: TrainingPlan
) -> np.ndarray:
    """Measure reading, decode steps and an optimizer step; arguments as of ``plan_training``.

    Returns [2, 3]: a row in contexts of the shortest episodes, and one of the longest.
    """
    layers = int(text_config(model).num_hidden_layers)
    counts = (layers,) if plan.parameters <= _SMALL or layers <= 3 else (1, 3)
    found = []
    for count in counts:
        made = _random_model(model, options, count)
        rows = [_seconds_a_token(made, config, shape, plan, longest=longest) for longest in (False, True)]
        found.append(np.array(rows))
    whole: np.ndarray = found[0] + (layers - 1) * np.maximum(0, found[-1] - found[0]) / 2
    return whole


def _random_model(model: nn.Module, options: ModelOptions, layers: int) -> nn.Module:
    """The model with so many layers, of random weights, on its device."""
    config = copy.deepcopy(base_model(model).config)
    text = config.get_text_config(decoder=True)
    text.num_hidden_layers = layers
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[:layers]
    make: Any = AutoModelForCausalLM
    with options.torch_device:
        made = make.from_config(config, dtype=next(base_model(model).parameters()).dtype)
    return apply_model_options(made, options)


def _seconds_a_token(
    model: nn.Module, config: GRPOConfig, shape: EpisodeShape, plan: TrainingPlan, *, longest: bool
) -> np.ndarray:
    """Seconds to sample, to read and to learn from a token, [3]."""
    rng, device = np.random.default_rng(0), next(model.parameters()).device
    most = WorkSizes.of(device).read_tokens
    turns, reply, later = _lengths(shape, config, longest=longest)
    grown = 0 if shape.windowed else (turns - 1) * (reply + later)
    # On average an episode is half as long as it gets.
    length = max(1, min(shape.prompt + grown // 2, plan.context, most))
    prompts = max(1, min(plan.rows // config.num_generations, most // length))
    tokens = rng.integers(0, text_config(model).vocab_size, (prompts, length)).tolist()
    places = range(plan.rows)
    decoder = SlotDecoder(model, SamplingParams.for_training(config), read_tokens=most)
    draws = rng.random(64 * _STEPS, np.float32)
    sequences: list[TokenSequence] = []

    def read() -> None:
        for sequence in sequences:
            decoder.free(sequence)
        sequences[:] = [TokenSequence(list(tokens[n % prompts]), n % prompts, draws) for n in places]
        decoder.start(sequences)

    def sample() -> None:
        for _ in range(_STEPS):
            decoder.step(sequences)

    with sampling_mode(model):
        reading = _fastest(read, device)
        sampling = _fastest(sample, device)
    learner = Learner(model, replace(config, steps_per_generation=1))
    sizes = 1 if shape.windowed else turns, reply, later
    vocabulary = int(text_config(model).vocab_size)
    make_up = partial(_made_up_group, sizes, config, shape, plan, vocabulary, rng)
    group, trained = make_up()
    # An optimizer step, or some micro-batches of one: what a step costs once is shared by its tokens.
    # With a history window a turn has a context of its own, and the made-up group has one turn.
    whole = config.groups_per_step * (turns if shape.windowed else 1) // config.steps_per_generation
    count = max(1, min(whole, 4 * plan.tokens // trained))
    groups = [group, *(make_up()[0] for _ in range(count - 1))]
    learning = _fastest(lambda: learner.update(groups), device)
    return np.array(
        [sampling / (_STEPS * plan.rows), reading / (prompts * length), learning / (count * trained)]
    )


def _fastest(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of the fastest of at most four calls, the first not counted if there are others."""
    seconds: list[float] = []
    while not seconds or (len(seconds) < 4 and sum(seconds) < _SECONDS):
        start = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:] or seconds)


def _made_up_group(
    sizes: tuple[int, int, int],
    config: GRPOConfig,
    shape: EpisodeShape,
    plan: TrainingPlan,
    vocabulary: int,
    rng: np.random.Generator,
) -> tuple[Group, int]:
    """Attempts at one task that fill a micro-batch, and the tokens that are learned from."""
    turns, reply, later = sizes
    room = max(reply, plan.tokens - shape.prompt) // 2
    turns = max(1, min(turns, room // (reply + later)))
    own = turns * reply + (turns - 1) * later
    attempts = max(2, min(config.num_generations, (plan.tokens - shape.prompt) // own))

    def some(count: int) -> tuple[int, ...]:
        return tuple(rng.integers(0, vocabulary, count).tolist())

    prompt, logprobs = some(shape.prompt), (-float(np.log(vocabulary)),) * reply
    episodes = []
    for number in range(attempts):
        spans = []
        for turn in range(turns):
            spans += [Span(some(later) if turn else prompt), Span(some(reply), turn, logprobs, 0)]
        played, history = (Turn("", "", float(number % 2)),) * turns, TokenHistory(tuple(spans))
        episodes.append(Episode("", "", 0, "", played, (history,), Ending.TERMINATED))
    prompts = 1 if plan.shares_prefixes else attempts
    return Group(tuple(episodes)), prompts * shape.prompt + attempts * own


# ----------------------------------------------------------------------
# By a GPU's data sheet.

GPUS = {
    "H100": (989.4e12, 3.35e12, 80e9), "H200": (989.4e12, 4.8e12, 141e9), "A100": (312e12, 2.039e12, 80e9),
    "L40S": (362.05e12, 0.864e12, 48e9), "L4": (121e12, 0.3e12, 24e9), "RTX 4090": (165.2e12, 1.008e12, 24e9),
}  # fmt: skip
"""Dense bfloat16 operations a second, bytes of memory a second, and bytes of memory.

NVIDIA's data sheets of the H100 (SXM), H200 (SXM), A100 (80 GB, SXM), L40S and L4, whose operations "with
sparsity" are twice these, and its white paper "Ada GPU architecture" for the RTX 4090."""
_WEIGHTS = (0.49e9, 1.54e9, 7.07e9)
_USED = {True: (0.128, 0.226, 0.380), False: (0.193, 0.226, 0.380)}
"""Share of these operations that an update reaches, by the number of weights, with an adapter and without:
docs/speed.md, an H100. Without one there is a figure of 0.5B; larger models are taken as with one."""
_LAYER_SECONDS = {True: 0.32e-3, False: 0.22e-3}
"""What a decode step takes a layer, with an adapter and without, beside reading weights and cache: small
kernels, whatever they compute. From the same figures."""


def gpu_figures(gpu: str) -> tuple[float, float, float]:
    """Return a row of :data:`GPUS`; a ConfigError if there is none of that name."""
    if gpu not in GPUS:
        raise ConfigError(f"no GPU {gpu!r} in the table{did_you_mean(gpu, GPUS)} It has {', '.join(GPUS)}")
    return GPUS[gpu]


def gpu_seconds(
    gpu: str, model: nn.Module, config: GRPOConfig, options: ModelOptions, plan: TrainingPlan
) -> np.ndarray:
    """Compute seconds a token from a GPU's data sheet and the shares of it that docs/speed.md reports.

    Raises:
        ConfigError: As :func:`gpu_figures`, or if the weights do not have 16 bits.
    """
    base, text = base_model(model), text_config(model)
    if next(base.parameters()).dtype.itemsize != 2 or options.load_in_4bit:
        raise ConfigError(f"gpu is {gpu}, whose figures are for weights of 16 bits: set --dtype bfloat16")
    if plan.parameters < 0.9 * _WEIGHTS[0] or any(weight.ndim == 3 for weight in base.parameters()):
        raise ConfigError(f"gpu is {gpu}: there are figures from 0.5 billion weights on, without experts")
    operations, bandwidth, _ = gpu_figures(gpu)
    adapter = options.lora is not None
    reached = operations * float(np.interp(plan.parameters, _WEIGHTS, _USED[adapter]))
    layers = sum(p.numel() for p in base.get_decoder().layers.parameters())
    head = int(text.vocab_size) * int(text.hidden_size)
    # Two operations a weight forward and four backward, two below an adapter.
    both = (4 if adapter else 6) * config.num_iterations
    held = 2 * (layers + head) + plan.rows * plan.context // 2 * cache_bytes_per_token(model)
    step = int(text.num_hidden_layers) * _LAYER_SECONDS[adapter] + held / bandwidth
    sampled = step / plan.rows + both * head / reached
    return np.array([sampled, 2 * layers / reached, both * layers / reached])
