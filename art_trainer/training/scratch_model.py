"""Create a small model of random weights for one environment.

For a laptop without a GPU and without a network: the vocabulary is learned from what the environment and its
scripted players say, so that a word of the game is one token, and the model is small enough to learn in
minutes. The result is an ordinary Hugging Face model with an ordinary tokenizer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from art_trainer.config import Count, check_fields
from art_trainer.errors import ConfigError
from art_trainer.models.chat_template import ASSISTANT, END, PAD, SMALL_MODEL_TEMPLATE, USER

# Words, digits, runs of marks and line ends; a blank belongs to the word after it.
_PIECES = r" ?[^\W\d_]+| ?\d| ?[^\s\w]+|_|\n|\s"
_NUMBERS = 100  # of the most frequent numbers, which are one token each
_OFTEN = 4  # times a number must occur to be one token

_LOOK_BACK = 5.0  # large enough for a head to look at its one token, small enough to be unlearned


@dataclass(frozen=True, slots=True)
class ScratchSize:
    """The size of a model made from nothing: by default a third of a million weights."""

    layers: Count = 2
    hidden_size: Count = 96
    heads: Count = 8
    vocabulary_size: Count = 768
    max_context: Count = 1024
    """Most tokens of a context."""

    def __post_init__(self) -> None:
        check_fields(self)
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
        init_numbers(model, tokenizer)
        init_spaced_words(model, tokenizer)
    return model, tokenizer


@torch.no_grad()
def init_induction_heads(model: LlamaForCausalLM) -> None:
    """Initialise attention with the two halves of an induction head; training has to join them.

    A head that copies needs one layer in which a token attends to the tokens before it, and one that finds a
    token by what came before it and predicts it (Olsson et al., arXiv:2209.11895). With thousands of words
    and the usual initialisation such heads stay at chance for thousands of steps; with this one they form in
    some hundred. In the first layer all heads but one look back 1, 2, 3 … tokens: their query and key biases
    are equal but for the rotation that the position encoding gives that distance. In the second layer
    attention outputs what it looks at, ``W_O W_V = 1``, in embeddings of sufficient norm. Deeper layers stay
    as they are: with the same there, four layers copied no better after 300 steps than at the start.
    """
    model.model.embed_tokens.weight.normal_(0.0, 0.1)
    config = model.config
    half = config.hidden_size // config.num_attention_heads // 2
    angles = 10_000.0 ** (-torch.arange(half) / half)  # rotary encoding, arXiv:2104.09864, eq. 15
    for number, layer in enumerate(model.model.layers):
        if number > 1:
            break
        attention = layer.self_attn
        torch.nn.init.orthogonal_(attention.v_proj.weight)
        if number == 1:
            attention.o_proj.weight.copy_(attention.v_proj.weight.T)
            continue
        torch.nn.init.orthogonal_(attention.o_proj.weight)
        for back in range(1, config.num_attention_heads):
            head = slice((back - 1) * 2 * half, back * 2 * half)
            attention.k_proj.bias[head] = _LOOK_BACK * torch.cat([torch.ones(half), torch.zeros(half)])
            turned = torch.cat([torch.cos(back * angles), -torch.sin(back * angles)])
            attention.q_proj.bias[head] = _LOOK_BACK * turned


@torch.no_grad()
def init_numbers(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """Initialise the embeddings of numbers so that near numbers are alike, as in language models.

    Half of each is a random projection of sines and cosines of the number, of periods from 4 to 2,048. What
    is learned of one number then holds for its neighbours too.
    """
    weight = model.model.embed_tokens.weight
    frequencies = 2 * torch.pi / 2.0 ** torch.arange(2, 12)
    projection = torch.randn(2 * len(frequencies), weight.shape[1])
    size = weight.std()
    for word, index in tokenizer.get_vocab().items():
        if word.isdecimal() and word.isascii():
            angles = int(word) * frequencies
            waves = torch.cat([angles.sin(), angles.cos()]) @ projection / len(frequencies) ** 0.5
            weight[index] = (weight[index] + size * waves) / 2**0.5


@torch.no_grad()
def init_spaced_words(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """Initialise the embedding of a word after a blank as that of the word, plus a vector common to all.

    A question has ``" bread"``, the call that is due ``"bread"``: to a model of random weights they are two
    words, and it can copy only what is the same.
    """
    vocabulary = tokenizer.get_vocab()
    weight = model.model.embed_tokens.weight
    blank = torch.randn(weight.shape[1]) * weight.std() / 4
    for word, index in sorted(vocabulary.items()):
        if (bare := vocabulary.get(word.removeprefix("Ġ"))) not in (None, index):
            weight[index] = weight[bare] + blank


def scratch_tokenizer(texts: Iterable[str], *, vocabulary_size: int) -> PreTrainedTokenizerFast:
    """Make a tokenizer in which the words of the texts are one token each, the most frequent first.

    A number that is not among the most frequent ones is read digit by digit. What is not in the vocabulary is
    spelt in bytes, so that nothing is unknown. Several blanks are read as
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
    texts = list(texts)
    counts = Counter(number for text in texts for number in re.findall(r"\d+", text))
    often = [number for number, times in counts.most_common(_NUMBERS) if times >= _OFTEN and len(number) > 1]
    whole = f" ?(?<!\\d)(?:{'|'.join(sorted(often))})(?!\\d)|" if often else ""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Replace(Regex(" +"), " ")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(whole + _PIECES), behavior="isolated"),
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
