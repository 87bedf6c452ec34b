"""One message of each kind, as the protocol's page shows them: made by the models, so that each is valid."""

from __future__ import annotations

import hashlib

from art_trainer.distributed.protocol import (
    PROTOCOL_VERSION,
    ClientStatus,
    EpisodeData,
    EpisodeResult,
    ErrorMessage,
    FileEntry,
    Hello,
    Lease,
    LeaseRequest,
    LeaseStatus,
    Message,
    ModelManifest,
    Prompt,
    PromptRequest,
    PromptTurn,
    QueueStatus,
    ReleaseLeases,
    ResultReceipt,
    RunSpec,
    ServerStatus,
    Shutdown,
    SpanData,
    StatusUpdate,
    TimingData,
    TrainEpisodes,
    TurnData,
    UpdateModel,
    WeightManifest,
    Welcome,
)
from art_trainer.inference.sampling import SamplingParams

_LEASE, _TOKEN, _SECRET = (
    "q1Jr0bDkXx2mV9sA",
    "0dVn3yYwWq6oM1t7kR8cZsLfHbPaEuXg",
    "Jt8w2nB5rKxQvD4mCzE7hYsUaGfLpO91",
)
_GROUP = "0.7.4.2"


def _file(name: str, size: int) -> FileEntry:
    return FileEntry(name=name, size=size, sha256=hashlib.sha256(name.encode()).hexdigest())


_RUN = RunSpec(
    env="art/2048-v0",
    env_args={"size": 3},
    sampling=SamplingParams(max_new_tokens=16),
    record_states=False,
    history_window=1,
    max_context=None,
    dtype="float32",
)
_EPISODE = EpisodeData(
    env_id="art/2048-v0",
    task_id="game",
    seed=1234,
    observation="Join the tiles: left, right, up, down.",
    turns=[
        TurnData(
            reply="left",
            observation="The game is over.",
            reward=0.25,
            score_terms={"merged": 0.25},
            call={"name": "move", "arguments": {"direction": "left"}},
            error=None,
            cut=False,
            state=None,
        )
    ],
    histories=[
        [
            SpanData(turn=None, version=12, tokens=[5, 17, 42]),
            # -0.75 and -0.125
            SpanData(turn=0, version=12, tokens=[101, 2], logprobs="AABAvwAAAL4="),
        ]
    ],
    ending="terminated",
    success=True,
    metrics={"score": 64.0},
    error=None,
    tools=[],
    facts={},
    judgements={},
    independent_reward=None,
    unjudged=None,
)
CLIENT: tuple[Message, ...] = (
    Hello(protocol=PROTOCOL_VERSION, software={"my-worker": "0.3"}),
    LeaseRequest(count=8),
    EpisodeResult(
        lease=_LEASE,
        token=_TOKEN,
        episode=_EPISODE,
        timing=TimingData(started=1_790_000_000.5, turns=[(0.8, 0.001)]),
    ),
    ReleaseLeases(leases=[_LEASE], reason="out of memory", failed=True),
    StatusUpdate(leases=[_LEASE], policy_version=12, episodes_played=40, episodes_per_second=0.5),
)
"""What a worker says, in the order in which it comes to say it."""
SERVER: tuple[Message, ...] = (
    Welcome(
        protocol=PROTOCOL_VERSION,
        secret=_SECRET,
        run=_RUN,
        policy_version=12,
        heartbeat_seconds=10.0,
        lease_seconds=60.0,
        leases=[],
    ),
    TrainEpisodes(
        policy_version=12,
        leases=[
            Lease(
                lease=_LEASE,
                token=_TOKEN,
                seed=1234,
                options=None,
                group=_GROUP,
                rng_seed=[0, 7, 4, 2, 0],
                lease_seconds=60.0,
            )
        ],
    ),
    ResultReceipt(lease=_LEASE, outcome="accepted"),
    UpdateModel(policy_version=13),
    ErrorMessage(code="malformed", message="count: Input should be a valid integer"),
    Shutdown(reason="training is over"),
)
"""What a server says."""
HTTP: tuple[Message, ...] = (
    PromptRequest(
        observation="Name a number.", turns=[PromptTurn(tokens=[4803, 2], observation="Another one.")]
    ),
    Prompt(tokens=[108, 1, 14219, 801, 13, 2, 108], restarted=False, full=False),
    ModelManifest(files=[_file("config.json", 812), _file("tokenizer.json", 7_031_645)]),
    WeightManifest(policy_version=12, kind="full", file=_file("weights-000012.safetensors", 1_192_135_096)),
    ServerStatus(
        state="training",
        run="2048-v0-art-tiny-1",
        env="art/2048-v0",
        step=12,
        max_steps=40,
        policy_version=12,
        uptime_seconds=301.5,
        seconds_left=700.0,
        clients=[
            ClientStatus(
                id="w1",
                connected=True,
                policy_version=12,
                leases=1,
                episodes_played=40,
                episodes_per_second=0.5,
                last_seen_seconds=0.25,
                last_error=None,
                software={"my-worker": "0.3"},
            )
        ],
        queue=QueueStatus(waiting=7, leased=1, finished=24, groups_waiting=2),
        leases=[LeaseStatus(lease=_LEASE, client="w1", group=_GROUP, attempt=1, seconds_left=52.5)],
        results={"leased": 225, "accepted": 224},
    ),
)
"""What the routes are asked and answer."""
