"""The Transformers policy against plain forward passes."""

import numpy as np
import pytest
import torch

from art_trainer import slot_decoder
from art_trainer.decoding import RecomputeDecoder
from art_trainer.env_pool import EnvPool
from art_trainer.episodes import Ending
from art_trainer.policy import Conversation
from art_trainer.rollout import rollout, rollout_groups
from art_trainer.sampler import SamplingParams
from art_trainer.slot_decoder import SlotDecoder
from art_trainer.starts import Start
from art_trainer.transformers_policy import TransformersPolicy
from tests.art_trainer.test_chat import DEEPSEEK, LLAMA
from tests.art_trainer.tiny_models import EchoEnv, byte_tokenizer, full_logprobs, tiny_model

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
    groups = rollout_groups(policy, lambda: EchoEnv(turns), range(seeds), group_size, **options)
    episodes = [episode for group in groups for episode in group.episodes]
    assert all(e.ending is Ending.TERMINATED for e in episodes), [e.error for e in episodes]
    return episodes


def largest_error(policy, episodes) -> float:
    """Between the recorded log-probs and those of a plain forward pass over the finished context."""
    errors = []
    for episode in episodes:
        for history in episode.histories:
            full = full_logprobs(policy.model, history.token_ids)
            sampled = np.array(history.action_mask[1:])
            errors.append(np.abs(full[sampled] - np.array(history.logprobs)).max())
    return max(errors)


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama", "deepseek-v3"])
@pytest.mark.parametrize("max_batch", [3, 64])
def test_logprobs_are_those_of_a_plain_forward_pass(family, max_batch):
    policy = make_policy(family, max_batch=max_batch)
    assert isinstance(policy._decoder, SlotDecoder)
    episodes = played(policy)
    assert len({len(h.token_ids) for e in episodes for h in e.histories}) > 5
    assert sum(e.sampled_tokens for e in episodes) > 200
    assert largest_error(policy, episodes) < 1e-5


@pytest.mark.parametrize("window", [1, 2])
def test_with_a_history_window_every_turn_is_a_short_context_of_its_own(window):
    policy = make_policy(history_window=window, max_batch=7)
    episodes = played(policy, turns=4)
    for episode in episodes:
        assert [set(history.turns) for history in episode.histories] == [{turn} for turn in range(4)]
    assert largest_error(policy, episodes) < 1e-5


def test_a_model_with_a_sliding_window_recomputes_and_is_exact():
    policy = make_policy("mistral-sliding", max_batch=4)
    assert isinstance(policy._decoder, RecomputeDecoder)
    assert largest_error(policy, played(policy)) < 1e-5


def test_eager_attention_is_exact_too():
    model = tiny_model("qwen2", vocab_size=VOCABULARY)
    model.set_attn_implementation("eager")
    policy = make_policy(model=model)
    assert isinstance(policy._decoder, SlotDecoder)
    assert largest_error(policy, played(policy)) < 1e-5


