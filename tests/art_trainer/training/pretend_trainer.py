"""Plays the part of a trainer in ``test_supervisor.py``: ``art-trainer FOLDER FLAGS…``, quick to start.

``plan.json`` beside FOLDER says of each start what it does: ``{"steps": N}`` are logged, ``{"saved": N}`` is
a checkpoint, ``{"orphan": true}`` leaves a process in a session of its own; then ``{"end": code}`` is its
exit code, or below 0 the signal it dies by. With ``{"until": "asked"}`` it waits for SIGINT or SIGTERM first,
with ``{"until": "killed"}`` for ever. ``starts.jsonl`` has the flags of each start, ``heard.jsonl`` its
signals.
"""

import json
import os
import signal
import subprocess
import sys
import time

folder, flags = sys.argv[1], sys.argv[2:]
beside = os.path.dirname(folder)
starts_file = os.path.join(beside, "starts.jsonl")
heard = []
for one in (signal.SIGINT, signal.SIGTERM):
    signal.signal(one, lambda number, frame: heard.append(number))


def write(name, record):
    with open(os.path.join(beside, name), "a") as stream:
        stream.write(json.dumps(record) + "\n")


with open(os.path.join(beside, "plan.json")) as stream:
    plan = json.load(stream)
count = 0
if os.path.exists(starts_file):
    with open(starts_file) as stream:
        count = len(stream.readlines())
what = plan[count]
os.makedirs(os.path.join(folder, "checkpoints"), exist_ok=True)
with open(os.path.join(folder, "run.yaml"), "w") as stream:
    stream.write("env: toy\n")
with open(os.path.join(folder, "metrics.jsonl"), "w") as stream:
    for step in range(what.get("steps", 0)):
        stream.write(json.dumps({"step": step + 1.0}) + "\n")
    stream.write('{"step": 999')  # a line that a kill has cut off
if "saved" in what:
    os.makedirs(os.path.join(folder, "checkpoints", f"step-{what['saved']:06d}"), exist_ok=True)
if "orphan" in what:
    sleep = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
    write("orphans.jsonl", subprocess.Popen(sleep, start_new_session=True).pid)
write("starts.jsonl", flags)
until = what.get("until")
while until == "killed" or (until == "asked" and not heard):
    time.sleep(0.02)
if until == "asked":
    time.sleep(0.5)  # a second signal that is under way arrives
    write("heard.jsonl", heard)
end = what.get("end", 0)
if end < 0:
    if end != -signal.SIGKILL:
        signal.signal(-end, signal.SIG_DFL)
    os.kill(os.getpid(), -end)
sys.exit(end)
