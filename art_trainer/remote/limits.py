"""What a training server takes from its clients, at most."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what clients send, how often, and how long they may take.

    Attributes:
        message_bytes: Largest message of a socket; an episode is one.
        body_bytes: Largest body of a request.
        connections: Most connections at one time.
        sockets: Most WebSockets among them.
        clients: Most workers that are remembered; those that are gone are forgotten first.
        requests_per_second: Requests of one address, sockets that are opened included.
        burst: As many may come at once.
        messages_per_second: Messages of one socket; what comes faster waits.
        malformed: As many messages that are none; then the socket is closed.
        outbox: Most messages that wait for a client that does not read; then the socket is closed.
        send_seconds: Longest that a client may take to read a message.
        hello_seconds: Longest until a socket's first message.
        head_seconds: Longest until a request's head is there.
        body_seconds: Longest until its body is.
        ping_seconds: How often a socket is asked whether somebody is there; as long it may take to answer.
    """

    message_bytes: int = 16 * 2**20
    body_bytes: int = 16 * 2**20
    connections: int = 2048
    sockets: int = 1024
    clients: int = 4096
    requests_per_second: float = 500.0
    burst: int = 1000
    messages_per_second: float = 500.0
    malformed: int = 10
    outbox: int = 256
    send_seconds: float = 30.0
    hello_seconds: float = 10.0
    head_seconds: float = 20.0
    body_seconds: float = 60.0
    ping_seconds: float = 20.0
