"""The Transformers policy against plain forward passes, and against itself in other batches."""

import numpy as np
import pytest
import torch
from peft import LoraConfig
from transformers.cache_utils import DynamicLayer

from art_trainer.errors import UnsupportedModelError
from art_trainer.inference import generation, slot_decoder
from art_trainer.inference.generation import RecomputeDecoder, common_prefix_length
from art_trainer.inference.kv_cache import SlotCache
from art_trainer.inference.policy import Conversation
from art_trainer.inference.sampling import SamplingParams
from art_trainer.inference.slot_decoder import SlotDecoder
from art_trainer.inference.transformers_policy import BATCH_LIMITS, TransformersPolicy
from art_trainer.rollout.episodes import group_specs, rollout_episodes, rollout_groups
from art_trainer.types import Ending, EpisodeSpec
from tests.art_trainer.models.test_chat_template import DEEPSEEK
from tests.art_trainer.tiny_models import EchoEnv, byte_tokenizer, largest_error, lora_model, tiny_model

TOKENIZER = byte_tokenizer()
VOCABULARY = len(TOKENIZER)
# One token in twelve ends the turn, so that replies are of unequal length.
STOPS = tuple(range(0, 256, 12))


def make_policy(family="qwen2", template=None, stops=STOPS, model=None, **options) -> TransformersPolicy:
    sampling = {"max_new_tokens": 8, "stop_token_ids": stops, **options.pop("sampling", {})}
    tokenizer = TOKENIZER if template is None else byte_tokenizer(template)
    model = tiny_model(family, vocab_size=VOCABULARY) if model is None else model
    return TransformersPolicy(model, tokenizer, sampling=SamplingParams(**sampling), **options)


def played(policy, seeds=5, group_size=4, turns=4, **options):
    groups = rollout_groups(policy, lambda: EchoEnv(turns), group_specs(range(seeds), group_size), **options)
    episodes = [episode for group in groups for episode in group.episodes]
    assert all(e.ending is Ending.TERMINATED for e in episodes), [e.error for e in episodes]
    return episodes


WINDOWED = ("mistral-sliding", "gemma3-sliding")
READ_AGAIN = ("lfm2", "gpt-neo", "falcon")


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama", "lora", "deepseek-v3", *WINDOWED, *READ_AGAIN])
@pytest.mark.parametrize(("max_batch", "temperature"), [(5, 1.0), (64, 0.7)])
@pytest.mark.parametrize("share_from", [1, 10**9])
def test_logprobs_are_those_of_a_plain_forward_pass(family, max_batch, temperature, share_from, monkeypatch):
    monkeypatch.setattr(slot_decoder, "_SHARE_FROM", share_from)
    sizes = {"vocab_size": VOCABULARY}
    model = lora_model(scale=0.1, **sizes) if family == "lora" else tiny_model(family, **sizes)
    policy = make_policy(model=model, max_batch=max_batch, sampling={"temperature": temperature})
    assert isinstance(policy._decoder, RecomputeDecoder if family in READ_AGAIN else SlotDecoder)
    shared: list[int] = []
    if isinstance(policy._decoder, SlotDecoder):
        cache, clear = policy._decoder._cache, policy._decoder._cache.clear
        monkeypatch.setattr(cache, "clear", lambda: (shared.append(cache.shared_capacity.rows), clear()))
    episodes = played(policy)
    assert len({len(h.token_ids) for e in episodes for h in e.histories}) > 5
    assert sum(e.sampled_tokens for e in episodes) > 200
    assert largest_error(policy.model, episodes, temperature) < 1e-5
    if family not in ("deepseek-v3", *WINDOWED, *READ_AGAIN):
        assert policy._decoder.shares
        assert (0 < max(shared) <= 8) == (share_from == 1)
        assert all(prompt is None for prompt in policy._decoder._prompts)


def test_a_tokenizer_of_more_tokens_than_the_model_has_is_refused():
    with pytest.raises(UnsupportedModelError, match=r"writes token 2\d\d, but the model knows 257 tokens"):
        make_policy(model=tiny_model(vocab_size=257))


