"""Non-blocking input and output of one run: the parent's ends of its pipes, with limits."""

from __future__ import annotations

import os
import select
from collections import deque
from typing import NamedTuple

from art_gym.envs.coding.sandbox.child.channel import LENGTH
from art_gym.envs.coding.sandbox.run import Limits

_BLOCK = 1 << 16


class Pipes(NamedTuple):
    """Descriptors of one end of each pipe, in the order in which a zygote gets the other ends."""

    stdin: int
    """-1 at our end if there is nothing to send."""
    stdout: int
    stderr: int
    channel_in: int
    """To the child."""
    channel_out: int
    """From the child."""

    def close(self) -> None:
        """Close all five."""
        for descriptor in self:
            if descriptor >= 0:
                os.close(descriptor)


def make_pipes(*, stdin: bool) -> tuple[Pipes, Pipes]:
    """The parent's ends and the child's; neither is inherited by another program.

    Args:
        stdin: Whether there is something to send on stdin; else that of the child is at its end already.

    Raises:
        OSError: Too many files are open; none of these is left open.
    """
    ends: list[int] = []
    try:
        ends += os.pipe() if stdin else (os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), -1)
        for _ in range(4):
            ends += os.pipe()
    except OSError:  # too many files are open
        for descriptor in set(ends) - {-1}:
            os.close(descriptor)
        raise
    from_stdin, to_stdin, from_stdout, stdout, from_stderr, stderr, *channel = ends
    channel_in, to_channel, from_channel, channel_out = channel
    return (
        Pipes(to_stdin, from_stdout, from_stderr, to_channel, from_channel),
        Pipes(from_stdin, stdout, stderr, channel_in, channel_out),
    )


class Streams:
    """What goes through the pipes of one run.

    Args:
        pipes: The parent's ends; closed by ``close`` or as soon as they are not needed.
        limits: How much may come.
    """

    def __init__(self, pipes: Pipes, limits: Limits) -> None:
        self._pipes, self._limits = pipes, limits
        self._open = set(pipes) - {-1}
        self._poll = select.poll()
        self._outgoing: dict[int, deque[memoryview]] = {pipes.stdin: deque(), pipes.channel_in: deque()}
        self._arrived: dict[int, bytearray] = {pipes.stdout: bytearray(), pipes.stderr: bytearray()}
        self._partial = bytearray()
        self._frame_bytes = 0
        self.frames: deque[bytes] = deque()
        """Frames that have come whole."""
        self.overflow = ""
        """What exceeded its limit; empty if nothing did."""
        self.truncated = False
        """Whether stdout or stderr were cut."""
        for pipe in self._open:
            os.set_blocking(pipe, False)
        for pipe in (pipes.stdout, pipes.stderr, pipes.channel_out):
            self._poll.register(pipe, select.POLLIN)

    @property
    def stdout(self) -> bytes:
        """What came on stdout, up to the limit."""
        return bytes(self._arrived[self._pipes.stdout])

    @property
    def stderr(self) -> bytes:
        """What came on stderr, up to the limit."""
        return bytes(self._arrived[self._pipes.stderr])

    def watch(self, descriptor: int) -> None:
        """Let ``turn`` wake up for another descriptor too."""
        self._poll.register(descriptor, select.POLLIN)

    def feed(self, stdin: bytes) -> None:
        """Send what the child reads on its stdin, which then ends."""
        if stdin:
            self._put(self._pipes.stdin, stdin)
        else:
            self._close(self._pipes.stdin)

    def send(self, frame: bytes) -> None:
        """Send a frame: what fits at once, the rest later; nothing if the child no longer reads."""
        self._put(self._pipes.channel_in, LENGTH.pack(len(frame)) + frame)

    def turn(self, seconds: float) -> bool:
        """Wait this long for any pipe, or for what is watched, and move what can be moved.

        Returns:
            Whether there is news from what is watched.
        """
        news = False
        for descriptor, event in self._poll.poll(max(0.0, seconds) * 1000):
            if descriptor not in self._open:
                news = True
            elif descriptor not in self._outgoing:
                self._read(descriptor, event)
            elif event & select.POLLERR:
                self._close(descriptor)
            else:
                self._write(descriptor)
        return news

    def drain(self) -> None:
        """Take what an ended child has left in the pipes; not more than the limits, and without waiting."""
        pipes = {self._pipes.channel_out, self._pipes.stdout, self._pipes.stderr}
        left = True
        while left:
            # The watched descriptor and unsent data would never go away.
            left = False
            for descriptor, event in self._poll.poll(0):
                if descriptor in pipes & self._open:
                    self._read(descriptor, event)
                    left = True

    def close(self) -> None:
        """Close all that is open."""
        for pipe in tuple(self._open):
            self._close(pipe)

    def _put(self, pipe: int, data: bytes) -> None:
        if pipe in self._open:
            self._outgoing[pipe].append(memoryview(data))
            self._poll.register(pipe, select.POLLOUT)
            self._write(pipe)

    def _write(self, pipe: int) -> None:
        waiting = self._outgoing[pipe]
        try:
            while waiting:
                waiting[0] = waiting[0][os.write(pipe, waiting[0]) :]
                if not waiting[0]:
                    waiting.popleft()
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._close(pipe)
            return
        if pipe == self._pipes.stdin:
            self._close(pipe)
        else:
            self._poll.unregister(pipe)

    def _read(self, pipe: int, event: int) -> None:
        """Take what is there."""
        try:
            data = os.read(pipe, _BLOCK) if event & select.POLLIN else b""
        except BlockingIOError:
            return
        if not data or self.overflow:
            # An end of file only means that the pipe is closed, not that the child has ended.
            self._close(pipe)
        elif pipe == self._pipes.channel_out:
            self._take_frames(data)
        else:
            self._take_output(pipe, data)

    def _take_output(self, pipe: int, data: bytes) -> None:
        kept = self._arrived[pipe]
        kept += data
        most = self._limits.output_bytes
        if len(kept) > most:
            del kept[most:]
            self.truncated = True
            name = "stdout" if pipe == self._pipes.stdout else "stderr"
            self.overflow = f"wrote more than {most:,} bytes to {name}"

    def _take_frames(self, data: bytes) -> None:
        self._partial += data
        while len(self._partial) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._partial)
            end = LENGTH.size + length
            # Lengths count too: a frame of nothing costs the parent more than nothing.
            if self._frame_bytes + end > self._limits.frames_bytes:
                self.overflow = f"sent frames of more than {self._limits.frames_bytes:,} bytes"
                return
            if len(self._partial) < end:
                return
            self._frame_bytes += end
            self.frames.append(bytes(self._partial[LENGTH.size : end]))
            del self._partial[:end]

    def _close(self, pipe: int) -> None:
        if pipe not in self._open:
            return
        self._open.remove(pipe)
        if pipe not in self._outgoing or self._outgoing[pipe]:
            self._poll.unregister(pipe)
        if pipe in self._outgoing:
            self._outgoing[pipe].clear()
        os.close(pipe)
