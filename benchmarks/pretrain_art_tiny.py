"""Pre-train ``art-tiny``, the embedded model: it knows the mail tools and copies well, but decides badly.

First it learns to copy: runs of random tokens that are repeated word for word. That takes a minute alone, and
far longer beside anything else. Then it goes on copying, reads mail (tokens of the transcripts are predicted,
at a small weight), and calls tools as a deliberately noisy demonstrator does, on questions of all
difficulties. The demonstrator often searches for the wrong words and picks the wrong line, so the base
succeeds now and then, which is what GRPO needs to begin.

The tokenizer has one token a word: a small model copies tokens long before it spells. A date is a month and a
day, a number pairs of digits; an id such as ``m3`` and a count such as ``2/3`` are one token: what belongs
together must lie within reach of a head that looks back a token or two. Only words outside the vocabulary are
spelt, with WordPiece's ``##`` continuation, and nothing in lower-case ASCII is unknown. Spaces are not
tokens; decoding puts them back.

Its worlds have seeds that no evaluation uses. Run it with::

    python benchmarks/pretrain_art_tiny.py --out FOLDER
"""

from __future__ import annotations

import argparse
import json
import re
import string
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import WordPiece
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from art_gym.baselines import play_on
from art_trainer.models.chat_template import ASSISTANT, END, PAD, SMALL_MODEL_TEMPLATE, USER
from art_trainer.training.scratch_model import init_induction_heads

_ENV = "art_gym:art/Email-v0"
UNKNOWN = "<|unknown|>"
_SPECIAL = (PAD, UNKNOWN, USER, ASSISTANT, END)
_MOST_LISTED = 60  # ids m1 … m60 are one token each
_PIECES = r"\d{4}-\d{2}-\d{2}|\b\d/\d\b|\bm\d{1,2}\b|[a-z]+|\d+(?:[.,:]\d+)*|\n|[^\s\w]|\w"
_YEARS = range(2022, 2027)  # of the generated mail, and one more on each side
# What may be a token as it is: words, counts of matched words ("2/3"), marks.
_WHOLE = re.compile(r"[a-z]+|\d/\d|[^\w\s]")
# How decoded text is closed up: (spaced as the decoder leaves it, as people write it).
_CLOSE_UP = (
    (r' ?\( " ?', '("'), (r' ?" \)', '")'), (r' ?" , ', '", '), (r' = " ?', '="'), (r" = ", "="),
    (r" ?\( ?", "("), (r" \)", ")"), (r' ?\[ " ?', '["'), (r' ?" \]', '"]'),
)  # fmt: skip
_Encoded = tuple[list[int], list[bool]]


@dataclass(frozen=True, slots=True)
class Recipe:
    """The settings that decide the weights."""

    world_seeds: tuple[int, ...] = tuple(range(1001, 1025))
    """Generated worlds to play in; evaluations use small seeds."""
    shares: tuple[tuple[int, float], ...] = ((1, 0.3), (2, 0.25), (3, 0.37), (4, 0.08))
    """Which share of the demonstrations is of which difficulty."""
    episodes: int = 20_000
    """Demonstrations to learn from."""
    seed: int = 7
    hidden_size: int = 128
    layers: int = 4
    heads: int = 4
    vocabulary_size: int = 4_000
    copying_steps: int = 350
    """Steps of copying alone."""
    copying_rate: float = 3e-3
    """Their learning rate."""
    copying_exercises: int = 24
    """Copying exercises in a batch of them."""
    steps: int = 2_000
    """Steps of everything."""
    learning_rate: float = 2e-3
    whole_tokens: int = 6_000
    """Tokens of whole demonstrations in a batch."""
    opening_tokens: int = 1_000
    """Tokens of demonstrations that are cut after the first reply."""
    exercises: int = 16
    """Copying exercises in a batch of everything."""
    copy_length: int = 72
    """Tokens of one copying exercise."""
    copy_weight: float = 0.5
    ending_weight: float = 4.0
    """Weight of the last reply: one token of it chooses among the lines read, and is easily drowned."""
    read_weight: float = 0.1
    """Weight of predicting what was read, against 1 for what was said."""
    read_share: float = 0.15
    """Share of the tokens read that are predicted; the rest would cost much and teach little."""