@pytest.mark.parametrize("family", ["qwen3", "mistral-sliding"])
def test_a_conversation_samples_the_same_alone_and_batched(family):
    model = tiny_model(family, vocab_size=VOCABULARY)
    starts = [Start(seed // 2, None, seed // 2, (seed, 9)) for seed in range(10)]
    replies = []
    for max_batch, limit, read_tokens in [(1, 1, 4096), (10, None, 4096), (3, None, 64), (4, 2, 100)]:
        policy = make_policy(model=model, max_batch=max_batch, read_tokens=read_tokens)
        episodes = rollout(policy, lambda: EchoEnv(3), starts, max_concurrent=limit)
        replies.append([h.token_ids for e in episodes for h in e.histories])
    assert replies[0] == replies[1] == replies[2] == replies[3]


def test_rows_that_move_keep_their_keys_and_values(monkeypatch):
    moves = []
    compact = SlotDecoder._compact
    monkeypatch.setattr(slot_decoder, "_COMPACT_AT", 1.0)
    monkeypatch.setattr(SlotDecoder, "_compact", lambda self, s: moves.append(len(s)) or compact(self, s))
    policy = make_policy()
    assert largest_error(policy, played(policy)) < 1e-5
    assert len(moves) > 5


def test_a_groups_prompt_is_computed_once():
    policy = make_policy()
    counts = []
    run = policy._decoder._run
    policy._decoder._run = lambda tokens, *rest: counts.append(tuple(tokens.shape)) or run(tokens, *rest)
    episodes = played(policy, seeds=2, group_size=6, turns=1)
    prompts = sum(rows for rows, columns in counts if columns > 1)
    assert prompts == 2
    assert len({e.turns[0].reply for e in episodes}) > 2


def test_greedy_is_what_generate_gives():
    policy = make_policy(stops=(), sampling={"temperature": 0.0, "max_new_tokens": 12})
    (episode,) = rollout(policy, lambda: EchoEnv(1, words=9), [Start(4)])
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


def test_temperature_is_part_of_the_recorded_logprobs():
    policy = make_policy(sampling={"temperature": 0.7})
    (episode,) = rollout(policy, lambda: EchoEnv(2), [Start(1)])
    (history,) = episode.histories
    full = full_logprobs(policy.model, history.token_ids, temperature=0.7)
    assert np.abs(full[np.array(history.action_mask[1:])] - history.logprobs).max() < 1e-5


def test_tokens_are_kept_as_sampled_and_only_glue_is_added():
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
                glue = tuple(policy.format.continuation(messages))
                closed = spans[2 * turn - 1].token_ids[-1] == policy.format.end_of_turn
                assert read.token_ids == (glue if closed else (65, *glue))
            messages += [
                {"role": "assistant", "content": text},
                {"role": "user", "content": episode.turns[turn].observation},
            ]
    assert seen_ends == {True, False}


def test_a_template_that_rewrites_the_past_makes_several_histories():
    always = DEEPSEEK.replace("<｜Assistant｜>{% endif %}", "<｜Assistant｜><think>\n{% endif %}")
    policy = make_policy(template=always)
    episodes = played(policy, turns=3)
    assert all(len(e.histories) == 3 for e in episodes)
    assert [h.turns[0] for h in episodes[0].histories] == [0, 1, 2]
    assert largest_error(policy, episodes) < 1e-5


def test_a_trimming_template_is_continued():
    policy = make_policy("llama", template=LLAMA)
    episodes = played(policy, turns=3)
    assert all(len(e.histories) == 1 for e in episodes)
    assert largest_error(policy, episodes) < 1e-5


def test_a_full_context_ends_the_episode_and_frees_the_row():
    policy = make_policy(max_context=150, max_batch=2)
    episodes = rollout(policy, lambda: EchoEnv(30), [Start(s) for s in range(4)])
    assert {e.ending for e in episodes} == {Ending.CONTEXT_FULL}
    for episode in episodes:
        (history,) = episode.histories
        assert 100 < len(history.token_ids) <= 150
        assert history.spans[-1].turn is not None
    (episode,) = rollout(make_policy(max_context=20), EchoEnv, [Start(0)])
    assert (episode.ending, episode.histories, episode.turns) == (Ending.CONTEXT_FULL, (), ())


def test_the_models_own_context_is_the_default_limit():
    assert make_policy().max_context == 1024


def conversation(policy, seed=0):
    messages = [{"role": "user", "content": f"go {seed}"}]
    return Conversation(EchoEnv(), messages, [], np.random.default_rng(seed), seed)


def test_weights_and_sampling_change_only_between_rollouts():
    policy = make_policy()
    live = conversation(policy)
    policy.submit(live)
    with pytest.raises(RuntimeError, match="1 conversations are live"):
        policy.version = 1
    with pytest.raises(RuntimeError, match="sampling cannot change"):
        policy.sampling = SamplingParams()
    policy.collect()
    policy.release(live)
    policy.version = 3
    assert {s.policy_version for e in played(policy, 1, 2) for h in e.histories for s in h.spans} == {3}


def test_changed_weights_are_used():
    policy = make_policy()
    before = played(policy, 2, 2)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.1)
    policy.version += 1
    after = played(policy, 2, 2)
    assert before != after
    assert largest_error(policy, after) < 1e-5


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
    with pytest.raises(RuntimeError, match="1 conversations wait for one of 1 rows"):
        policy.collect()
    assert len(policy.release(first)) == 1
    assert policy.release(second) == ()
    assert policy.release(second) == ()
    assert policy.collect() == []
    assert policy._decoder._owners == [None]


def test_the_reply_is_appended_and_counted():
    policy = make_policy(stops=())
    live = conversation(policy)
    policy.submit(live)
    ((_, reply),) = policy.collect()
    assert live.messages[-1] == {"role": "assistant", "content": reply.text}
    assert (reply.token_count, reply.stop, reply.error) == (8, "length", None)


# peft 0.21 reads an attribute that transformers 5.2x deprecates.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_from_pretrained_reads_a_folder_and_adds_an_adapter(tmp_path):
    from peft import LoraConfig

    tiny_model("qwen2", vocab_size=VOCABULARY).save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    lora = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    options = {"sampling": SamplingParams(max_new_tokens=4), "device": "cpu"}
    policy = TransformersPolicy.from_pretrained(str(tmp_path), lora=lora, **options)
    assert policy.name == str(tmp_path)
    assert isinstance(policy._decoder, SlotDecoder)
    episodes = played(policy, 2, 2)
    assert largest_error(policy, episodes) < 1e-5
    plain = TransformersPolicy.from_pretrained(str(tmp_path), **options)
    assert largest_error(plain, episodes) > 1e-3


def test_a_pool_serves_several_rollouts():
    policy = make_policy()
    with EnvPool(EchoEnv) as pool:
        first = rollout_groups(policy, pool, range(2), 2)
        assert first == rollout_groups(policy, pool, range(2), 2)


def test_a_batch_of_none_is_refused():
    with pytest.raises(ValueError, match="max_batch"):
        make_policy(max_batch=0)
