"""The words of the protocol between a training server and its workers, version 1.

A worker opens a WebSocket at ``/ws/{client_id}`` and says :class:`Hello`; each message is one JSON object in
a text frame, told apart by its ``type``. Nothing else is understood: a message is read strictly, with known
fields alone, numbers that are finite, and sizes that are bounded.

====================  =======================================================================
From the worker       What it means
====================  =======================================================================
``hello``             Who I am, what I can take; a secret where I have been here before.
``lease_request``     Give me so many episodes, when there are any.
``episode_result``    An episode that was leased to me, played.
``release_leases``    Episodes that I give back, with the reason.
``status_update``     I am alive and still at work on these leases.
====================  =======================================================================

====================  =======================================================================
From the server       What it means
====================  =======================================================================
``welcome``           Your secret, the run, how often to say that you are alive.
``train_episodes``    Leases: play these with the weights of this version.
``result_receipt``    What became of a result; after ``accepted`` it is on disk.
``update_model``      There are newer weights; fetch them from ``/weights/{version}``.
``error``             What was wrong with your message; the socket stays open unless it is fatal.
``shutdown``          Training is over, or the server stops: play no more.
====================  =======================================================================
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError

from art_trainer.episodes import Episode
from art_trainer.starts import GroupTask
from art_trainer.timings import EpisodeTiming, TurnTiming

PROTOCOL_VERSION = 1
CLIENT_ID = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
"""What a worker may be called: it stands in a path."""
MAX_LEASES = 4096
"""Most leases one message may name."""

ClientId = Annotated[str, Field(pattern=CLIENT_ID)]
Short = Annotated[str, Field(max_length=2_000)]
Token = Annotated[str, Field(max_length=200)]
Count = Annotated[int, Field(ge=0, le=2**31)]
Version = Annotated[int, Field(ge=0, le=2**53)]
Bytes = Annotated[int, Field(ge=0, le=2**53)]
LeaseIds = Annotated[list[Token], Field(max_length=MAX_LEASES)]


class Message(BaseModel):
    """Read strictly: no other fields, no conversions, finite numbers."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class Hello(Message):
    """The first message of a connection."""

    type: Literal["hello"] = "hello"
    protocol: int
    secret: Token | None = None
    """From the ``welcome`` of an earlier connection: who has it may go on with that connection's leases."""
    software: dict[Token, Short] = Field(default_factory=dict, max_length=50)
    """Names and versions, for whoever looks at the dashboard."""
    leases: LeaseIds = Field(default_factory=list)
    """Leases of an earlier connection that are still being played."""


class LeaseRequest(Message):
    """A worker has room; the answer is one ``train_episodes``, as soon as there is work."""

    type: Literal["lease_request"] = "lease_request"
    count: Annotated[int, Field(ge=1, le=MAX_LEASES)]


class SpanData(Message):
    """See :class:`art_trainer.episodes.Span`."""

    token_ids: list[Annotated[int, Field(ge=0, le=2**31)]]
    turn: Count | None
    logprobs: list[Annotated[float, Field(le=1e-3)]]
    policy_version: Version


class HistoryData(Message):
    """See :class:`art_trainer.episodes.TokenHistory`."""

    spans: list[SpanData]


class TurnData(Message):
    """See :class:`art_trainer.episodes.Turn`."""

    reply: str
    observation: str
    reward: float
    score_terms: dict[str, float]
    call: dict[str, JsonValue] | None
    error: dict[str, JsonValue] | None
    cut: bool
    state: str | None


class EpisodeData(Message):
    """See :class:`art_trainer.episodes.Episode`; a judge's words are the server's own."""

    env_id: Short
    task_id: Short
    seed: Version
    observation: str
    turns: list[TurnData]
    histories: list[HistoryData]
    ending: Literal["terminated", "truncated", "context_full", "env_error", "policy_error"]
    success: bool | None
    metrics: dict[str, float]
    error: str | None
    tools: list[dict[str, JsonValue]]
    facts: dict[str, JsonValue]
    judgements: dict[str, JsonValue] = Field(max_length=0)
    independent_reward: None
    unjudged: None

    @classmethod
    def of(cls, episode: Episode) -> EpisodeData:
        """An episode for the wire."""
        return cls.model_validate_json(_JSON.dump_json(episode.to_json()))

    def episode(self) -> Episode:
        """The episode.

        Raises:
            ValueError: Where its parts contradict each other.
        """
        return Episode.from_json(self.model_dump(mode="json"))


class TimingData(Message):
    """See :class:`art_trainer.timings.EpisodeTiming`; for people to look at, never for deadlines."""

    started: float
    turns: list[tuple[float | None, float | None]]
    """Seconds of each turn's reply and action."""

    @classmethod
    def of(cls, timing: EpisodeTiming) -> TimingData:
        """A timing for the wire."""
        turns = [(turn.reply_seconds, turn.action_seconds) for turn in timing.turns]
        return cls(started=timing.started, turns=turns)

    def timing(self) -> EpisodeTiming:
        """The timing."""
        return EpisodeTiming(self.started, tuple(TurnTiming(*turn) for turn in self.turns))


class EpisodeResult(Message):
    """A leased episode, played."""

    type: Literal["episode_result"] = "episode_result"
    lease: Token
    token: Token
    """The lease's own secret."""
    episode: EpisodeData
    timing: TimingData | None = None


