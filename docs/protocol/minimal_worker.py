"""A worker of docs/protocol.md's rules alone: it fetches weights, and plays nothing but made-up tokens.

ART_SERVER_TOKEN=… python docs/protocol/minimal_worker.py http://127.0.0.1:8270
"""

import base64
import hashlib
import json
import os
import struct
import sys
import time
import urllib.request

from websockets.sync.client import connect


def fetch(path):
    """What the server answers to a GET."""
    request = urllib.request.Request(SERVER + path, headers=HEADERS)
    with urllib.request.urlopen(request) as answer:
        return answer.read()


def weights(version):
    """A version's weights, as they were promised."""
    entry = json.loads(fetch(f"/weights/{version}"))["file"]
    data = fetch(f"/weights/{version}/data")
    assert (len(data), hashlib.sha256(data).hexdigest()) == (entry["size"], entry["sha256"])
    return data


def play(run, lease, version):
    """An episode of one turn; a real worker resets ``run["env"]`` with the lease's seed, and samples."""
    logprobs = base64.b64encode(struct.pack("<2f", -2.5, -0.5)).decode()
    read = {"turn": None, "version": version, "tokens": [2]}
    sampled = {"turn": 0, "version": version, "tokens": [7, 1], "logprobs": logprobs}
    turn = {"reply": "0", "observation": "", "reward": 0.0, "score_terms": {}}
    turn |= {"call": None, "error": None, "cut": False, "state": None}
    episode = {"env_id": run["env"], "task_id": "made-up", "seed": lease["seed"], "observation": "GUESS"}
    episode |= {"turns": [turn], "histories": [[read, sampled]], "ending": "terminated"}
    episode |= {"success": None, "metrics": {}, "error": None, "tools": [], "facts": {}}
    return episode | {"judgements": {}, "independent_reward": None, "unjudged": None}


def work(socket):
    """Play until the server says that it is over."""

    def say(kind, **message):
        socket.send(json.dumps({"type": kind, **message}))

    say("hello", protocol=1, software={"minimal-worker": "1"})
    welcome = json.loads(socket.recv())
    assert welcome["type"] == "welcome", welcome
    say("lease_request", count=4)
    heartbeat, waiting, played, over = welcome["heartbeat_seconds"], set(), 0, False
    while waiting or not over:
        try:
            message = json.loads(socket.recv(timeout=heartbeat))
        except TimeoutError:
            message = {"type": "nothing"}
        if message["type"] == "train_episodes":
            version = message["policy_version"]
            print(f"{len(weights(version))} bytes of version {version}")
            for lease in message["leases"]:
                episode = play(welcome["run"], lease, version)
                say("episode_result", lease=lease["lease"], token=lease["token"], episode=episode)
                waiting.add(lease["lease"])
                played += 1
        elif message["type"] == "result_receipt":
            print(message["outcome"])
            waiting.remove(message["lease"])
            if not waiting and not over:
                say("lease_request", count=4)
        elif message["type"] == "shutdown":
            over = True
        status = {"policy_version": None, "episodes_played": played, "episodes_per_second": 0.0}
        say("status_update", leases=sorted(waiting), **status)


if __name__ == "__main__":
    SERVER = sys.argv[1]
    token = os.environ.get("ART_SERVER_TOKEN")
    HEADERS = {"Authorization": f"Bearer {token}"} if token else {}
    address = f"ws{SERVER.removeprefix('http')}/ws/minimal-{os.getpid()}-{int(time.time())}"
    with connect(address, additional_headers=HEADERS, compression=None, max_size=2**24) as socket:
        work(socket)
