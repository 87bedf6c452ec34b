"""Messages between a training server and its workers, version 1: strict, bounded pydantic models.

A worker opens a WebSocket at ``/ws/{client_id}`` and sends :class:`Hello`. Each message is one JSON object in
a text frame with a ``type``. Unknown fields, numbers that are not finite and sizes out of bounds are errors.
``docs/protocol.md`` documents the protocol for authors of workers; its tables are generated from this module.
"""

from __future__ import annotations

import base64
import binascii
import math
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError, PydanticKnownError

from art_trainer.inference.sampling import SamplingParams
from art_trainer.tracking.episode_schema import episode_from_json, episode_to_line
from art_trainer.types import Episode, GroupSpec

PROTOCOL_VERSION = 1
CLIENT_ID = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
"""Names of workers; they are part of a path."""
MAX_LEASES = 4096
"""Most leases in one message."""
MAX_MESSAGE_BYTES = 16 * 2**20
"""Largest message in either direction, by default."""
_LOGPROBS = (-1e4, 1e-3)
"""Range of log-probabilities; rounding may leave one a little above 0."""

Short = Annotated[str, Field(max_length=2_000)]
Token = Annotated[str, Field(max_length=200)]
Count = Annotated[int, Field(ge=0, le=2**31)]
Version = Annotated[int, Field(ge=0, le=2**53)]
Bytes = Annotated[int, Field(ge=0, le=2**53)]
LeaseIds = Annotated[list[Token], Field(max_length=MAX_LEASES)]
Real = Annotated[float, Field(ge=-1e30, le=1e30)]
"""A number of which many can be summed in float32."""
Reals = Annotated[dict[Short, Real], Field(max_length=1_000)]
_Message = TypeVar("_Message")


def _finite(value: JsonValue) -> JsonValue:
    """Reject numbers inside free-form JSON that are not finite; ``allow_inf_nan`` does not look there."""
    left = [value]
    while left:
        match left.pop():
            case float(number) if not math.isfinite(number):
                raise PydanticKnownError("finite_number")
            case dict(members):
                left += members.values()
            case list(members):
                left += members
    return value


def _float32_base64(text: str) -> str:
    try:
        values = np.frombuffer(base64.b64decode(text, validate=True), "<f4")
    except (binascii.Error, ValueError):
        raise PydanticCustomError("logprobs", "Input should be base64 of little-endian float32") from None
    low, high = _LOGPROBS
    if not np.all((values >= low) & (values <= high)):
        raise PydanticCustomError("logprobs", "Log-probabilities should be finite, from -1e4 to 1e-3")
    return text


Json = Annotated[JsonValue, AfterValidator(_finite)]
"""Any JSON with finite numbers: Python's own parser would accept ``NaN`` and ``1e999``."""
Float32s = Annotated[str, AfterValidator(_float32_base64)]


class Message(BaseModel):
    """Base of all models: no unknown fields, no conversions, finite numbers."""

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


# ----------------------------------------------------------------------
# An episode; the JSON is that of the episode store (art_trainer.tracking.episode_store).


class SpanData(Message):
    """Consecutive tokens of one origin: read by the policy, or sampled in one turn."""

    turn: Count | None
    """The turn that sampled the tokens, from 0; ``null`` for prompts and observations."""
    version: Version
    """Version of the weights that sampled or read them."""
    tokens: list[Annotated[int, Field(ge=0, le=2**31)]]
    """Token ids as they were read or sampled; never encoded again from text."""
    logprobs: Float32s = ""
    """Log-probability of each sampled token under the distribution it was sampled from: little-endian
    float32 values in base64. Empty for tokens that were read."""


class TurnData(Message):
    """A reply and the environment's answer."""

    reply: str
    """The policy's text."""
    observation: str
    """The environment's answer."""
    reward: Real
    """Reward of the reply."""
    score_terms: Reals
    """Named parts of the reward."""
    call: dict[str, Json] | None
    """The parsed tool call, ``{"name": …, "arguments": {…}}``."""
    error: dict[str, Json] | None
    """Why the reply was invalid, ``{"kind": …, "message": …}``; ``null`` if it was valid."""
    cut: bool
    """Whether the reply reached its token limit."""
    state: str | None
    """A digest of the environment's state before the reply, if the run records states; else ``null``."""


