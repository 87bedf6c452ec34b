"""Does the model of somebody else's agent learn? Pydantic AI's loop on our mailbox, held out.

The agent is Pydantic AI's, unchanged, and asks by Anthropic's Messages API; its tools are those of
``art/Email-v0`` (difficulty 1), and the environment pays. The model is one that has imitated, such as the
checkpoint of step 5 of ``art-trainer train --recipe email-smollm2 --seed 0``. One line of JSON a seed:
success on held-out questions with its 95% interval, before and after, and the paired difference.

    python integrations/agents/learning_curve.py MODEL --seeds 3
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from pathlib import Path
from typing import Any

import torch
from anthropic import AsyncAnthropic
from pydantic_ai import Agent, Tool, UsageLimitExceeded, UsageLimits
from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider

from art_gym.servers.tool_episode import ToolEpisode
from art_trainer.config import GRPOConfig
from art_trainer.inference.sampling import SamplingParams
from art_trainer.inference.transformers_policy import TransformersPolicy
from art_trainer.models.loading import ModelOptions
from art_trainer.rollout.envs import env_maker
from art_trainer.rollout.evaluate import Evaluation, compare
from art_trainer.serving.agents import AgentBackend, AgentLimits
from art_trainer.serving.agents.environment import EnvTask, SeededTasks, episode_reward
from art_trainer.serving.agents.sessions import Reward
from art_trainer.training.run_setup import local_policy
from art_trainer.training.trainer import EVALUATION_SEED, GRPOTrainer

make_env = env_maker("art/Email-v0", {"difficulty": 1, "max_turns": 4})
shared = AsyncAnthropic(api_key="none", max_retries=0)


async def agent(base_url: str, api_key: str, task: EnvTask) -> Reward:
    """One attempt: Pydantic AI's own loop, at most five requests."""
    env = make_env()
    episode = ToolEpisode(env, seed=task.seed, options=task.options)

    def tool(function: dict[str, Any]) -> Tool:
        def call(**arguments: Any) -> str:
            return episode.call(function["name"], arguments).text

        about = function.get("description") or ""
        return Tool.from_schema(call, function["name"], about, function["parameters"])

    client = shared.with_options(base_url=base_url.removesuffix("/v1"), api_key=api_key)
    model = AnthropicModel("policy", provider=AnthropicProvider(anthropic_client=client))
    player = Agent(model, tools=[tool(function) for function in episode.tools], retries=0)
    with contextlib.suppress(UsageLimitExceeded, UnexpectedModelBehavior):  # the model's own fault
        await player.run(episode.observation, usage_limits=UsageLimits(request_limit=5))
    return episode_reward(episode.close())


def curve(model: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Evaluate, train, evaluate."""
    torch.manual_seed(seed)
    config = GRPOConfig(
        output_dir=str(options.output / f"seed-{seed}"), seed=seed, max_steps=options.steps, eval_steps=0,
        groups_per_step=options.groups, learning_rate=6e-5, lr_final_ratio=0.3, max_completion_length=32,
        tokens_per_microbatch=1536, save_steps=0, eval_temperature=1.0, eval_episodes=options.episodes,
    )  # fmt: skip
    policy: TransformersPolicy = local_policy(
        model, ModelOptions(), sampling=SamplingParams.for_training(config), max_batch=64
    )
    splits = [SeededTasks({"split": split}) for split in ("train", "test")]
    backend = AgentBackend(agent, splits[0], policy, eval_tasks=splits[1], limits=AgentLimits(600, 64))
    trainer = GRPOTrainer(policy, None, config, backend=backend)
    started = time.process_time()

    def evaluated() -> Evaluation:
        with policy.evaluating(config):
            return backend.evaluate(episodes=options.episodes, seed=seed + EVALUATION_SEED)

    before, rewards = evaluated(), []
    for _ in range(options.steps):
        metrics = trainer.update_policy(trainer.collect_episodes())
        rewards.append(round(metrics["reward"], 3))
        print(f"seed {seed} step {len(rewards)}: {metrics}", flush=True)
    after = evaluated()
    trainer.close()
    success = {"before": before.success, "after": after.success, "rise": compare(before, after).success}
    return {
        "seed": seed,
        **{name: [found.value, found.low, found.high] for name, found in success.items() if found},
        "rewards": rewards,
        "cpu_seconds": round(time.process_time() - started),
    }


def main() -> None:
    """Train each seed."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("model", help="a model that has imitated: a folder or a name")
    made.add_argument("--seeds", type=int, default=3)
    made.add_argument("--first-seed", type=int, default=0)
    made.add_argument("--steps", type=int, default=16)
    made.add_argument("--groups", type=int, default=8)
    made.add_argument("--episodes", type=int, default=192, help="held-out questions of an evaluation")
    made.add_argument("--output", type=Path, default=Path("runs/pydantic-ai"))
    options = made.parse_args()
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        print(json.dumps(curve(options.model, seed, options)), flush=True)


if __name__ == "__main__":
    main()
