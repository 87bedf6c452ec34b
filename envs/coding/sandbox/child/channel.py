"""The protocol between parent and child: frames over two pipes, and messages to the zygote.

A frame is four bytes of length, big-endian, then as many bytes. The messages, on a socket that keeps them
apart, are of a fixed form, since a zygote that touches little memory shares more of it with its children.
"""

from __future__ import annotations

import os
import struct

LENGTH = struct.Struct(">I")
"""What a frame begins with."""
_BLOCK = 1 << 12

REQUEST = struct.Struct("=QIQQ")
"""The run's number, the driver's place in the list of drivers, seconds of processor time, bytes of memory.
With it come the descriptors of the run's pipes and, as the sixth, one to report its end on."""
SEED = struct.Struct("=Q")
"""What the first frame to a child begins with."""
KILL = struct.Struct("=Q")
"""The number of the run to kill."""
ENDED = struct.Struct("=id")
"""The status as ``wait`` has it, and seconds of processor time."""
DESCRIPTORS = struct.Struct("=6i")
"""Those that come with a request."""


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of it, copying nothing: it may be large. Waits while nobody reads."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


class Channel:
    """The child's end of the frames between it and the parent.

    Args:
        reader: File descriptor to read frames from.
        writer: File descriptor to write frames to.
    """

    def __init__(self, reader: int, writer: int) -> None:
        self._reader, self._writer = reader, writer
        self._ahead = b""

    def read_frame(self) -> bytes:
        """Wait for the next frame.

        Raises:
            EOFError: The parent sends no more.
        """
        if not self._ahead:
            self._ahead = os.read(self._reader, _BLOCK)  # most frames come whole
        self._fill(LENGTH.size)
        end = LENGTH.size + LENGTH.unpack_from(self._ahead)[0]
        self._fill(end)
        frame, self._ahead = self._ahead[LENGTH.size : end], self._ahead[end:]
        return frame

    def write_frame(self, data: bytes) -> None:
        """Send a frame; waits while the parent does not read."""
        frame = LENGTH.pack(len(data)) + data
        written = os.write(self._writer, frame)
        if written < len(frame):
            write_all(self._writer, memoryview(frame)[written:])

    def close(self) -> None:
        """Close both ends, so that nothing that runs later finds them."""
        os.close(self._reader)
        os.close(self._writer)

    def _fill(self, size: int) -> None:
        """Read on until this many bytes, at least, are there."""
        if len(self._ahead) >= size:
            return
        parts, have = [self._ahead], len(self._ahead)
        while have < size:
            part = os.read(self._reader, max(_BLOCK, size - have))
            if not part:
                raise EOFError("the parent sends no more frames")
            parts.append(part)
            have += len(part)
        self._ahead = b"".join(parts)
