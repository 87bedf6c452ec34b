"""A server for agents, in a thread of its own beside the training that owns it."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from art_trainer.agent_server.app import Service, make_app
from art_trainer.agent_server.sessions import Session
from art_trainer.serving.agent_chat import AgentChat
from art_trainer.serving.live_sampler import LiveSampler
from art_trainer.transformers_policy import TransformersPolicy
from art_trainer.web.guard import Rules
from art_trainer.web.hosts import WILDCARDS, HostNames, in_url
from art_trainer.web.thread import ServerThread, listen


class AgentServer:
    """Answers OpenAI's chat API with a policy, one URL and one secret per episode; a context manager.

    Args:
        policy: Who answers. Nobody else may sample from its model at the same time.
        host: The address to listen on. Any other than this machine's own is open to the network it is in:
            the episodes' secrets are the only lock, and nothing is encrypted.
        port: The port; 0 takes a free one.
        allowed_hosts: More names that clients may address the server by, without ports.
        max_body_bytes: Largest body of a request.

    Raises:
        ValueError: Where ``host`` is no single address, or the policy's tokenizer cannot write a chat.
        OSError: Where the address cannot be listened on.

    Attributes:
        sampler: The thread that owns the model.
        url: Where the server is.
    """

    def __init__(
        self,
        policy: TransformersPolicy,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        allowed_hosts: Sequence[str] = (),
        max_body_bytes: int = 16 * 2**20,
    ) -> None:
        if host in WILDCARDS:
            raise ValueError(
                f"host is {host!r}, every address of this machine: name the one that the agents use, "
                "since it stands in their URLs"
            )
        self.policy = policy
        self._chat = AgentChat(policy.tokenizer)
        self._sessions: dict[str, Session] = {}
        listening = listen(host, port)
        self.url = f"http://{in_url(host)}:{listening.getsockname()[1]}"
        self.sampler = LiveSampler(policy)
        service = Service(self._sessions.get, policy.name, lambda: policy.version)
        rules = Rules(HostNames(host, allowed_hosts), max_body_bytes)
        self._thread = ServerThread(make_app(service, rules), listening, name="agent-server")
        self._thread.start()

    def open(self, rng_seed: int | Sequence[int] = 0) -> Session:
        """Begin an episode.

        Args:
            rng_seed: Seeds the policy's randomness; equal seeds and messages get equal replies.
        """
        seed = (rng_seed,) if isinstance(rng_seed, int) else tuple(rng_seed)
        session = Session(self.policy, self._chat, self.sampler, seed)
        self._sessions[session.id] = session
        return session

    def forget(self, session: Session) -> None:
        """End an episode and forget it: its URL answers no more."""
        session.close()
        self._sessions.pop(session.id, None)

    def base_url(self, session: Session) -> str:
        """What an OpenAI client takes as ``base_url``."""
        return f"{self.url}/episodes/{session.id}/v1"

    def close(self) -> None:
        """End all episodes and stop listening."""
        for session in list(self._sessions.values()):
            self.forget(session)
        self.sampler.close()
        self._thread.stop()

    def __enter__(self) -> AgentServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
