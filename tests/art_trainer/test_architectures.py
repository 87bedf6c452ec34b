"""Every supported architecture, with its makers' chat and tool format, from the mailbox to a resumed run.

The models are random and tiny and the templates are short, but written as the makers ship theirs: where the
tools stand, what opens and closes a turn, how a call is written.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from peft import PeftModel
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

import art_gym  # noqa: F401 (registers the mailbox)
from art_trainer.checkpoint import list_checkpoints
from art_trainer.config import GRPOConfig
from art_trainer.episodes import Group
from art_trainer.loading import with_adapter
from art_trainer.packing import Row, pack
from art_trainer.sampler import SamplingParams
from art_trainer.scoring import Scorer
from art_trainer.trainer import GRPOTrainer
from art_trainer.transformers_policy import TransformersPolicy
from tests.art_trainer.tiny_models import tiny_model

pytestmark = [
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning"),
    # PEFT's patterns for fused experts, of which one kind has no adapter.
    pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys:RuntimeWarning"),
]

CHATML_TURNS = (
    "<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}{{ SAID }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n"
)
HERMES = (
    "{% set first = messages[0].content if messages[0].role == 'system' else 'Be of help.' %}"
    "<|im_start|>system\n{{ first }}"
    "{% if tools %}\n\n# Tools\n\nThese functions can be called:\n<tools>"
    "{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}\n</tools>\n\n"
    'Write a call as\n<tool_call>\n{"name": <its name>, "arguments": <an object>}\n</tool_call>{% endif %}'
    "<|im_end|>\n{% for m in messages %}{% if m.role != 'system' %}"
    + CHATML_TURNS
    + "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QWEN2 = HERMES.replace("SAID", "m.content")
# Qwen3 forgets what was thought in earlier turns.
QWEN3 = HERMES.replace("SAID", "m.content.split('</think>')[-1].lstrip('\\n')")
LLAMA31 = (
    "<|begin_of_text|>{% set ns = namespace(asked=false) %}{% for m in messages %}"
    "<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{% if m.role == 'system' and tools %}Environment: ipython\n{% endif %}"
    "{% if m.role == 'user' and tools and not ns.asked %}{% set ns.asked = true %}"
    'Answer with a call of one of these functions, as {"name": its name, "parameters": an object}.\n\n'
    "{% for tool in tools %}{{ tool | tojson(indent=1) }}\n\n{% endfor %}{% endif %}"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
DEEPSEEK = (
    "<｜begin▁of▁sentence｜>{% for m in messages %}"
    "{% if m.role == 'system' %}{{ m.content }}"
    "{% if tools %}\n\n## Tools\n{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}{% endif %}"
    "{% elif m.role == 'user' %}<｜User｜>{{ m.content }}"
    "{% else %}<｜Assistant｜>{{ m.content }}<｜end▁of▁sentence｜>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<｜Assistant｜>{% endif %}"
)
KIMI = (
    "{% if tools %}<|im_system|>tool_declare<|im_middle|>{{ tools | tojson }}<|im_end|>{% endif %}"
    "{% for m in messages %}<|im_{{ m.role }}|>{{ m.role }}<|im_middle|>{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|>{% endif %}"
)


@dataclass(frozen=True)
class Maker:
    """An architecture as its makers ship it."""

    family: str
    template: str
    call: str
    """A call of a tool NAME with the JSON ARGUMENTS."""
    end: str
    """The token that ends a turn."""


HERMES_CALL = '<tool_call>\n{"name": "NAME", "arguments": ARGUMENTS}\n</tool_call>'
MAKERS = {
    "qwen2.5": Maker("qwen2", QWEN2, HERMES_CALL, "<|im_end|>"),
    "qwen3": Maker("qwen3", QWEN3, f"<think>\nHm.\n</think>\n\n{HERMES_CALL}", "<|im_end|>"),
    "llama3.1": Maker("llama", LLAMA31, '{"name": "NAME", "parameters": ARGUMENTS}', "<|eot_id|>"),
    "deepseek-v3": Maker(
        "deepseek-v3",
        DEEPSEEK,
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\nARGUMENTS\n```"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "<｜end▁of▁sentence｜>",
    ),
    "kimi-k2": Maker(
        "deepseek-v3",
        KIMI,
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>ARGUMENTS"
        "<|tool_call_end|><|tool_calls_section_end|>",
        "<|im_end|>",
    ),
}
SPECIAL = [
    *("<|im_start|>", "<|im_end|>", "<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>"),
    *("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    *("<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"),
]


class PaidByLength(gym.Wrapper[str, str, str, str]):
    """Adds to the mailbox's reward what a random model can earn."""

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        paid = 0.1 * (len(action) % 5)
        return observation, float(reward) + paid, terminated, truncated, {**info, "score_terms": {}}


def mailbox() -> gym.Env[str, str]:
    return PaidByLength(gym.make("art/Email-v0", difficulty=1, max_turns=2))


@cache
def core() -> str:
    """A tokenizer of words from the mailbox, as JSON: bytes alone would make the prompts long."""
    env = mailbox()
    texts = []
    for seed in range(4):
        observation, info = env.reset(seed=seed)
        texts += [observation, json.dumps(info["tools"])]
    env.close()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=900, initial_alphabet=alphabet, special_tokens=SPECIAL, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return str(tokenizer.to_str())


def tokenizer_of(maker: Maker) -> PreTrainedTokenizerFast:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(core()), eos_token=maker.end, clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = maker.template
    return tokenizer