class EpisodeData(Message):
    """One attempt at one task."""

    env_id: Short
    """The environment's id."""
    task_id: Short
    """The task's name; the same in all episodes of a group."""
    seed: Version
    """The lease's seed."""
    observation: str
    """The first observation."""
    turns: list[TurnData]
    """Turns in order."""
    histories: list[list[SpanData]]
    """Token histories, each a list of spans in order. Usually one; several if a chat template rewrites
    earlier messages."""
    ending: Literal["terminated", "truncated", "context_full", "env_error", "policy_error"]
    """``terminated``: the environment ended it. ``truncated``: turn limit. ``context_full``: no room for the
    next observation and reply. ``env_error`` and ``policy_error`` are faults described in ``error``."""
    success: bool | None
    """Whether the task was solved, if the environment says so."""
    metrics: Reals
    """Numbers the environment reported at the end."""
    error: str | None
    """Description of the fault."""
    tools: list[dict[str, Json]]
    """Schemas of the policy's tools, as in OpenAI's API."""
    facts: dict[str, Json]
    """What the environment reported for judges at the end."""
    judgements: dict[str, Json] = Field(max_length=0)
    """Empty: the server judges."""
    independent_reward: None
    """``null``, likewise."""
    unjudged: None
    """``null``, likewise."""

    @classmethod
    def of(cls, episode: Episode) -> EpisodeData:
        """Convert an episode for the wire."""
        return cls.model_validate_json(episode_to_line(episode, {}))

    def episode(self) -> Episode:
        """Convert back.

        Raises:
            ValueError: If the parts contradict each other.
        """
        return episode_from_json(self.model_dump())


# ----------------------------------------------------------------------
# From the worker.


class Hello(Message):
    """The first message of a connection."""

    type: Literal["hello"] = "hello"
    protocol: int
    """The worker's protocol version: 1."""
    secret: Token | None = None
    """From the ``welcome`` of an earlier connection; needed to reuse its name and leases."""
    software: dict[Token, Short] = Field(default_factory=dict, max_length=50)
    """Names and versions, shown on the dashboard."""
    leases: LeaseIds = Field(default_factory=list)
    """Leases of an earlier connection that the worker still holds."""


class LeaseRequest(Message):
    """A request for work, answered by one ``train_episodes`` as soon as there is work."""

    type: Literal["lease_request"] = "lease_request"
    count: Annotated[int, Field(ge=1, le=MAX_LEASES)]
    """Most leases to grant. A later request replaces an unanswered one."""


class EpisodeResult(Message):
    """A finished episode of a lease."""

    type: Literal["episode_result"] = "episode_result"
    lease: Token
    """The lease's id."""
    token: Token
    """The lease's secret."""
    episode: EpisodeData
    """The episode."""


class ReleaseLeases(Message):
    """Return leases without a result."""

    type: Literal["release_leases"] = "release_leases"
    leases: LeaseIds
    """Their ids; leases of other workers are ignored."""
    reason: Short
    """A description for people."""
    failed: bool
    """Whether the episode was tried and failed; ``false`` if the worker only stops."""


class StatusUpdate(Message):
    """A heartbeat: renews the listed leases."""

    type: Literal["status_update"] = "status_update"
    leases: LeaseIds
    """The leases the worker works on."""
    policy_version: Version | None
    """Version of its weights; ``null``: none yet."""
    episodes_played: Count
    """Episodes since the worker started."""
    episodes_per_second: Annotated[float, Field(ge=0)]
    """Over the last minute."""
    last_error: Short | None = None
    """The worker's last error."""


# ----------------------------------------------------------------------
# From the server.


class RunSpec(Message):
    """What a worker needs to play as the server itself would."""

    env: str
    """The environment's id."""
    env_args: dict[str, Json]
    """Arguments of the environment."""
    sampling: SamplingParams
    """How replies are sampled."""
    record_states: bool
    """Whether turns record the environment's state."""
    history_window: int | None
    """How many turns the policy sees, the present one included; ``null``: all."""
    max_context: int | None
    """Most tokens of a context with its reply; ``null``: the model's limit."""
    dtype: str
    """PyTorch's name of the weights' type: ``float32``."""


class Welcome(Message):
    """The answer to ``hello``."""

    type: Literal["welcome"] = "welcome"
    protocol: int
    """The server's protocol version: 1."""
    secret: Token
    """Proves the worker's name; send it in the next ``hello``."""
    run: RunSpec
    """What is played. A worker that reconnects to a different run must start again."""
    policy_version: Version
    """The newest weights."""
    heartbeat_seconds: float
    """Send ``status_update`` at least this often."""
    lease_seconds: float
    """A lease that is not renewed for this long is given to another worker."""
    leases: LeaseIds
    """The leases of ``hello`` that still belong to this worker."""


