"""GRPO on one page: play, compare the attempts of a group, take a step. PyTorch and Transformers only.

::

    python recipes/grpo_minimal.py

A two-layer transformer of random weights learns to guess a number in about a minute on a CPU. The environment
hides a number from 0 to 15 and answers each guess with LOW or HIGH; five guesses are allowed. An episode is
a conversation of several turns in one row of tokens, and only the tokens that the model sampled are trained:

    GUESS  7  HIGH  3  LOW  5        sampled: 7, 3, 5

The algorithm is GRPO (DeepSeekMath, arXiv:2402.03300): no value function; the baseline of an attempt is the
mean reward of its group, the attempts at the same task. ``art_trainer`` computes the same updates; a test
compares loss, gradients and weights. What it adds is speed (KV cache, shared prompts, packing), real
environments and chat templates, more algorithms, checkpoints, several processes and everything around.

Shape letters: R rows (attempts), T tokens, G attempts of a group, V words of the vocabulary.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import Qwen2Config, Qwen2ForCausalLM

NUMBERS = 16
LOW, HIGH, RIGHT, GUESS = range(NUMBERS, NUMBERS + 4)
"""Words beyond the numbers: three answers, and the first word of every episode."""
VOCABULARY = NUMBERS + 4
TURNS = 5


@dataclass(frozen=True)
class Settings:
    """Hyperparameters, named as in TRL and :class:`art_trainer.GRPOConfig`."""

    max_steps: int = 150
    groups_per_step: int = 16
    """Tasks in a batch."""
    num_generations: int = 16
    """G, attempts at each task."""
    num_iterations: int = 2
    """Optimizer steps on a batch; from the second on the policy is no longer the one that sampled."""
    learning_rate: float = 1e-3
    epsilon: float = 0.2
    """The ratio is clipped to 1 ± epsilon."""
    beta: float = 0.001
    """KL coefficient against the initial policy."""
    max_grad_norm: float = 1.0
    adam_epsilon: float = 1e-8
    temperature: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Batch:
    """Played episodes: R rows, groups beside each other."""

    ids_RT: Tensor
    """Tokens: GUESS, then a guess and an answer for each turn; 0 after the end."""
    mask_RT: Tensor
    """Whether the model sampled the token."""
    logprobs_RT: Tensor
    """The log-prob of each sampled token when it was sampled; 0 elsewhere."""
    rewards_R: Tensor


def make_model(seed: int = 0) -> nn.Module:
    """Return a small transformer of random weights."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=64,
        initializer_range=0.1,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    return Qwen2ForCausalLM(config)  # without dropout: the log-probs of a row are the same each time


def token_logprobs(model: nn.Module, ids_RT: Tensor, temperature: float) -> Tensor:
    """Return the log-prob of each token given those before it, shape [R, T]; 0 for the first."""
    logits_RTV = model(input_ids=ids_RT[:, :-1], use_cache=False).logits / temperature
    logprobs_RT = logits_RTV.log_softmax(-1).gather(-1, ids_RT[:, 1:, None])[..., 0]
    return torch.cat([torch.zeros_like(logprobs_RT[:, :1]), logprobs_RT], dim=1)


# --- Rollout -----------------------------------------------------------------------------------------------


@torch.no_grad()
def play(model: nn.Module, hidden_R: Tensor, generator: torch.Generator, temperature: float) -> Batch:
    """Play one episode for each hidden number, all at the same time.

    The reward is 1 for a right first guess, 0.1 less for each further turn, and 0 if no guess is right. Words
    that are no numbers are wrong guesses.
    """
    rows = len(hidden_R)
    ids_RT = torch.full((rows, 1), GUESS)
    mask_RT = torch.zeros(rows, 1, dtype=torch.bool)
    dtype = next(model.parameters()).dtype
    logprobs_RT = torch.zeros(rows, 1, dtype=dtype)
    rewards_R = torch.zeros(rows, dtype=dtype)
    live_R = torch.ones(rows, dtype=torch.bool)
    for turn in range(TURNS):
        logits_RV = model(input_ids=ids_RT, use_cache=False).logits[:, -1] / temperature
        logprobs_RV = logits_RV.log_softmax(-1)
        guess_R = torch.multinomial(logprobs_RV.exp(), 1, generator=generator)[:, 0]
        answer_R = torch.where(guess_R < hidden_R, LOW, torch.where(guess_R > hidden_R, HIGH, RIGHT))
        # What is appended to an episode that is over is masked, and nothing before it can attend to it.
        ids_RT = torch.cat([ids_RT, torch.stack([guess_R, answer_R], 1) * live_R[:, None]], 1)
        mask_RT = torch.cat([mask_RT, torch.stack([live_R, torch.zeros_like(live_R)], 1)], 1)
        sampled_R = logprobs_RV.gather(-1, guess_R[:, None])[:, 0] * live_R
        logprobs_RT = torch.cat([logprobs_RT, torch.stack([sampled_R, torch.zeros_like(sampled_R)], 1)], 1)
        rewards_R += (1 - 0.1 * turn) * (live_R & (answer_R == RIGHT))
        live_R &= answer_R != RIGHT
    return Batch(ids_RT, mask_RT, logprobs_RT, rewards_R)