def trainer_for(maker: Maker, folder: Path, lora: bool, seed: int = 0) -> GRPOTrainer:
    tokenizer = tokenizer_of(maker)
    model = tiny_model(maker.family, vocab_size=len(tokenizer), seed=0 if lora else seed)
    if lora:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = with_adapter(model, 2)
    policy = TransformersPolicy(model, tokenizer, sampling=SamplingParams(), max_context=4096)
    config = GRPOConfig(
        output_dir=str(folder), max_steps=2, save_steps=1, groups_per_step=2, num_generations=3,
        max_completion_length=6, learning_rate=1e-2, log_episodes=0, lr_scheduler_type="constant",
    )  # fmt: skip
    return GRPOTrainer(policy, mailbox, config)


def rows_of(groups: Sequence[Group]) -> list[Row]:
    return [
        Row.from_history(history, advantages_T=np.ones(3), weight=1.0, group=index)
        for index, group in enumerate(groups)
        for episode in group.episodes
        for history in episode.histories
    ]


def disagreement(trainer: GRPOTrainer, groups: Sequence[Group]) -> float:
    """The largest difference of a sampled log-prob between sampler and learner."""
    scorer = Scorer(trainer.policy.model)
    assert scorer.shares_prefixes
    worst = 0.0
    with torch.no_grad():
        for batch in pack(rows_of(groups), 8192, share=True, device=scorer.device):
            worst = max(worst, float((scorer.score(batch)[0] - batch.old_logprobs_N).abs().max()))
    return worst


def weights(trainer: GRPOTrainer) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in trainer.policy.model.named_parameters()}


def logged(folder: Path) -> list[dict[str, float]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [
        {key: value for key, value in json.loads(line).items() if not key.startswith(("time/", "tokens_per"))}
        for line in lines
    ]


@pytest.mark.parametrize("lora", [False, True], ids=["all-weights", "lora"])
@pytest.mark.parametrize("name", MAKERS)
def test_two_updates_on_the_mailbox_saved_reloaded_and_resumed(name: str, lora: bool, tmp_path: Path) -> None:
    trainer = trainer_for(MAKERS[name], tmp_path / "whole", lora)
    before = weights(trainer)
    errors: list[float] = []
    update = trainer.update_policy

    def checked(groups: Sequence[Group]) -> dict[str, float]:
        assert all(group.whole for group in groups)
        errors.append(disagreement(trainer, groups))
        return update(groups)

    trainer.update_policy = checked  # type: ignore[method-assign]
    trainer.train()
    trainer.close()
    after = weights(trainer)
    assert len(errors) == 2
    assert max(errors) < 5e-5
    trained = {name for name, p in trainer.policy.model.named_parameters() if p.requires_grad}
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved <= trained
    assert len(moved) > len(trained) / 2

    first, last = list_checkpoints(tmp_path / "whole" / "checkpoints")
    reloaded: Any
    if lora:
        below = tiny_model(MAKERS[name].family, vocab_size=len(trainer.policy.tokenizer))
        reloaded = PeftModel.from_pretrained(below, last / "model")
    else:
        reloaded = AutoModelForCausalLM.from_pretrained(last / "model")
    ids = torch.arange(5, 60)[None]
    with torch.no_grad():
        wanted, found = (
            trainer.policy.model.eval()(input_ids=ids).logits,
            reloaded.eval()(input_ids=ids).logits,
        )
    assert (found - wanted).abs().max() < 1e-6
    assert AutoTokenizer.from_pretrained(last / "model").chat_template == MAKERS[name].template

    resumed = trainer_for(MAKERS[name], tmp_path / "resumed", lora, seed=9)
    resumed.load_checkpoint(first)
    resumed.train()
    resumed.close()
    assert logged(tmp_path / "resumed") == logged(tmp_path / "whole")[1:]
    for key, value in weights(resumed).items():
        assert torch.equal(value, after[key]), key


@pytest.mark.parametrize("name", MAKERS)
def test_the_makers_tool_format_is_shown_understood_and_continued(name: str) -> None:
    maker = MAKERS[name]
    policy = TransformersPolicy(
        tiny_model(maker.family, vocab_size=len(tokenizer_of(maker))), tokenizer_of(maker), max_context=4096
    )
    assert policy.format.decode([policy.format.end_of_turn]) == maker.end
    env = mailbox()
    observation, info = env.reset(seed=1)
    tools = info["tools"]
    messages = [
        {"role": "system", "content": info["system"]},
        {"role": "user", "content": observation.removeprefix(info["system"]).strip()},
    ]
    prompt = policy.format.prompt(messages, tools)
    shown = policy.format.decode(prompt)
    assert all(f'"name": "{tool["function"]["name"]}"' in shown for tool in tools)
    reply = maker.call.replace("NAME", "search").replace("ARGUMENTS", '{"query": "meeting", "limit": 2}')
    seen, _, _, _, told = env.step(reply)
    env.close()
    assert told["call"] == {"name": "search", "arguments": {"query": "meeting", "limit": 2}}
    messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": seen}]
    glue = policy.format.continuation(messages, tools)
    if "</think>" in reply:
        assert glue is None  # what was thought is dropped: the next turn starts a history of its own
        assert "Hm." not in policy.format.decode(policy.format.prompt(messages, tools))
    else:
        assert glue is not None
        assert prompt + policy.format.reply(reply) + glue == policy.format.prompt(messages, tools)
