"""Create a small model of random weights for one environment.

For a laptop without a GPU and without a network: the vocabulary is learned from what the environment and its
scripted players say, so that a word of the game is one token, and the model is small enough to learn in
minutes. The result is an ordinary Hugging Face model with an ordinary tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from art_gym.games.seats import players_of
from art_trainer.errors import ConfigError
from art_trainer.inference.scripted_policy import ScriptedPolicy
from art_trainer.models.chat_template import ASSISTANT, END, PAD, SMALL_MODEL_TEMPLATE, USER
from art_trainer.rollout.envs import MakeEnv
from art_trainer.rollout.episodes import rollout_episodes
from art_trainer.rollout.games import MakeGame, play_games
from art_trainer.types import Episode, EpisodeSpec

NAME = "scratch"
"""How settings and command lines call such a model."""

# Words, runs of marks and line ends; a blank belongs to the word after it.
_PIECES = r" ?[^\W_]+| ?[^\s\w]+|_|\n|\s"

_LOOK_BACK = 5.0  # large enough for a head to look at its one token, small enough to be unlearned


@dataclass(frozen=True, slots=True)
class ScratchSize:
    """The size of a model made from nothing: by default a third of a million weights."""

    layers: int = 2
    hidden_size: int = 96
    heads: int = 8
    vocabulary_size: int = 768
    max_context: int = 1024
    """Most tokens of a context."""

    def __post_init__(self) -> None:
        for name in ("layers", "hidden_size", "heads", "vocabulary_size", "max_context"):
            if getattr(self, name) < 1:
                raise ConfigError(f"a scratch model's {name} is {getattr(self, name)}: set at least 1")
        if self.hidden_size % (2 * self.heads):
            raise ConfigError(
                f"a scratch model's hidden_size is {self.hidden_size}: set a multiple of {2 * self.heads}, "
                "twice its heads"
            )


def scratch_model(
    texts: Iterable[str], *, size: ScratchSize | None = None, seed: int = 0
) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Make a model of random weights, of the Llama architecture, and its tokenizer.

    Its attention starts as heads that look back and copy, see :func:`init_induction_heads`.
    """
    size = size or ScratchSize()
    tokenizer = scratch_tokenizer(texts, vocabulary_size=size.vocabulary_size)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=size.hidden_size,
        intermediate_size=3 * size.hidden_size,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        max_position_embeddings=size.max_context,
        attention_bias=True,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
        init_induction_heads(model)
    return model, tokenizer


@torch.no_grad()
def init_induction_heads(model: LlamaForCausalLM) -> None:
    """Initialise attention with the two halves of an induction head; training has to join them.

    A head that copies needs one layer in which a token attends to the tokens before it, and one that finds a
    token by what came before it and predicts it (Olsson et al., arXiv:2209.11895). With thousands of words
    and the usual initialisation such heads stay at chance for thousands of steps; with this one they form in
    some hundred. In the first layer all heads but one look back 1, 2, 3 … tokens: their query and key biases
    are equal but for the rotation that the position encoding gives that distance. In the other layers
    attention outputs what it looks at, ``W_O W_V = 1``, in embeddings of sufficient norm.
    """
    model.model.embed_tokens.weight.normal_(0.0, 0.1)
    config = model.config
    half = config.hidden_size // config.num_attention_heads // 2
    angles = 10_000.0 ** (-torch.arange(half) / half)  # rotary encoding, arXiv:2104.09864, eq. 15
    for number, layer in enumerate(model.model.layers):
        attention = layer.self_attn
        torch.nn.init.orthogonal_(attention.v_proj.weight)
        if number > 0:
            attention.o_proj.weight.copy_(attention.v_proj.weight.T)
            continue
        torch.nn.init.orthogonal_(attention.o_proj.weight)
        for back in range(1, config.num_attention_heads):
            head = slice((back - 1) * 2 * half, back * 2 * half)
            attention.k_proj.bias[head] = _LOOK_BACK * torch.cat([torch.ones(half), torch.zeros(half)])
            turned = torch.cat([torch.cos(back * angles), -torch.sin(back * angles)])
            attention.q_proj.bias[head] = _LOOK_BACK * turned


def scratch_tokenizer(texts: Iterable[str], *, vocabulary_size: int) -> PreTrainedTokenizerFast:
    """Make a tokenizer in which the words of the texts are one token each, the most frequent first.

    What is not in the vocabulary is spelt in bytes, so that nothing is unknown. Several blanks are read as
    one: a table's columns then have one token a cell. The chat format has no place for standing instructions,
    which are beyond a model of this size.

    Raises:
        ConfigError: If ``vocabulary_size`` does not even hold the bytes.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = [PAD, USER, ASSISTANT, END]
    if vocabulary_size < len(alphabet) + len(special):
        raise ConfigError(
            f"a scratch model's vocabulary_size is {vocabulary_size}: set at least "
            f"{len(alphabet) + len(special)}, for the bytes"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Replace(Regex(" +"), " ")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        min_frequency=2,
        initial_alphabet=alphabet,
        special_tokens=special,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        chat_template=SMALL_MODEL_TEMPLATE,
        clean_up_tokenization_spaces=False,
        omit_system=True,
    )


def sample_texts(
    make_env: MakeEnv, players: Sequence[str], *, split: str | None, seed: int, episodes: int = 4
) -> list[str]:
    """What the environment and its scripted players say."""
    options = None if split is None else {"split": split}
    starts = [EpisodeSpec(seed + number, options, rng_seed=(seed, number)) for number in range(episodes)]
    played = [
        episode
        for player in players
        for episode in rollout_episodes(ScriptedPolicy(player), make_env, starts)
    ]
    return [text for episode in played for text in episode_texts(episode)]


def episode_texts(episode: Episode) -> list[str]:
    """Return all texts of an episode."""
    texts = [episode.observation]
    for turn in episode.turns:
        texts += [turn.reply, turn.observation]
    return texts


def game_texts(make_game: MakeGame, *, seed: int, games: int = 8) -> list[str]:
    """What a game and its scripted players say, for the vocabulary of a model made from scratch."""
    with closing(make_game()) as game:
        players = {seat: tuple(players_of(game, seat)) for seat in game.possible_agents}
    for seat, names in players.items():
        if not names:
            raise ConfigError(
                f"{seat} has no scripted player to take a vocabulary from: name a model instead"
            )
    texts = []
    for turn in range(max(map(len, players.values()))):
        policies = {seat: ScriptedPolicy(names[turn % len(names)]) for seat, names in players.items()}
        starts = [EpisodeSpec(seed + number, rng_seed=(seed, turn, number)) for number in range(games)]
        for played in play_games(policies, make_game, starts):
            texts += [text for episode in played.values() for text in episode_texts(episode)]
    return texts