class ReleaseLeases(Message):
    """Leases that are given back unplayed."""

    type: Literal["release_leases"] = "release_leases"
    leases: LeaseIds
    reason: Short
    failed: bool
    """Whether playing was tried and went wrong; otherwise the worker only stops."""


class StatusUpdate(Message):
    """A worker is alive; its leases' deadlines move on."""

    type: Literal["status_update"] = "status_update"
    leases: LeaseIds
    """The leases it is at work on."""
    policy_version: Version | None
    """Of the weights it plays with; ``None``: of none yet."""
    episodes_played: Count
    episodes_per_second: Annotated[float, Field(ge=0)]
    last_error: Short | None = None


class Sampling(Message):
    """See :class:`art_trainer.sampler.SamplingParams`."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    stop_strings: list[str]
    stop_token_ids: list[int] = Field(default_factory=list)
    max_new_tokens: int


class RunDescription(Message):
    """What a worker must know to play as the server itself would."""

    env: str
    """The environment's id."""
    env_args: dict[str, JsonValue]
    sampling: Sampling
    record_states: bool
    """Whether turns note the environment's state."""
    history_window: int | None
    max_context: int | None
    dtype: str
    """Of the weights, as PyTorch names it: ``float32``."""


class Welcome(Message):
    """The answer to ``hello``."""

    type: Literal["welcome"] = "welcome"
    protocol: int
    secret: Token
    """Belongs to the client's id: to be said in the next ``hello``."""
    run: RunDescription
    policy_version: Version
    heartbeat_seconds: float
    """Say ``status_update`` at least this often."""
    lease_seconds: float
    """A lease that is not renewed for so long is given to someone else."""
    leases: LeaseIds
    """Those of ``hello`` that are still this client's."""


class Lease(Message):
    """The right to play one episode, for a time."""

    lease: Token
    token: Token
    seed: Version
    options: dict[str, JsonValue] | None
    group: Token
    """Leases with the same have the same prompt."""
    rng_seed: list[int]
    lease_seconds: float

    @classmethod
    def of(cls, lease_id: str, token: str, task: GroupTask, member: int, seconds: float) -> Lease:
        """A lease of a task's attempt."""
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
    """Episodes to play, with weights of this version or newer."""

    type: Literal["train_episodes"] = "train_episodes"
    policy_version: Version
    leases: Annotated[list[Lease], Field(max_length=MAX_LEASES)]


Outcome = Literal["accepted", "duplicate", "late", "unknown", "foreign", "forged", "stale", "invalid"]
"""What became of a result. ``duplicate``: the lease has one already. ``late``: it is someone else's now, or
done. ``unknown``: no such lease. ``foreign``: another client's. ``forged``: not the lease's token. ``stale``:
sampled by weights that are too old. ``invalid``: not the episode that was leased."""


class ResultReceipt(Message):
    """What became of a result."""

    type: Literal["result_receipt"] = "result_receipt"
    lease: Token
    outcome: Outcome
    reason: Short = ""


class UpdateModel(Message):
    """There are newer weights."""

    type: Literal["update_model"] = "update_model"
    policy_version: Version


class ErrorMessage(Message):
    """What was wrong with a message, and where."""

    type: Literal["error"] = "error"
    code: Token
    message: Short
    fatal: bool = False


class Shutdown(Message):
    """Play no more."""

    type: Literal["shutdown"] = "shutdown"
    reason: Short


class FileEntry(Message):
    """A file that a worker fetches."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
    size: Bytes
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class ModelManifest(Message):
    """The answer of ``GET /model``: the files of a Hugging Face folder, each at ``/model/{name}``."""

    files: Annotated[list[FileEntry], Field(max_length=1000)]


class WeightManifest(Message):
    """The answer of ``GET /weights/{version}``; the file itself is at ``/weights/{version}/data``."""

    policy_version: Version
    kind: Literal["full", "adapter"]
    """Whether the file holds all weights or those of a PEFT adapter alone."""
    file: FileEntry
    """Tensors in safetensors' format."""


ClientMessage = Annotated[
    Hello | LeaseRequest | EpisodeResult | ReleaseLeases | StatusUpdate, Field(discriminator="type")
]
ServerMessage = Annotated[
    Welcome | TrainEpisodes | ResultReceipt | UpdateModel | ErrorMessage | Shutdown,
    Field(discriminator="type"),
]
_JSON: TypeAdapter[Any] = TypeAdapter(Any)
_CLIENT: TypeAdapter[ClientMessage] = TypeAdapter(ClientMessage)
_SERVER: TypeAdapter[ServerMessage] = TypeAdapter(ServerMessage)


class MessageError(ValueError):
    """A message that is not one of the protocol; its words say where and why, and repeat none of it."""


def read_client_message(text: str | bytes) -> ClientMessage:
    """Read what a worker said.

    Raises:
        MessageError: Where it is no message of the protocol.
    """
    message: ClientMessage = _read(_CLIENT, text)
    return message


def read_server_message(text: str | bytes) -> ServerMessage:
    """Read what a server said.

    Raises:
        MessageError: Where it is no message of the protocol.
    """
    message: ServerMessage = _read(_SERVER, text)
    return message


def _read(adapter: TypeAdapter[Any], text: str | bytes) -> Any:
    try:
        return adapter.validate_json(text)
    except ValidationError as wrong:
        first = wrong.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the message"
        raise MessageError(f"{place}: {first['msg']}") from None
