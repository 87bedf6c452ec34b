"""PPO in one file, as CleanRL writes it: torch, `gym.make_vec`, and nothing else.

python docs/examples/ppo_2048.py      # prints the mean score of finished games; about 20 CPU-seconds
"""

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

import art_gym  # noqa: F401 (registers the environments)

ENVS, STEPS, EPOCHS, BATCHES = 64, 32, 4, 4
GAMMA, LAMBDA, CLIP, ENTROPY, RATE, SCALE = 0.97, 0.95, 0.2, 0.01, 2e-3, 1 / 32


class Agent(nn.Module):
    """Logits of the four moves, illegal ones ruled out, and the state's value."""

    def __init__(self, cells: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(cells, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh())
        self.actor, self.critic = nn.Linear(128, 4), nn.Linear(128, 1)

    def forward(self, board: torch.Tensor, mask: torch.Tensor) -> tuple[Categorical, torch.Tensor]:
        """The policy and the value of boards, one a row."""
        hidden = self.body(board)
        logits = self.actor(hidden).masked_fill(~mask, -1e9)
        return Categorical(logits=logits), self.critic(hidden).squeeze(-1)


def train(updates: int = 60, seed: int = 1) -> list[float]:
    """Train on boards of 3 x 3; the mean score of the games that ended in each update."""
    torch.manual_seed(seed)
    options: dict[str, Any] = {"board_size": 3, "observation": "one_hot", "autoreset_mode": "SameStep"}
    envs = gym.make_vec("art/2048Array-v0", ENVS, vectorization_mode="vector_entry_point", **options)
    seen, infos = envs.reset(seed=seed)
    agent = Agent(seen[0].size)
    optimizer = torch.optim.Adam(agent.parameters(), RATE)
    scores = []
    for _ in range(updates):
        rows, ended = [], list[int]()
        for _ in range(STEPS):
            board = torch.as_tensor(seen, dtype=torch.float32).flatten(1)
            mask = torch.as_tensor(infos["action_mask"]).bool()
            with torch.no_grad():
                policy, value = agent(board, mask)
                action = policy.sample()
            seen, reward, terminated, truncated, infos = envs.step(action.numpy())
            done = torch.as_tensor(terminated | truncated).float()
            paid = torch.as_tensor(reward * SCALE).float()
            rows.append((board, mask, action, policy.log_prob(action), value, paid, done))
            if done.any():
                ended += infos["final_info"]["score"][infos["_final_info"]].tolist()
        boards, masks, actions, old, values, rewards, dones = map(torch.stack, zip(*rows, strict=True))
        with torch.no_grad():
            board = torch.as_tensor(seen, dtype=torch.float32).flatten(1)
            following, advantage = agent(board, torch.as_tensor(infos["action_mask"]).bool())[1], 0.0
            advantages = torch.zeros_like(values)
            for step in reversed(range(STEPS)):
                going = 1 - dones[step]
                error = rewards[step] + GAMMA * following * going - values[step]
                advantages[step] = advantage = error + GAMMA * LAMBDA * going * advantage
                following = values[step]
        targets = advantages + values
        data = [part.flatten(0, 1) for part in (boards, masks, actions, old, advantages, targets)]
        for _ in range(EPOCHS):
            for chosen in torch.randperm(len(data[0])).chunk(BATCHES):
                board, mask, action, before, gain, target = (part[chosen] for part in data)
                policy, value = agent(board, mask)
                ratio = (policy.log_prob(action) - before).exp()
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                surrogate = torch.min(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain).mean()
                loss = 0.5 * (value - target).square().mean() - surrogate - ENTROPY * policy.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
        scores.append(float(np.mean(ended)))
    return scores


if __name__ == "__main__":
    for update, score in enumerate(train()):
        print(f"update {update + 1}: mean score {score:.0f}")
