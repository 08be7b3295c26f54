"""Processes as /proc shows them, and waits for what they do."""

import collections
import contextlib
import os
import signal
import time
from pathlib import Path

MARK = "SHARDPROOF_TEST_MARK"  # of the environment, by which what a test started is found again

Process = collections.namedtuple("Process", "name state parent cpu_time")


def process_of(pid):
    """A process; None when it has ended."""
    try:
        name, fields = Path(f"/proc/{pid}/stat").read_text().split("(", 1)[1].rsplit(")", 1)
    except OSError:
        return None
    fields = fields.split()
    return None if fields[0] in "ZX" else Process(name, fields[0], int(fields[1]), fields[11:13])


def pids():
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def descendants(root):
    """{pid: name} of what a process started, and of what that started."""
    there = {pid: one for pid in pids() if (one := process_of(pid))}
    found, grown = {root}, True
    while grown:
        more = {pid for pid, one in there.items() if one.parent in found} - found
        found, grown = found | more, bool(more)
    return {pid: there[pid].name for pid in found - {root}}


def marked(mark):
    """{pid: name} of what was started with this value of MARK."""
    found = {}
    for pid in pids():
        with contextlib.suppress(OSError):
            is_marked = f"{MARK}={mark}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes()
            if is_marked and (one := process_of(pid)):
                found[pid] = one.name
    return found


def networks():
    """{pid: its network namespace} of all that may be looked at."""
    found = {}
    for pid in pids():
        with contextlib.suppress(OSError):
            found[pid] = os.readlink(f"/proc/{pid}/ns/net")
    return found


def kill_all(some):
    """Kills these pids, of which some may have ended."""
    for pid in some:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def wait_for(condition, limit_s=120):
    """Whether it holds within the limit."""
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True
