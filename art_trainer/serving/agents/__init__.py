"""Training agents whose loop is somebody else's code: it talks to the policy over OpenAI's API.

What the policy says is recorded at the server, token by token; see
:mod:`art_trainer.serving.agents.rollouts`.
"""

from art_trainer.serving.agents.rollouts import AgentBackend, AgentLimits, run_agents
from art_trainer.serving.agents.server import AgentServer
from art_trainer.serving.agents.sessions import Outcome

__all__ = ["AgentBackend", "AgentLimits", "AgentServer", "Outcome", "run_agents"]
