"""Machines for tests: namespaces of network and host name, each held by a process that sleeps in them."""

import os
import socket
import subprocess
import sys
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
import said  # noqa: E402
from processes import marked, networks, wait_for  # noqa: E402


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


class Machine:
    def __init__(self, name):
        self.name = name
        self.holder = subprocess.Popen(["unshare", "--net", "--uts", "sh", "-c", f"hostname {name} && exec sleep 600"])

    def command(self, *words):
        return ["nsenter", "--target", str(self.holder.pid), "--net", "--uts", "--", *map(str, words)]

    def run(self, *words):
        return subprocess.run(self.command(*words), check=True, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT).stdout.strip()

    def listens_at(self):
        """All addresses where somebody on this machine listens."""
        rows = [line.split() for kind in ("tcp", "tcp6")
                for line in Path(f"/proc/{self.holder.pid}/net/{kind}").read_text().splitlines()[1:]]
        return sorted(row[1] for row in rows if row[3] == "0A")

    def link(self, device, other, other_device):
        subprocess.run(["ip", "link", "add", device, "netns", str(self.holder.pid), "type", "veth", "peer", "name",
                        other_device, "netns", str(other.holder.pid)], check=True, stderr=subprocess.PIPE)

    def has_address(self, address, device):
        self.run("ip", "link", "set", "lo", "up")
        self.run("ip", "address", "add", address + "/24", "dev", device)
        self.run("ip", "link", "set", device, "up")

    def processes(self):
        """The pids of all that is on it, but the holder."""
        own = self.holder.pid
        there = networks()
        return [pid for pid, network in there.items() if network == there[own] and pid != own]

    def end(self):
        self.holder.kill()
        self.holder.wait()


def joined(names, join):
    """Machines of these names after join(machines); None where this process may not make them."""
    machines = [Machine(name) for name in names]
    try:
        def are_there():
            if any(machine.holder.poll() is not None for machine in machines):
                raise OSError("no namespace")
            return [machine.run("hostname") for machine in machines] == names
        if not wait_for(are_there, 60):
            raise OSError("no namespace")
        join(machines)
    except (OSError, subprocess.CalledProcessError):
        for machine in machines:
            machine.end()
        return None
    return machines


def linked(addresses):
    """Two machines with one link between them; None as joined()."""
    def join(both):
        both[0].link("link0", both[1], "link0")
        for machine, address in zip(both, addresses):
            machine.has_address(address, "link0")

    return joined(["machine0", "machine1"], join)


def switched(names, address):
    """A switch and machines of these names behind it, each at address(its number); None as joined()."""
    def join(machines):
        switch, nodes = machines[0], machines[1:]
        switch.run("ip", "link", "add", "bridge0", "type", "bridge")
        switch.run("ip", "link", "set", "bridge0", "up")
        for number, node in enumerate(nodes):
            port = f"port{number}"
            node.link("link0", switch, port)
            switch.run("ip", "link", "set", port, "master", "bridge0", "up")
            node.has_address(address(number), "link0")

    return joined(["switch", *names], join)


def own_environment():
    """Without variables of shardproof."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SHARDPROOF")}


def environment(rank, size, **more):
    """Of a process that mpirun has started as the only one of its machine."""
    return own_environment() | more | {
        "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(size),
        "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}


class FolderTest(said.FolderTest):
    """With a `folder`, and processes, all gone afterwards."""

    def start_process(self, command, **options):
        """What it prints is one text, to be read."""
        process = subprocess.Popen(list(map(str, command)), cwd=ROOT, text=True, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
        self.addCleanup(lambda: process.poll() is None and (process.kill(), process.communicate()))
        return process

    def assert_marked_end(self, mark, text, bound_s):
        """All processes of this mark, within the bound. text(): what they say."""
        start = time.monotonic()
        self.assertTrue(wait_for(lambda: not marked(mark), bound_s), f"{marked(mark)}\n{text()}")
        print(f"{mark}: all processes had ended {time.monotonic() - start:.1f} s later", flush=True)


class SwitchedTest(FolderTest):
    """On `nodes` behind a switch, all gone afterwards."""

    def join(self, switched_machines):
        switch, *self.nodes = switched_machines
        for machine in (switch, *self.nodes):
            self.addCleanup(machine.end)


def program():
    """The first argument, which it takes away, else the release build."""
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        return Path(sys.argv.pop(1)).resolve()
    return ROOT / "build/release/shardproof-bin"


def main(joined_machines):
    """Runs the tests, or exits with status 77."""
    probe = joined_machines()
    if probe is None:
        print("skipped: no right to make network namespaces here")
        sys.exit(77)
    for held in probe:
        held.end()
    unittest.main()
