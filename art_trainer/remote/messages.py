"""The words of the protocol between a training server and its workers, version 1.

A worker opens a WebSocket at ``/ws/{client_id}`` and says :class:`Hello`; each message is one JSON object in
a text frame, told apart by its ``type``. Nothing else is understood: a message is read strictly, with known
fields alone, numbers that are finite, and sizes that are bounded. ``docs/protocol.md`` is the page
for who writes a worker: its tables and examples are made from what stands here.

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

from pydantic import Field, TypeAdapter, ValidationError

from art_trainer.episodes import Episode
from art_trainer.remote.episode_data import EpisodeData, TimingData
from art_trainer.remote.fields import (
    MAX_LEASES,
    Bytes,
    Count,
    Json,
    LeaseIds,
    Message,
    Short,
    Token,
    Version,
)
from art_trainer.starts import GroupTask
from art_trainer.timings import EpisodeTiming

PROTOCOL_VERSION = 1


class Hello(Message):
    """The first message of a connection."""

    type: Literal["hello"] = "hello"
    protocol: int
    """The version of the protocol that the worker speaks: 1."""
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
    """Most leases that it takes; it may get fewer. A later request takes the place of one without answer."""


class EpisodeResult(Message):
    """A leased episode, played."""

    type: Literal["episode_result"] = "episode_result"
    lease: Token
    """The lease's id."""
    token: Token
    """The lease's own secret."""
    episode: EpisodeData
    """What was played."""
    timing: TimingData | None = None
    """How long it took, where that is known."""

    def played(self) -> tuple[Episode, EpisodeTiming | None]:
        """The episode, and how long it took.

        Raises:
            ValueError: Where their parts contradict each other.
        """
        if self.timing is not None and len(self.timing.turns) != len(self.episode.turns):
            raise ValueError(
                f"there are timings of {len(self.timing.turns)} turns, of {len(self.episode.turns)} played"
            )
        return self.episode.episode(), None if self.timing is None else self.timing.timing()


class ReleaseLeases(Message):
    """Leases that are given back unplayed."""

    type: Literal["release_leases"] = "release_leases"
    leases: LeaseIds
    """Their ids; those that are not this worker's are passed over."""
    reason: Short
    """In words, for people."""
    failed: bool
    """Whether playing was tried and went wrong; otherwise the worker only stops."""


class StatusUpdate(Message):
    """A worker is alive; its leases' deadlines move on."""

    type: Literal["status_update"] = "status_update"
    leases: LeaseIds
    """The leases it is at work on."""
    policy_version: Version | None
    """Of the weights it plays with; ``null``: of none yet."""
    episodes_played: Count
    """Since the worker was started."""
    episodes_per_second: Annotated[float, Field(ge=0)]
    """Over the last minute."""
    last_error: Short | None = None
    """What went wrong last, in words."""


class Sampling(Message):
    """How a reply is sampled."""

    temperature: float
    """What logits are divided by; 0 takes the most likely token."""
    top_p: float
    """Keep the fewest most likely tokens whose probabilities sum to at least this; 1 keeps all."""
    top_k: int
    """Keep this many most likely tokens; 0 keeps all."""
    min_p: float
    """Drop tokens less likely than this times the most likely one; 0 drops none."""
    repetition_penalty: float
    """Divides positive logits of tokens that stand in the context, and multiplies negative ones; 1: none."""
    stop_strings: list[str]
    """Texts that end a reply with the token that completes one."""
    stop_token_ids: list[int] = Field(default_factory=list)
    """Tokens that end a reply, besides the tokenizer's and the chat template's own."""
    max_new_tokens: int
    """Most tokens of a reply."""


class RunDescription(Message):
    """What a worker must know to play as the server itself would."""

    env: str
    """The environment's id."""
    env_args: dict[str, Json]
    """The arguments that it is made with."""
    sampling: Sampling
    """How replies are sampled."""
    record_states: bool
    """Whether turns note the environment's state."""
    history_window: int | None
    """How many turns the policy sees, the present one included; ``null``: all."""
    max_context: int | None
    """Most tokens of a context with its reply; ``null``: as many as the model takes."""
    dtype: str
    """Of the weights, as PyTorch names it: ``float32``."""


class Welcome(Message):
    """The answer to ``hello``."""

    type: Literal["welcome"] = "welcome"
    protocol: int
    """The version of the protocol that the server speaks: 1."""
    secret: Token
    """Belongs to the client's id: to be said in the next ``hello``."""
    run: RunDescription
    """What is played. A worker that comes again and is told otherwise has to begin anew."""
    policy_version: Version
    """Of the newest weights."""
    heartbeat_seconds: float
    """Say ``status_update`` at least this often."""
    lease_seconds: float
    """A lease that is not renewed for so long is given to someone else."""
    leases: LeaseIds
    """Those of ``hello`` that are still this client's."""


class Lease(Message):
    """The right to play one episode, for a time."""

    lease: Token
    """Its id."""
    token: Token
    """Its secret, to be sent with the result."""
    seed: Version
    """For the environment's ``reset``."""
    options: dict[str, Json] | None
    """For the environment's ``reset``."""
    group: Token
    """Leases with the same have the same prompt."""
    rng_seed: list[int]
    """Seeds the policy's randomness, so that the attempts of a group differ."""
    lease_seconds: float
    """How long it lasts, unless it is renewed."""

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
    """Of the newest weights when they were leased."""
    leases: Annotated[list[Lease], Field(max_length=MAX_LEASES)]
    """At least one; at most as many as were asked for."""


Outcome = Literal["accepted", "duplicate", "late", "unknown", "foreign", "forged", "stale", "invalid"]
"""What became of a result. ``duplicate``: the lease has one already. ``late``: it is someone else's now, or
done. ``unknown``: no such lease. ``foreign``: another client's. ``forged``: not the lease's token. ``stale``:
sampled by weights that are too old. ``invalid``: not the episode that was leased."""


class ResultReceipt(Message):
    """What became of a result."""

    type: Literal["result_receipt"] = "result_receipt"
    lease: Token
    """The result's."""
    outcome: Outcome
    """``accepted``: it counts, and is on disk. Any other: it is dropped, and need not be sent again."""
    reason: Short = ""
    """In words, where it was not accepted."""


class UpdateModel(Message):
    """There are newer weights."""

    type: Literal["update_model"] = "update_model"
    policy_version: Version
    """Theirs."""


class ErrorMessage(Message):
    """What was wrong with a message, and where."""

    type: Literal["error"] = "error"
    code: Token
    """The fault, in a word."""
    message: Short
    """The fault, in words."""
    fatal: bool = False
    """Whether the server closes the socket now."""


class Shutdown(Message):
    """Play no more."""

    type: Literal["shutdown"] = "shutdown"
    reason: Short
    """In words, for people."""


class FileEntry(Message):
    """A file that a worker fetches."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
    """A plain file name."""
    size: Bytes
    """Its length in bytes."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """The hash of what is in it."""


class ModelManifest(Message):
    """The answer of ``GET /model``: the files of a Hugging Face folder, each at ``/model/{name}``."""

    files: Annotated[list[FileEntry], Field(max_length=1000)]
    """Configuration, tokenizer, and the weights that training leaves as they are."""


class WeightManifest(Message):
    """The answer of ``GET /weights/{version}``; the file itself is at ``/weights/{version}/data``."""

    policy_version: Version
    """As in the address."""
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
