"""Training agents whose loop is somebody else's code: it talks to the policy over OpenAI's API.

What the policy says is recorded at the server, token by token; see :mod:`art_trainer.agent_server.rollouts`.
"""

from art_trainer.agent_server.rollouts import AgentLimits, AgentRollouts, run_agents
from art_trainer.agent_server.server import AgentServer
from art_trainer.agent_server.sessions import Outcome

__all__ = ["AgentLimits", "AgentRollouts", "AgentServer", "Outcome", "run_agents"]