class Lease(Message):
    """The right to play one episode for a limited time."""

    lease: Token
    """The lease's id."""
    token: Token
    """The lease's secret; part of the result."""
    seed: Version
    """For the environment's ``reset``."""
    options: dict[str, Json] | None
    """For the environment's ``reset``."""
    group: Token
    """Leases of one group have the same prompt."""
    rng_seed: list[int]
    """Seeds the policy's randomness, so that attempts of a group differ."""
    lease_seconds: float
    """How long the lease lasts unless it is renewed."""

    @classmethod
    def of(cls, lease_id: str, token: str, task: GroupSpec, member: int, seconds: float) -> Lease:
        """Lease one attempt of a group."""
        options = None if task.options is None else dict(task.options)
        return cls(
            lease=lease_id,
            token=token,
            seed=task.seed,
            options=options,
            group=task.id,
            rng_seed=[*task.rng_seed, member],
            lease_seconds=seconds,
        )


class TrainEpisodes(Message):
    """Episodes to play with weights of this version or a newer one."""

    type: Literal["train_episodes"] = "train_episodes"
    policy_version: Version
    """The newest weights when the leases were granted."""
    leases: Annotated[list[Lease], Field(max_length=MAX_LEASES)]
    """At least one, at most as many as requested."""


Outcome = Literal["accepted", "duplicate", "late", "unknown", "wrong_client", "bad_token", "stale", "invalid"]
"""What became of a result. ``duplicate``: the lease already has one. ``late``: the lease expired and the
attempt is taken or done. ``unknown``: no such lease. ``wrong_client``: another worker's lease. ``bad_token``:
not the lease's token. ``stale``: sampled by weights that are too old. ``invalid``: not the leased episode."""


class ResultReceipt(Message):
    """What became of a result."""

    type: Literal["result_receipt"] = "result_receipt"
    lease: Token
    """The result's lease."""
    outcome: Outcome
    """``accepted``: the result counts and is on disk. Any other: it is dropped; do not send it again."""
    reason: Short = ""
    """A description, if it was not accepted."""


class UpdateModel(Message):
    """Newer weights are available."""

    type: Literal["update_model"] = "update_model"
    policy_version: Version
    """Their version."""


class ErrorMessage(Message):
    """What was wrong with a message."""

    type: Literal["error"] = "error"
    code: Token
    """A short name of the error."""
    message: Short
    """A description."""
    fatal: bool = False
    """Whether the server closes the socket now."""


class Shutdown(Message):
    """Stop playing."""

    type: Literal["shutdown"] = "shutdown"
    reason: Short
    """A description for people."""


class FileEntry(Message):
    """A file that workers fetch."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
    """A plain file name."""
    size: Bytes
    """Size in bytes."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """Hash of the content."""


class PromptTurn(Message):
    """A sampled reply, and what the environment answered."""

    tokens: Annotated[list[Annotated[int, Field(ge=0, le=2**31)]], Field(min_length=1)]
    """The reply's token ids as they were sampled, the end token included."""
    observation: str
    """The environment's answer."""


class PromptRequest(Message):
    """The body of ``POST /prompt``: an episode so far, to be made into the policy's next prompt."""

    observation: str
    """The first observation."""
    system: str = ""
    """The instructions that it begins with, before an empty line, if the environment says so: the ``system``
    of its ``info``. They become the system message if the model has one."""
    tools: list[dict[str, Json]] = Field(default_factory=list)
    """Schemas of the policy's tools, as in OpenAI's API: the ``tools`` of the environment's ``info``."""
    turns: list[PromptTurn] = Field(default_factory=list)
    """The turns until now."""


class Prompt(Message):
    """The answer of ``POST /prompt``: what to read before the next reply."""

    tokens: list[int]
    """Token ids that follow the context so far; the episode's next span."""
    restarted: bool
    """Whether they are the whole context instead, and begin a new history: always at the first turn, and
    where the chat template rewrites earlier messages or the history window moves on."""
    full: bool
    """Whether a reply would not fit behind them: the episode ends with ``context_full``."""


class ModelManifest(Message):
    """The answer of ``GET /model``: files of a Hugging Face folder, each at ``/model/{name}``."""

    files: Annotated[list[FileEntry], Field(max_length=1000)]
    """Configuration, tokenizer and the weights that training does not change."""


class WeightManifest(Message):
    """The answer of ``GET /weights/{version}``; the file is at ``/weights/{version}/data``."""

    policy_version: Version
    """As in the address."""
    kind: Literal["full", "adapter"]
    """Whether the file holds all weights or only a PEFT adapter's."""
    file: FileEntry
    """A safetensors file."""


