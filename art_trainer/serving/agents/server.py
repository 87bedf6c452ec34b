"""HTTP server for agents: OpenAI's and Anthropic's APIs, with a URL and a secret token for each episode."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, ClassVar

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse

from art_gym.closing import CloseOnExit
from art_trainer.inference.transformers_policy import TransformersPolicy
from art_trainer.serving.agents.sessions import Reward, Session
from art_trainer.serving.dialects.batch_scheduler import BatchScheduler
from art_trainer.serving.dialects.chat import AgentChat
from art_trainer.serving.dialects.chat_completions import ChatRequest, ChatWriter
from art_trainer.serving.dialects.conversation import ConversationRequest
from art_trainer.serving.dialects.requests import parse, read_json_body
from art_trainer.serving.dialects.router import CONVERSATIONS, model_list, token_count
from art_trainer.serving.dialects.streams import respond
from art_trainer.serving.dialects.writers import ResponseWriter
from art_trainer.serving.http.middleware import (
    WILDCARDS,
    AccessPolicy,
    ApiError,
    HostNames,
    has_token,
)
from art_trainer.serving.http.server import ServerThread, create_app

_MAX_BODY_BYTES = 16 * 2**20
_ROUTES = APIRouter(prefix="/episodes/{episode}")


class AgentChatRequest(ChatRequest):
    """An agent's request for a chat completion.

    ``temperature``, ``top_p`` and the other sampling fields are checked but have no effect: an episode must
    be sampled with the training run's own parameters.
    """

    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {
        **ChatRequest.unsupported,
        "n": (1,),
        "top_logprobs": (0,),
        "chat_template_kwargs": ({},),
        "reasoning_effort": (),
    }


_DIALECTS: dict[str, tuple[type[ConversationRequest], type[ResponseWriter]]] = {
    **CONVERSATIONS,
    "/chat/completions": (AgentChatRequest, ChatWriter),
}


class AgentServer(CloseOnExit):
    """Answers OpenAI's and Anthropic's APIs, with a URL and a token for each episode; a context manager.

    Args:
        policy: Answers the requests. Nobody else may sample from its model at the same time.
        host: The address to listen on. If it is not a loopback address, everybody in its network can connect;
            the episodes' tokens are the only protection, and nothing is encrypted.
        port: The port; 0 for a free one.
        allowed_hosts: Other names of this server, without ports.

    Raises:
        ValueError: ``host`` is not a single address, or the policy's tokenizer has no chat template.
        ConfigError: The address cannot be used.

    Attributes:
        chat: Turns messages into tokens.
        scheduler: Samples the replies.
        url: The server's URL.
    """

    def __init__(
        self,
        policy: TransformersPolicy,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        allowed_hosts: Sequence[str] = (),
    ) -> None:
        if host in WILDCARDS:
            raise ValueError(
                f"host is {host!r}, every address of this machine: name the one that the agents use, "
                "since it is part of their URLs"
            )
        self.policy = policy
        self.chat = AgentChat(policy.tokenizer, policy.max_context)
        self._sessions: dict[str, Session] = {}
        access = AccessPolicy(HostNames(host, allowed_hosts), _MAX_BODY_BYTES)
        paths = ", ".join(f"/v1{path}" for path in _DIALECTS)
        app = create_app(access, f"{paths}, /v1/models and /reward of each episode")
        app.state.server = self
        app.include_router(_ROUTES)
        self._thread = ServerThread(app, host, port, name="agent-server")
        self.url = self._thread.url
        self.scheduler = BatchScheduler(policy)

    def open(self, rng_seed: int | Sequence[int] = 0, *, takes_reward: bool = True) -> Session:
        """Start an episode.

        Args:
            rng_seed: Seeds the policy's randomness; equal seeds and messages get equal replies.
            takes_reward: Whether whoever has the episode's token may post its reward.
        """
        session = Session(self.policy, self.chat, self.scheduler, rng_seed, takes_reward=takes_reward)
        self._sessions[session.id] = session
        return session

    def forget(self, session: Session) -> None:
        """End an episode; its URL then answers with status 401."""
        session.close()
        self._sessions.pop(session.id, None)

    def base_url(self, session: Session) -> str:
        """The ``base_url`` of an OpenAI client."""
        return f"{self.url}/episodes/{session.id}/v1"

    def close(self) -> None:
        """End all episodes and stop listening."""
        for session in list(self._sessions.values()):
            self.forget(session)
        self.scheduler.close()
        self._thread.stop()


async def _find_session(episode: str, request: Request) -> Session:
    server: AgentServer = request.app.state.server
    session = server._sessions.get(episode)
    if session is None or not has_token(request.headers, session.token):
        message = "no such episode, or not its token: send the episode's own token as the API key"
        raise ApiError(message, "invalid_api_key")
    return session


Episode = Annotated[Session, Depends(_find_session)]


@_ROUTES.post("/v1/messages/count_tokens")
async def count_tokens(session: Episode, request: Request) -> Response:
    """Answer with the number of a prompt's tokens."""
    return await token_count(request, request.app.state.server.chat)


def _endpoint(
    dialect: type[ConversationRequest], writer: type[ResponseWriter]
) -> Callable[..., Awaitable[Response]]:
    async def converse(session: Episode, request: Request) -> Response:
        body = await read_json_body(request)
        exchange = await session.exchange(
            parse(dialect, body, session.stored),
            writer,
            body=body,
            retry=request.headers.get("x-stainless-retry-count", "0") not in ("", "0"),
            key=request.headers.get("idempotency-key", ""),
        )
        exchange.clients += 1
        return await respond(request, exchange, exchange.make_writer())

    return converse


for _path, _dialect in _DIALECTS.items():
    _ROUTES.add_api_route(f"/v1{_path}", _endpoint(*_dialect), methods=["POST"])


@_ROUTES.get("/v1/models")
@_ROUTES.get("/v1/models/")
async def list_models(session: Episode, request: Request) -> Response:
    """List the models."""
    policy = request.app.state.server.policy
    return JSONResponse(model_list(policy.name, [policy.version]))


@_ROUTES.get("/v1/models/{model:path}")
async def retrieve_model(session: Episode, model: str) -> Response:
    """Describe the policy, whatever the model's name: requests may name any, too."""
    return JSONResponse(model_list(model, [])["data"][0])


@_ROUTES.get("/conversations")
async def list_conversations(session: Episode) -> Response:
    """What was said so far, for a program that computes the reward from it."""
    return JSONResponse({"conversations": session.recording.conversations()})


@_ROUTES.post("/reward")
async def post_reward(session: Episode, request: Request) -> Response:
    """Set the episode's reward, which ends it."""
    if not session.takes_reward:
        message = "whoever runs the agent computes this episode's reward: none can be posted"
        raise ApiError(message, "reward_refused")
    reward = parse(Reward, await read_json_body(request))
    session.set_reward(reward)
    return JSONResponse({"episode": session.id, "reward": reward.reward})