# --- Advantages --------------------------------------------------------------------------------------------


def group_advantages(rewards_R: Tensor, group_size: int) -> Tensor:
    r"""Return how much better each attempt was than its group, in standard deviations.

    .. math:: A_i = \frac{r_i - \bar r}{\operatorname{std} r + 10^{-4}}
    """
    rewards_NG = rewards_R.view(-1, group_size)
    centred_NG = rewards_NG - rewards_NG.mean(1, keepdim=True)
    return (centred_NG / (rewards_NG.std(1, keepdim=True) + 1e-4)).flatten()


# --- Loss --------------------------------------------------------------------------------------------------


def grpo_loss(
    logprobs_RT: Tensor, reference_RT: Tensor, batch: Batch, advantages_R: Tensor, settings: Settings
) -> Tensor:
    r"""Return the loss of a batch, a scalar: GRPO's equation 3 with its sign turned around.

    .. math:: -\frac{1}{R} \sum_i \frac{1}{|o_i|} \sum_t
        \min(\rho A_i, \operatorname{clip}(\rho, 1 - \epsilon, 1 + \epsilon) A_i) - \beta\, k_3

    The ratio :math:`\rho` compares the policy with the one that sampled, so that a batch can be used for
    several optimizer steps; the clip stops a token once it moved far enough. :math:`k_3` estimates the KL
    divergence to the initial policy (Schulman, 2020).
    """
    advantages_RT = advantages_R[:, None]
    ratio_RT = torch.exp(logprobs_RT - batch.logprobs_RT)
    clipped_RT = ratio_RT.clamp(1 - settings.epsilon, 1 + settings.epsilon)
    policy_RT = -torch.minimum(ratio_RT * advantages_RT, clipped_RT * advantages_RT)
    difference_RT = reference_RT - logprobs_RT
    kl_RT = torch.exp(difference_RT) - difference_RT - 1
    tokens_RT = (policy_RT + settings.beta * kl_RT) * batch.mask_RT
    # Mean over the tokens of an attempt, then over attempts.
    return (tokens_RT.sum(1) / batch.mask_RT.sum(1)).mean()


# --- Update ------------------------------------------------------------------------------------------------


def update(
    model: nn.Module, reference: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, settings: Settings
) -> list[float]:
    """Take ``num_iterations`` optimizer steps on a batch; return the loss before each."""
    advantages_R = group_advantages(batch.rewards_R, settings.num_generations)
    with torch.no_grad():
        reference_RT = token_logprobs(reference, batch.ids_RT, settings.temperature)
    losses = []
    for _ in range(settings.num_iterations):
        logprobs_RT = token_logprobs(model, batch.ids_RT, settings.temperature)
        loss = grpo_loss(logprobs_RT, reference_RT, batch, advantages_R, settings)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
        optimizer.step()
        losses.append(loss.item())
    return losses


# --- Training loop -----------------------------------------------------------------------------------------


def make_optimizer(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """Return AdamW with the betas that are usual for language models."""
    return torch.optim.AdamW(
        model.parameters(),
        lr=settings.learning_rate,
        betas=(0.9, 0.99),
        eps=settings.adam_epsilon,
        weight_decay=0.0,
    )


def train(settings: Settings, *, log_every: int = 10) -> tuple[nn.Module, list[float]]:
    """Train a model; return it with the mean reward of each step."""
    model = make_model(settings.seed)
    reference = copy.deepcopy(model)
    optimizer = make_optimizer(model, settings)
    generator = torch.Generator().manual_seed(settings.seed)
    rewards = []
    for step in range(settings.max_steps):
        tasks = torch.randint(NUMBERS, (settings.groups_per_step,), generator=generator)
        hidden_R = tasks.repeat_interleave(settings.num_generations)  # a group is one task, played G times
        batch = play(model, hidden_R, generator, settings.temperature)
        losses = update(model, reference, optimizer, batch, settings)
        rewards.append(batch.rewards_R.mean().item())
        if log_every and (step + 1) % log_every == 0:
            mean = sum(rewards[-log_every:]) / log_every
            print(f"step {step + 1:4}   reward {mean:.3f}   loss {losses[0]:+.4f}")
    return model, rewards


if __name__ == "__main__":
    train(Settings())