@pytest.mark.parametrize("cache", ["none", "wrong"])
def test_without_a_cache_of_keys_replies_go_on_beside_longer_contexts(cache, monkeypatch, caplog):
    monkeypatch.setattr(SlotDecoder, "serves", lambda model: False)
    if cache == "none":
        monkeypatch.setattr(generation, "CACHE_NAME", "state")  # as of RWKV and Mamba
    else:  # as Bamba's in Transformers 5.23
        monkeypatch.setattr(DynamicLayer, "get_seq_length", lambda self: 0)
    # Most replies are short: while the others go on, the next turn of these has begun.
    policy = make_policy(stops=tuple(range(0, 256, 4)), sampling={"max_new_tokens": 20})
    assert isinstance(policy._decoder, RecomputeDecoder)
    assert ("gives other logits with its cache" in caplog.text) == (cache == "wrong")
    assert largest_error(policy.model, played(policy, seeds=2, turns=2)) < 1e-5


@pytest.mark.parametrize("family", WINDOWED)
def test_a_mask_that_is_not_the_models_own_is_found_out(family, monkeypatch):
    model = tiny_model(family)
    assert SlotDecoder.serves(model)
    monkeypatch.setattr(SlotCache, "window_for", lambda config: 5)
    assert not SlotDecoder.serves(model)


ALWAYS = DEEPSEEK.replace("<｜Assistant｜>{% endif %}", "<｜Assistant｜><think>\n{% endif %}")


@pytest.mark.parametrize("share_from", [1, 10**9])
@pytest.mark.parametrize("options", [{"history_window": 1}, {"history_window": 2}, {"template": ALWAYS}])
def test_every_turn_of_a_rewritten_past_is_a_history_of_its_own(options, share_from, monkeypatch):
    monkeypatch.setattr(slot_decoder, "_SHARE_FROM", share_from)
    policy = make_policy(max_batch=7, **options)
    episodes = played(policy, turns=4)
    for episode in episodes:
        assert [set(history.turns) for history in episode.histories] == [{turn} for turn in range(4)]
    assert largest_error(policy.model, episodes) < 1e-5
    assert all(prompt is None for prompt in policy._decoder._prompts)


def test_rows_that_move_keep_their_keys_and_values(monkeypatch):
    moves = []
    compact = SlotDecoder._compact
    monkeypatch.setattr(slot_decoder, "_COMPACT_AT", 1.0)
    monkeypatch.setattr(SlotDecoder, "_compact", lambda self, s: moves.append(len(s)) or compact(self, s))
    policy = make_policy()
    assert largest_error(policy.model, played(policy)) < 1e-5
    assert len(moves) > 5


@pytest.mark.parametrize(("share_from", "reads"), [(10**9, 2), (1, 3)])
def test_a_groups_prompt_is_computed_once_and_what_prompts_begin_with_too(share_from, reads, monkeypatch):
    monkeypatch.setattr(slot_decoder, "_SHARE_FROM", share_from)
    policy = make_policy()
    counts = []
    run = policy._decoder._run
    policy._decoder._run = lambda tokens, *rest: counts.append(tuple(tokens.shape)) or run(tokens, *rest)
    episodes = played(policy, seeds=2, group_size=6, turns=1)
    prompts = [shape for shape in counts if shape[1] > 1]
    assert sum(rows for rows, _ in prompts) == reads
    read = sum(rows * columns for rows, columns in prompts)
    first, second = (episodes[place].histories[0].spans[0].token_ids for place in (0, 6))
    padded = 2 * max(len(first), len(second))
    assert read == (padded if share_from > 1 else padded - common_prefix_length(first, second))
    assert len({e.turns[0].reply for e in episodes}) > 2


@pytest.mark.parametrize(("share_from", "common"), [(1, 1), (10**9, 0)])
def test_what_follows_equal_replies_is_read_once(share_from, common, monkeypatch):
    monkeypatch.setattr(slot_decoder, "_SHARE_FROM", share_from)
    policy = make_policy(max_batch=40, stops=(), sampling={"max_new_tokens": 1, "temperature": 0.3})
    reads = []
    read = policy._decoder._read
    policy._decoder._read = lambda batch, *rest, **options: (
        reads.append(len(batch)) or read(batch, *rest, **options)
    )
    episodes = played(policy, seeds=2, group_size=20, turns=3)
    contexts = {
        (e.task_id, e.seed, sum((span.token_ids for span in e.histories[0].spans[: 2 * turn + 1]), ()))
        for e in episodes
        for turn in range(3)
    }
    assert sum(reads) == len(contexts) + common < 50
    assert largest_error(policy.model, episodes, 0.3) < 1e-5


