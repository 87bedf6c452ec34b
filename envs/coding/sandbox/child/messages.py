"""Messages between the parent and the zygote, with file descriptors.

All are of a fixed form, since a zygote that touches little memory shares more of it with its children.
"""

from __future__ import annotations

import array
import socket
import struct

REQUEST = struct.Struct("=IQQQ")
"""The driver's place in the list of drivers, seconds of processor time, bytes of memory, the seed."""
BORN = struct.Struct("=i")
"""The child's process id in the zygote's namespace; with it comes its pidfd."""
ENDED = struct.Struct("=id")
"""The status as ``wait`` has it, and seconds of processor time."""

_SPACE = socket.CMSG_SPACE(8 * 4)


def receive(connection: socket.socket, size: int) -> tuple[bytes, list[int]]:
    """Take the next message and its descriptors, which no other program inherits.

    (``socket.recv_fds`` ignores its flags, so it cannot do that.)

    Returns:
        No data where the other end is closed.

    Raises:
        BlockingIOError: There is no message, and the socket does not wait.
    """
    data, attached, _, _ = connection.recvmsg(size, _SPACE, socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for _, _, content in attached:
        descriptors.frombytes(content)
    return data, descriptors.tolist()


def send(connection: socket.socket, data: bytes, descriptors: list[int]) -> None:
    """Send a message with descriptors.

    Raises:
        OSError: The other end is closed.
    """
    content = array.array("i", descriptors)
    connection.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, content)])