@dataclass(frozen=True, slots=True)
class _Transcript:
    observations: tuple[str, ...]
    replies: tuple[str, ...]


def play_demonstrations(recipe: Recipe) -> Iterator[_Transcript]:
    """Play the demonstrator over the recipe's worlds, worlds in turn."""
    levels, shares = zip(*recipe.shares, strict=True)
    drawn = np.random.default_rng(recipe.seed).choice(levels, size=recipe.episodes, p=shares)
    envs = {
        (world, level): gym.make(_ENV, world_seed=world, difficulty=level)
        for world in recipe.world_seeds
        for level in levels
    }
    seeds = np.random.SeedSequence(recipe.seed).spawn(recipe.episodes)
    for number, seed in enumerate(seeds):
        env = envs[recipe.world_seeds[number % len(recipe.world_seeds)], int(drawn[number])]
        observation, info = env.reset(seed=int(seed.generate_state(1)[0]))
        plain: Any = env.unwrapped
        act = plain.teachers["demonstrator"](plain, np.random.default_rng(seed))
        observations = [observation.removeprefix(info["system"] + "\n\n")]
        replies: list[str] = []
        for reply, observation, *_ in play_on(env, act, observations[0]):
            replies.append(reply)
            observations.append(observation)
        yield _Transcript(tuple(observations), tuple(replies))


def encode(tokenizer: PreTrainedTokenizerBase, transcript: _Transcript) -> _Encoded:
    """A transcript as token ids, and for each whether the agent said it."""
    ids: list[int] = []
    said: list[bool] = []

    def add(text: str, by_agent: bool) -> None:
        new = tokenizer(text, add_special_tokens=False)["input_ids"]
        ids.extend(new)
        said.extend([by_agent] * len(new))

    for observation, reply in zip(transcript.observations, transcript.replies, strict=False):
        add(f"<|user|>{observation}<|assistant|>", False)
        add(f"{reply}<|end|>", True)
    return ids, said


def demonstration_loss(
    model: LlamaForCausalLM, batch: Sequence[_Encoded], pad: int, recipe: Recipe, rng: np.random.Generator
) -> torch.Tensor:
    """Weighted mean cross-entropy of what was said, plus that of a sample of what was read."""
    length = max(len(ids) for ids, _ in batch)
    tokens = torch.full((len(batch), length), pad)
    spoken = torch.zeros(len(batch), length)
    there = torch.zeros(len(batch), length, dtype=torch.bool)
    for row, (ids, said) in enumerate(batch):
        tokens[row, : len(ids)] = torch.tensor(ids)
        spoken[row, : len(ids)] = torch.tensor(said, dtype=torch.float32)
        there[row, : len(ids)] = True
        # The last reply is the run of said tokens at the end; a first reply alone is no ending.
        start = len(said) - said[::-1].index(False)
        if True in said[:start]:
            spoken[row, start : len(ids)] = recipe.ending_weight
    sampled = torch.from_numpy(rng.random((len(batch), length)) < recipe.read_share)
    # Causal attention never looks right, so padding on the right needs no mask.
    hidden = _hidden(model, tokens[:, :-1])
    read = (there & sampled & (spoken == 0)).float()
    total = torch.zeros(())
    for weights, share in ((spoken, 1.0), (read, recipe.read_weight)):
        weight = weights[:, 1:]
        chosen = weight > 0
        logits, targets = model.lm_head(hidden[chosen]), tokens[:, 1:][chosen]
        losses = functional.cross_entropy(logits, targets, reduction="none")
        total = total + share * (losses * weight[chosen]).sum() / weight.sum()
    return total