ClientMessage = Annotated[
    Hello | LeaseRequest | EpisodeResult | ReleaseLeases | StatusUpdate, Field(discriminator="type")
]
ServerMessage = Annotated[
    Welcome | TrainEpisodes | ResultReceipt | UpdateModel | ErrorMessage | Shutdown,
    Field(discriminator="type"),
]
FROM_CLIENT: TypeAdapter[ClientMessage] = TypeAdapter(ClientMessage)
FROM_SERVER: TypeAdapter[ServerMessage] = TypeAdapter(ServerMessage)


class MessageError(ValueError):
    """An invalid message; says where and why without repeating its content."""


def read_message(sender: TypeAdapter[_Message], text: str | bytes) -> _Message:
    """Parse a message of ``FROM_CLIENT`` or ``FROM_SERVER``.

    Raises:
        MessageError: If it is invalid.
    """
    try:
        return sender.validate_json(text)
    except ValidationError as error:
        raise MessageError(describe_invalid(error)) from None


def describe_invalid(error: ValidationError) -> str:
    """Return the place and kind of the first error, without the input's content."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'the message'}: {first['msg']}"


# ----------------------------------------------------------------------
# Status of a server, at /status and on its dashboard.

State = Literal["starting", "evaluating", "training", "starved", "draining", "finished", "failed"]
"""``starved``: there is work, but no worker is connected."""


class ClientStatus(Message):
    """A known worker."""

    id: str
    """Its name."""
    connected: bool
    """Whether it is connected."""
    policy_version: int | None
    """Version of its weights in its last heartbeat; ``null``: none yet."""
    leases: int
    """How many leases it holds."""
    episodes_played: int
    """From its last heartbeat."""
    episodes_per_second: float
    """From its last heartbeat."""
    last_seen_seconds: float
    """Seconds since its last message, on the server's clock."""
    last_error: str | None
    """Its last error."""
    software: dict[str, str]
    """Names and versions."""


class QueueStatus(Message):
    """Counts of the requested episodes."""

    waiting: int
    """Not leased."""
    leased: int
    """Leased."""
    finished: int
    """Played, not yet taken by the trainer."""
    groups_waiting: int
    """Groups with at least one unplayed episode."""


class LeaseStatus(Message):
    """A current lease."""

    lease: str
    """Its id."""
    client: str
    """The worker."""
    group: str
    """Its group's id."""
    attempt: int
    """How often the episode has been leased, this time included."""
    seconds_left: float
    """Until it expires unless it is renewed."""


class ServerStatus(Message):
    """Status of a training server."""

    state: State
    """``starved``: there is work, but no worker. ``draining``: no more work is given out."""
    run: str
    """Name of the run's folder."""
    env: str
    """The environment's id."""
    step: int
    """Finished training steps."""
    max_steps: int
    """Training steps in total."""
    policy_version: int
    """The newest weights."""
    uptime_seconds: float
    """Since the server started."""
    seconds_left: float | None
    """Estimated time to the last step; ``null`` if unknown."""
    clients: list[ClientStatus]
    """All known workers by name."""
    queue: QueueStatus
    """Episodes by state."""
    leases: list[LeaseStatus]
    """The hundred leases that expire first."""
    results: dict[str, int]
    """Results by outcome, and leases by how they ended: ``expired``, ``released``, ``failed``."""


# ----------------------------------------------------------------------
# Limits of a server.


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on the size, rate and duration of what clients send.

    Attributes:
        message_bytes: Largest message of a socket; an episode is one.
        body_bytes: Largest request body.
        connections: Most connections at one time.
        sockets: Most WebSockets among them.
        clients: Most workers that are remembered; disconnected ones are forgotten first.
        requests_per_second: Requests from one address, opened sockets included.
        burst: As many may come at once.
        messages_per_second: Messages of one socket; faster ones wait.
        malformed: Invalid messages after which the socket is closed.
        queued_messages: Most messages queued for a client that does not read; then the socket is closed.
        send_seconds: Longest that a client may take to read a message.
        hello_seconds: Longest until a socket's first message.
        head_seconds: Longest until a request's headers arrive.
        body_seconds: Longest until its body arrives.
        ping_seconds: Interval of pings, and the time to answer one.
    """

    message_bytes: int = MAX_MESSAGE_BYTES
    body_bytes: int = 16 * 2**20
    connections: int = 2048
    sockets: int = 1024
    clients: int = 4096
    requests_per_second: float = 500.0
    burst: int = 1000
    messages_per_second: float = 500.0
    malformed: int = 10
    queued_messages: int = 256
    send_seconds: float = 30.0
    hello_seconds: float = 10.0
    head_seconds: float = 20.0
    body_seconds: float = 60.0
    ping_seconds: float = 20.0