def test_greedy_is_what_generate_gives():
    policy = make_policy(stops=(), sampling={"temperature": 0.0, "max_new_tokens": 12})
    (episode,) = rollout_episodes(policy, lambda: EchoEnv(1, words=9), [EpisodeSpec(4)])
    prompt, reply = episode.histories[0].spans
    generated = policy.model.generate(
        input_ids=torch.tensor([prompt.token_ids]),
        attention_mask=torch.ones(1, len(prompt.token_ids), dtype=torch.long),
        do_sample=False,
        max_new_tokens=12,
        eos_token_id=sorted(policy.stop_token_ids),
        pad_token_id=0,
    )
    assert tuple(generated[0, len(prompt.token_ids) :].tolist()) == reply.token_ids
    assert set(reply.logprobs) == {0.0}


def test_tokens_are_kept_as_sampled_and_only_the_turn_separator_is_added():
    policy = make_policy(stops=())
    policy.format.end_of_turn = 65  # so that replies end themselves sometimes
    seen_ends = set()
    for episode in played(policy, seeds=8, turns=3):
        (history,) = episode.histories
        spans = history.spans
        assert [span.turn for span in spans] == [None, 0, None, 1, None, 2]
        messages = [{"role": "user", "content": episode.observation}]
        for turn, (read, said) in enumerate(zip(spans[::2], spans[1::2], strict=True)):
            ended = said.token_ids[-1] in policy.stop_token_ids
            seen_ends.add(ended)
            text = policy.format.decode(said.token_ids[:-1] if ended else said.token_ids)
            assert text == episode.turns[turn].reply
            if turn > 0:
                more = tuple(policy.format.continuation(messages))
                closed = spans[2 * turn - 1].token_ids[-1] == policy.format.end_of_turn
                assert read.token_ids == (more if closed else (65, *more))
            messages += [
                {"role": "assistant", "content": text},
                {"role": "user", "content": episode.turns[turn].observation},
            ]
    assert seen_ends == {True, False}


def test_a_full_context_ends_the_episode_and_frees_the_row():
    assert make_policy().max_context == 1024  # the model's own limit
    policy = make_policy(max_context=150, max_batch=2)
    episodes = rollout_episodes(policy, lambda: EchoEnv(30), [EpisodeSpec(s) for s in range(4)])
    assert {e.ending for e in episodes} == {Ending.CONTEXT_FULL}
    for episode in episodes:
        (history,) = episode.histories
        assert 100 < len(history.token_ids) <= 150
        assert history.spans[-1].turn is not None
    (episode,) = rollout_episodes(make_policy(max_context=20), EchoEnv, [EpisodeSpec(0)])
    assert (episode.ending, episode.histories, episode.turns) == (Ending.CONTEXT_FULL, (), ())


def conversation(policy, seed=0):
    messages = [{"role": "user", "content": f"go {seed}"}]
    return Conversation(EchoEnv(), messages, [], np.random.default_rng(seed), seed)


def test_weights_and_sampling_change_only_between_rollouts():
    policy = make_policy(stops=())
    live = conversation(policy)
    policy.submit(live)
    with pytest.raises(RuntimeError, match="1 conversations are live"):
        policy.version = 1
    with pytest.raises(RuntimeError, match="sampling cannot change"):
        policy.sampling = SamplingParams()
    ((_, reply),) = policy.collect()
    assert live.messages[-1] == {"role": "assistant", "content": reply.text}
    (history,) = policy.release(live)
    assert (len(history.logprobs), reply.stop, reply.error) == (8, "length", None)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.1)
    policy.version = 3
    episodes = played(policy, 1, 2)
    assert {s.policy_version for e in episodes for h in e.histories for s in h.spans} == {3}
    assert largest_error(policy.model, episodes) < 1e-5