def _hidden(model: LlamaForCausalLM, tokens: torch.Tensor) -> torch.Tensor:
    """The last hidden states, computed in bfloat16: on CPUs that have it this takes half the time."""
    with torch.autocast("cpu", torch.bfloat16):
        states: torch.Tensor = model.model(input_ids=tokens).last_hidden_state
    return states.float()


def copying_loss(
    model: LlamaForCausalLM, recipe: Recipe, first: int, rng: np.random.Generator
) -> torch.Tensor:
    """Cross-entropy of random token runs that are said again and again, each of a period of its own."""
    vocabulary, length = model.config.vocab_size, recipe.copy_length
    tokens = np.zeros((recipe.exercises, length), dtype=np.int64)
    repeated = np.zeros(tokens.shape, dtype=bool)
    for row, known in zip(tokens, repeated, strict=True):
        period = int(rng.integers(6, 30))
        row[:] = np.resize(rng.integers(first, vocabulary, size=period), length)
        known[period + 1 :] = True  # the first token said again cannot be foreseen
    ids, targets = torch.from_numpy(tokens), torch.from_numpy(repeated[:, 1:])
    hidden = _hidden(model, ids[:, :-1])
    return functional.cross_entropy(model.lm_head(hidden[targets]), ids[:, 1:][targets])


def pretrain(recipe: Recipe, out: Path) -> None:
    """Train the base and save it with its tokenizer and the recipe."""
    started = time.process_time()
    torch.manual_seed(recipe.seed)
    rng = np.random.default_rng(recipe.seed)
    transcripts = list(play_demonstrations(recipe))
    texts = (text for t in transcripts for text in (*t.observations, *t.replies))
    tokenizer = build_tokenizer(texts, vocabulary_size=recipe.vocabulary_size)
    whole = [encode(tokenizer, transcript) for transcript in transcripts]
    openings = [encode(tokenizer, replace(t, replies=t.replies[:1])) for t in transcripts]
    mean = sum(len(ids) for ids, _ in whole) / len(whole)
    print(f"{len(whole)} demonstrations, {mean:.0f} tokens each, {len(tokenizer)} words", flush=True)
    model = _model(recipe, tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.01)
    pad, first = int(tokenizer.pad_token_id), len(tokenizer.all_special_ids)

    def learn(loss: torch.Tensor, rate: float) -> None:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    for step in range(recipe.copying_steps):
        loss = copying_loss(model, replace(recipe, exercises=recipe.copying_exercises), first, rng)
        learn(loss, recipe.copying_rate * min(1.0, (step + 1) / 100))
    batches = zip(
        _batches(whole, recipe.whole_tokens, rng),
        _batches(openings, recipe.opening_tokens, rng),
        strict=False,
    )
    for step, pair in zip(range(recipe.steps), batches, strict=False):
        said = [demonstration_loss(model, batch, pad, recipe, rng) for batch in pair]
        copied = copying_loss(model, recipe, first, rng)
        loss = said[0] + said[1] + recipe.copy_weight * copied
        learn(loss, recipe.learning_rate * (1 - 0.95 * step / recipe.steps))
        if step % 100 == 0 or step == recipe.steps - 1:
            minutes = (time.process_time() - started) / 60
            losses = f"whole {said[0]:.3f}  openings {said[1]:.3f}  copying {copied:.3f}"
            print(f"step {step:5d}  {losses}  {minutes:.1f} CPU-minutes", flush=True)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    minutes = round((time.process_time() - started) / 60, 1)
    made = {"recipe": asdict(recipe), "cpu_minutes": minutes}
    (out / "made_by.json").write_text(json.dumps(made, indent=2) + "\n")


