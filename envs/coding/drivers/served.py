"""Serve the candidate's module to the tests of a unittest problem. Runs inside the sandbox.

The payload is JSON: ``code`` and ``module``, the name that the tests import it by.
"""

from __future__ import annotations

import json
from typing import Any

from art_gym.envs.coding.drivers.program import load
from art_gym.envs.coding.drivers.remote import Peer


def main(channel: Any, payload: bytes) -> None:
    """Serve the tests until they are done."""
    job = json.loads(payload)
    peer = Peer(channel.read_frame, channel.write_frame)
    peer.offer(lambda: load(job["code"], job["module"]))
    peer.serve_until_gone()