def test_the_models_mode_is_left_as_it_was():
    model = tiny_model("qwen2", vocab_size=VOCABULARY).train()
    played(make_policy(model=model), 1, 1)
    assert model.training


def test_a_released_conversation_is_forgotten_wherever_it_was():
    policy = make_policy(max_batch=1)
    first, second = conversation(policy), conversation(policy, 1)
    policy.submit(first)
    policy.submit(second)
    ((answered, _),) = policy.collect()
    assert answered is first
    assert len(policy.release(first)) == 1
    assert policy.release(second) == ()
    assert policy.release(second) == ()
    assert policy.collect() == []
    assert policy._decoder._owners == []


@pytest.mark.parametrize("max_batch", [1, 3])
def test_conversations_wait_for_no_row_of_one_that_is_not_submitted(max_batch):
    # With threads the policy is asked while the environments of all that have a row are stepped.
    policy = make_policy(max_batch=max_batch)
    episodes = played(policy, 2, 2, env_threads=1)
    assert [e.turns for e in episodes] == [e.turns for e in played(make_policy(), 2, 2)]
    assert largest_error(policy.model, episodes) < 1e-5


def test_from_pretrained_reads_a_folder_and_adds_an_adapter(tmp_path):
    tiny_model("qwen2", vocab_size=VOCABULARY).save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    lora = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    options = {"sampling": SamplingParams(max_new_tokens=4), "device": "cpu"}
    policy = TransformersPolicy.from_pretrained(str(tmp_path), lora=lora, **options)
    assert policy.name == str(tmp_path)
    assert isinstance(policy._decoder, SlotDecoder)
    episodes = played(policy, 2, 2)
    assert largest_error(policy.model, episodes) < 1e-5
    plain = TransformersPolicy.from_pretrained(str(tmp_path), **options)
    assert largest_error(plain.model, episodes) > 1e-3


def test_a_batch_of_none_is_refused():
    with pytest.raises(ValueError, match="max_batch"):
        make_policy(max_batch=0)


# The same episode, whatever it is batched with: measured against the limits the policy's docs state.

STARTS = [EpisodeSpec(seed, None, seed, (seed, 9)) for seed in range(6)]


def played_together(model, starts, max_batch, read_tokens=4096, **sampling):
    sampling = {"max_new_tokens": 12, **sampling}
    stops = tuple(range(0, 256, 16))
    policy = make_policy(
        model=model, stops=stops, max_batch=max_batch, read_tokens=read_tokens, sampling=sampling
    )
    return rollout_episodes(policy, lambda: EchoEnv(3), starts)


def sampled_tokens(episode) -> list[int]:
    return [t for span in episode.histories[0].spans if span.turn is not None for t in span.token_ids]


@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        ("qwen3", torch.float32),
        ("deepseek-v3", torch.float32),
        ("mistral-sliding", torch.float32),
        ("qwen3", torch.bfloat16),
        ("llama", torch.bfloat16),
    ],
)
def test_an_episode_alone_and_among_others_agrees_within_the_stated_limit(family, dtype):
    model = tiny_model(family, vocab_size=VOCABULARY).to(dtype)
    alone = [played_together(model, [start], 1)[0] for start in STARTS]
    compared = 0
    for max_batch, read_tokens in [(len(STARTS), 4096), (3, 150)]:
        together = played_together(model, STARTS, max_batch, read_tokens)
        for one, other in zip(alone, together, strict=True):
            place = common_prefix_length(sampled_tokens(one), sampled_tokens(other))
            ours = np.array(one.histories[0].logprobs[:place])
            theirs = np.array(other.histories[0].logprobs[:place])
            assert np.abs(ours - theirs).max(initial=0) < BATCH_LIMITS[dtype]
            compared += len(ours)
    assert compared > 150


def test_in_float32_these_episodes_are_equal_token_by_token():
    model, sampling = tiny_model(vocab_size=VOCABULARY), {"repetition_penalty": 1.3, "top_p": 0.9}
    alone = [played_together(model, [start], 1, **sampling)[0] for start in STARTS]
    together = played_together(model, STARTS, 6, **sampling)
    assert [e.histories[0].token_ids for e in alone] == [e.histories[0].token_ids for e in together]
    assert len({e.histories[0].token_ids for e in alone}) == len(STARTS)
