#!/usr/bin/env python3
"""Ranks on two machines: network namespaces with one link between them, made here. With the secret they match;
without it the other machine reads nothing, changes nothing, and is counted.

  second_machine_test.py PROGRAM

Without the right to make namespaces it is skipped (exit status 77).
"""

import json
import re
import sys

import machines

ADDRESSES = ("10.77.0.1", "10.77.0.2")
PORT = 29571
SECRET = "2c26b46b68ffc68ff99b453c1d304134"
GREETING_BYTES = 40

# What somebody on the other machine tries; it prints, for each, all bytes that came back.
STRANGER = r"""
import json, os, socket, struct, sys, time
def call(host, port, limit=60):
    end = time.monotonic() + limit
    while True:
        try:
            return socket.create_connection((host, port), timeout=2)
        except OSError:
            if time.monotonic() > end: raise
            time.sleep(0.05)
def read_all(peer):
    text = b""
    try:
        while chunk := peer.recv(4096): text += chunk
    except OSError:
        pass
    return text
def key(name): return struct.pack("<Q", len(name)) + name
hello = json.dumps({"rank": 1, "token": "", "host": "b", "boot": "", "pid": 1}).encode()
attacks = {
    "silence": b"",
    "noise": os.urandom(300),
    "too_short": os.urandom(71),
    "hello": struct.pack("<IHH", len(hello), 13, 0) + hello,
    # c10d's store over TCP: the greeting of its clients, and a request for where control is.
    "store": struct.pack("<BI", 0, 0x3C85F7CE) + b"\x03" + key(b"/shardproof/run.0/control"),
}
found = {}
for name, bytes_sent in attacks.items():
    with call(sys.argv[1], int(sys.argv[2])) as peer:
        try:
            peer.sendall(bytes_sent)
            if name == "too_short": peer.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        found[name] = read_all(peer).hex()
with call(sys.argv[1], int(sys.argv[2])) as peer:  # control's own words back to it
    greeting = peer.recv(40)
    try:
        peer.sendall(greeting + greeting)
    except OSError:
        pass
    found["mirror"] = (greeting + read_all(peer)).hex()
print(json.dumps(found))
"""


def joined_machines():
    return machines.linked(ADDRESSES)


class SecondMachine(machines.FolderTest):
    def setUp(self):
        super().setUp()
        self.machines = joined_machines()
        for machine in self.machines:
            self.addCleanup(machine.end)
        self.out = self.folder / "run"

    def start_rank(self, rank, secret):
        more = {"SHARDPROOF_SECRET": secret} if secret else {}
        env = machines.environment(rank, 2, MASTER_ADDR=ADDRESSES[0], MASTER_PORT=str(PORT), **more)
        command = self.machines[rank].command(PROGRAM, "rank", "scenarios/smoke/llama.yaml", "--only",
                                              "smoke/llama[tp2]", "--out", self.out)
        return self.start_process(command, env=env)

    def end_of(self, process):
        text, _ = process.communicate(timeout=240)
        return process.returncode, text

    def start_stranger(self):
        return self.start_process(self.machines[1].command(sys.executable, "-c", STRANGER, ADDRESSES[0], PORT))

    def assert_read_nothing(self, stranger):
        """All that came back are greetings of control: a fixed word and a nonce."""
        text, _ = stranger.communicate(timeout=240)
        found = {name: bytes.fromhex(came) for name, came in json.loads(text).items()}
        self.assertEqual(len(found), 6)
        for name, came in found.items():
            self.assertIn(len(came), (0, GREETING_BYTES), (name, came))
            self.assertIn(came[:8], (b"", b"shrdprf1"), name)
        nonces = [came[8:] for came in found.values() if came]
        self.assertEqual(len(set(nonces)), len(nonces), "a nonce came twice")

    def assert_matches(self, process):
        text = self.expect(self.end_of(process), 0)
        case, = json.loads((self.out / "results.json").read_text())["cases"]
        self.assertEqual(case["verdict"], "match", text)
        self.assertEqual(len(case["ranks"]), 2)
        self.assertGreater(case["tensors_compared"], 20)
        return text

    def test_with_the_secret_two_machines_match(self):
        control = self.start_rank(0, SECRET)
        machines.wait_for(self.machines[0].listens_at, 30)
        # 10.77.0.1 in the words of /proc, and nowhere else: not 0.0.0.0, not loopback.
        self.assertEqual(self.machines[0].listens_at(), [f"01004D0A:{PORT:04X}"])
        other = self.start_rank(1, SECRET)
        text = self.assert_matches(control)
        self.assertNotIn("refused", text)
        self.assertEqual(self.end_of(other)[0], 0)

    def test_without_the_secret_the_other_machine_reads_and_changes_nothing(self):
        control = self.start_rank(0, SECRET)
        self.assert_read_nothing(self.start_stranger())
        self.expect_patterns(self.end_of(self.start_rank(1, "another secret, of no less length")), 2,
                             r"rank 1: the process at 10\.77\.0\.1:\d+ is not control of a run with this rank's "
                             r"secret and WORLD_SIZE; give all ranks the same SHARDPROOF_SECRET")
        during = self.start_stranger()  # while the ranks meet and the case runs
        other = self.start_rank(1, SECRET)
        text = self.assert_matches(control)
        refused = re.search(r"shardproof: (\d+) connections without the secret were refused, from 10\.77\.0\.2\n", text)
        self.assertTrue(refused, text)
        self.assertGreaterEqual(int(refused[1]), 7)
        self.assertEqual(self.end_of(other)[0], 0)
        during.kill()

    def test_without_a_secret_no_rank_starts(self):
        for rank in (0, 1):
            text = self.expect_patterns(self.end_of(self.start_rank(rank, None)), 2,
                                        rf"^shardproof: rank {rank} meets the others at 10\.77\.0\.1.*"
                                        r"export SHARDPROOF_SECRET=\$\(openssl rand -hex 32\)")
            self.assertEqual(len(text.splitlines()), 1, text)
        self.assertFalse(self.out.exists())


if __name__ == "__main__":
    PROGRAM = machines.program()
    machines.main(joined_machines)
