"""A small model of random weights, made for one environment.

For a laptop without a GPU and without a network: the vocabulary is learned from what the environment and its
scripted players say, so that a word of the game is one token, and the model is small enough to learn in
minutes. The result is an ordinary Hugging Face model with an ordinary tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from art_trainer.copying import start_as_copier
from art_trainer.env_pool import MakeEnv
from art_trainer.episodes import Episode
from art_trainer.errors import ConfigError
from art_trainer.rollout import rollout
from art_trainer.scripted_policy import ScriptedPolicy
from art_trainer.small_chat import ASSISTANT, END, PAD, TEMPLATE, USER
from art_trainer.starts import Start

NAME = "scratch"
"""How settings and command lines call such a model."""

# Words, runs of marks and line ends; a blank belongs to the word after it.
_PIECES = r" ?[^\W_]+| ?[^\s\w]+|_|\n|\s"


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

    Its attention starts as heads that look back and copy, see :func:`~art_trainer.copying.start_as_copier`.

    Args:
        texts: What the model will read and write, for the vocabulary; :func:`sample_texts` makes some.
        size: The model's size.
        seed: The same seed and texts give the same model.
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
        start_as_copier(model)
    return model, tokenizer


def scratch_tokenizer(texts: Iterable[str], *, vocabulary_size: int) -> PreTrainedTokenizerFast:
    """Make a tokenizer in which the words of the texts are one token each, the most frequent first.

    What is not in the vocabulary is spelt in bytes, so that nothing is unknown. Several blanks are read as
    one: a table's columns then have one token a cell. The chat format has no place for standing instructions,
    which are beyond a model of this size.

    Raises:
        ConfigError: Where ``vocabulary_size`` does not even hold the bytes.
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
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
        omit_system=True,
    )


def sample_texts(
    make_env: MakeEnv, players: Sequence[str], *, split: str | None, seed: int, episodes: int = 4
) -> list[str]:
    """What the environment and its scripted players say.

    Args:
        make_env: Makes one environment.
        players: Names of its baselines and teachers.
        split: Whose tasks are played; ``None`` leaves it to the environment.
        seed: Where the episodes start.
        episodes: Episodes a player.
    """
    options = None if split is None else {"split": split}
    starts = [Start(seed + number, options, rng_seed=(seed, number)) for number in range(episodes)]
    played = [episode for player in players for episode in rollout(ScriptedPolicy(player), make_env, starts)]
    return [text for episode in played for text in episode_texts(episode)]


def episode_texts(episode: Episode) -> list[str]:
    """All that was said in an episode."""
    texts = [episode.observation]
    for turn in episode.turns:
        texts += [turn.reply, turn.observation]
    return texts
