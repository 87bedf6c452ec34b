"""Messages between the parent and the zygote, on a socket that keeps them apart.

All are of a fixed form, since a zygote that touches little memory shares more of it with its children.
"""

from __future__ import annotations

import struct

REQUEST = struct.Struct("=QIQQQ")
"""The run's number, the driver's place in the list of drivers, seconds of processor time, bytes of memory,
the seed. With it come the descriptors of the run's pipes and, as the sixth, one to tell its end on."""
KILL = struct.Struct("=Q")
"""The number of the run to kill."""
ENDED = struct.Struct("=id")
"""The status as ``wait`` has it, and seconds of processor time."""
DESCRIPTORS = struct.Struct("=6i")
"""Those that come with a request."""