def _batches(data: Sequence[_Encoded], tokens: int, rng: np.random.Generator) -> Iterator[list[_Encoded]]:
    """Batches of so many tokens for ever, each of members of about one length, so that little is padding."""
    while True:
        order = rng.permutation(len(data))
        batches = []
        for start in range(0, len(order), 256):
            some = (data[index] for index in order[start : start + 256])
            batch: list[_Encoded] = []
            for member in sorted(some, key=lambda encoded: len(encoded[0])):
                if batch and (len(batch) + 1) * len(member[0]) > tokens:
                    batches.append(batch)
                    batch = []
                batch.append(member)
            batches.append(batch)
        for number in rng.permutation(len(batches)):
            yield batches[number]


def _model(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=recipe.hidden_size, intermediate_size=3 * recipe.hidden_size,
        num_hidden_layers=recipe.layers, num_attention_heads=recipe.heads, num_key_value_heads=recipe.heads,
        max_position_embeddings=2_048, tie_word_embeddings=True, attention_bias=True, bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    init_induction_heads(model)
    return model


def build_tokenizer(texts: Iterable[str], *, vocabulary_size: int) -> PreTrainedTokenizerFast:
    """Make the tokenizer from sample texts.

    Args:
        texts: What the model will read and write.
        vocabulary_size: The most tokens; rarer words are spelt.

    Raises:
        ValueError: Where ``vocabulary_size`` does not even hold the letters.
    """
    counts: Counter[str] = Counter()
    splitter = pre_tokenizers.Split(Regex(_PIECES), behavior="removed", invert=True)
    normalizer = normalizers.Sequence(
        [normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()]
    )
    for text in texts:
        counts.update(piece for piece, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text)))
    symbols = list(string.ascii_lowercase + string.digits + string.punctuation + "\n")
    inner = string.ascii_lowercase + string.digits + "-.,:"
    fixed = [*_SPECIAL, *symbols, *(f"##{symbol}" for symbol in inner)]
    fixed += [f"{year}-{month:02d}" for year in _YEARS for month in range(1, 13)]
    fixed += [f"##-{day:02d}" for day in range(1, 32)]
    fixed += [str(number) for number in (*range(10, 100), *_YEARS)]
    fixed += [f"##{number:02d}" for number in range(100)]
    fixed += [f"m{number}" for number in range(1, _MOST_LISTED + 1)]
    fixed += [f"{matched}/{words}" for words in range(1, 10) for matched in range(words + 1)]
    if vocabulary_size < len(fixed):
        raise ValueError(f"vocabulary_size must be at least {len(fixed)}, not {vocabulary_size}")
    # Other numbers are spelt: each would be a token of its own, and there is no end of them.
    words = {word for word in counts if _WHOLE.fullmatch(word)}.difference(fixed)
    words_by_count = sorted(words, key=lambda word: (-counts[word], word))
    vocabulary = {token: index for index, token in enumerate([*fixed, *words_by_count][:vocabulary_size])}
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token=UNKNOWN, max_input_chars_per_word=64))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = splitter
    close_up = [decoders.Replace(Regex(spaced), written) for spaced, written in _CLOSE_UP]
    tokenizer.decoder = decoders.Sequence([decoders.WordPiece(cleanup=False), decoders.Fuse(), *close_up])
    tokenizer.add_special_tokens(list(_SPECIAL))
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, pad_token=PAD, unk_token=UNKNOWN, eos_token=END,
        chat_template=SMALL_MODEL_TEMPLATE, clean_up_tokenization_spaces=False,
        omit_system=True,  # instructions are beyond a model of this size; it knows the tools by heart
    )  # fmt: skip


def main() -> None:
    """Command line of the script."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for weights, tokenizer and recipe")
    parser.add_argument("--steps", type=int, default=Recipe().steps, help="training steps")
    parser.add_argument("--episodes", type=int, default=Recipe().episodes, help="demonstrations to play")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    pretrain(Recipe(steps=arguments.steps, episodes=arguments.episodes), arguments.out)


if __name__ == "__main__":
    main()
