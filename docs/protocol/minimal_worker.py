"""A worker of docs/protocol.md's rules alone: it fetches weights, and lets the server render and sample.

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


def fetch(path, body=None):
    """What the server answers to a GET, or to a POST with a body."""
    data = None if body is None else json.dumps(body).encode()
    headers = HEADERS | {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(SERVER + path, data, headers)) as answer:
        return answer.read()


def weights(version):
    """A version's weights, as they were promised."""
    entry = json.loads(fetch(f"/weights/{version}"))["file"]
    data = fetch(f"/weights/{version}/data")
    assert (len(data), hashlib.sha256(data).hexdigest()) == (entry["size"], entry["sha256"])
    return data


def play(run, lease, version):
    """An episode of one turn; a real worker resets ``run["env"]`` with the lease's seed, and steps it."""
    prompt = json.loads(fetch("/prompt", {"observation": "GUESS"}))["tokens"]
    names = [model["id"] for model in json.loads(fetch("/v1/models"))["data"]]
    asked = {"model": next(name for name in names if name.endswith(f"@{version}")), "prompt": prompt}
    asked |= {"logprobs": 0, "return_token_ids": True, "max_tokens": run["sampling"]["max_new_tokens"]}
    reply = json.loads(fetch("/v1/completions", asked))["choices"][0]
    values = reply["logprobs"]["token_logprobs"]
    logprobs = base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()
    read = {"turn": None, "version": version, "tokens": prompt}
    sampled = {"turn": 0, "version": version, "tokens": reply["token_ids"], "logprobs": logprobs}
    turn = {"reply": reply["text"], "observation": "", "reward": 0.0, "score_terms": {}}
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
