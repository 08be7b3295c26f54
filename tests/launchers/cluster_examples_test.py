#!/usr/bin/env python3
"""The files of examples/cluster: scripts over a stand-in for ssh and over a real sshd, and manifests against schemas.

  cluster_examples_test.py PROGRAM [--many]

--many adds what takes longer or downloads something: two_hosts.sh, sshd (Debian's openssh-server, unpacked into a
folder if it is not installed), and Kubernetes' and JobSet's schemas (PyPI).
"""

import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

import machines  # makes tests/support importable
from processes import MARK, kill_all, marked, wait_for
from said import ended

EXAMPLES = machines.ROOT / "examples/cluster"
MANY = "--many" in sys.argv
BOUND_S = 60  # a hang, not a wall-time test
SUITE = "rounds: 1\nsizes: [65]\nstages: [environment, groups]\n"
STAND_IN = """#!/bin/bash
# [-o OPTION].. HOST COMMAND..: runs it here; one host cannot be reached.
while [[ $1 == -o ]]; do shift 2; done
if [[ $1 == gone ]]; then echo "no route to $1"; exit 255; fi
host=$1; shift
ps -ef >"$(dirname "$0")/ps.$$"
exec bash -c "$*"
"""
SCHEMAS = """
import sys, yaml, kubernetes_validate, kubeflow_trainer_api.models as models
folder = sys.argv[1]
for text in yaml.safe_load_all(open(folder + "/job.yaml")):
    kubernetes_validate.validate(text, "1.30", strict=True)
    print("right", text["kind"])
text, = yaml.safe_load_all(open(folder + "/jobset.yaml"))
found = models.JobsetV1alpha2JobSet.from_dict(text)
def missing(given, kept, path):  # keys that the model does not know are dropped by it
    if isinstance(given, dict): return [p for k, v in given.items() for p in (
        missing(v, kept[k], path + "." + k) if isinstance(kept, dict) and k in kept else [path + "." + k])]
    if isinstance(given, list): return [p for n, v in enumerate(given) for p in missing(v, kept[n], path + f"[{n}]")]
    return []
assert missing(text, found.to_dict(), "") == [], missing(text, found.to_dict(), "")
print("right JobSet")
job = text["spec"]["replicatedJobs"][0]["template"]
kubernetes_validate.validate({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"}, **job}, "1.30", strict=True)
job["spec"]["completionModus"] = 1
assert missing(text, models.JobsetV1alpha2JobSet.from_dict(text).to_dict(), "") != []
try: kubernetes_validate.validate({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"}, **job}, "1.30", strict=True)
except kubernetes_validate.ValidationError: print("a wrong key is refused")
"""


class ClusterExamples(machines.FolderTest):
    def setUp(self):
        super().setUp()
        (self.folder / "suite.yaml").write_text(SUITE)
        (self.folder / "ssh").write_text(STAND_IN)
        (self.folder / "ssh").chmod(0o755)
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(("SHARDPROOF", "SSH"))}
        self.env |= {"PATH": f"{self.folder}:{os.environ['PATH']}", "SHARDPROOF": str(PROGRAM),
                     "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": machines.free_port()}

    def start(self, script, *words):
        return subprocess.Popen([EXAMPLES / script, *map(str, words)], cwd=machines.ROOT, env=self.env, text=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def validate(self, script, *words):
        return ended(self.start(script, *words, "validate", self.folder / "suite.yaml", "--out", self.folder / "run"), 120)

    def hosts_of_run(self):
        found = json.loads((self.folder / "run/validation.json").read_text())
        self.assertEqual(found["exit_status"], 0)
        return found["world_size"], [host["name"] for host in found["hosts"]]

    def test_scripts_are_bash(self):
        for script in ("ssh_hosts.sh", "two_hosts.sh", "validate.sbatch"):
            subprocess.run(["bash", "-n", EXAMPLES / script], check=True)
            if shutil.which("shellcheck"):
                subprocess.run(["shellcheck", EXAMPLES / script], check=True)

    def test_two_hosts_over_ssh(self):
        self.expect_patterns(self.validate("ssh_hosts.sh", "-n", 2, "first", "second", "--"), 0,
                             r"(?m)^first: validate: 4 ranks on 1 host, no findings")
        self.assertEqual(self.hosts_of_run()[0], 4)

    def test_ps_does_not_show_the_secret(self):
        self.env["SHARDPROOF_SECRET"] = "b01d9ecc41f8a7f3a4cf9d3e"
        self.assertEqual(self.validate("ssh_hosts.sh", "first", "second", "--")[0], 0)
        listings = [path.read_text() for path in self.folder.glob("ps.*")]
        self.assertEqual(len(listings), 2)
        for listing in listings:
            self.says(listing, "ssh_hosts.sh", absent=[self.env["SHARDPROOF_SECRET"]])

    def test_ranks_get_the_time_to_wait_of_the_caller(self):
        (self.folder / "program").write_text('#!/bin/bash\necho "waits for $SHARDPROOF_MEETING_S s"\n')
        (self.folder / "program").chmod(0o755)
        self.env |= {"SHARDPROOF": str(self.folder / "program"), "SHARDPROOF_MEETING_S": "77"}
        status, text = self.validate("ssh_hosts.sh", "first", "second", "--")
        self.assertEqual((status, text.count("waits for 77 s")), (0, 2), text)

    def test_a_host_that_ssh_does_not_reach_ends_all(self):
        start = time.monotonic()
        self.expect(self.validate("ssh_hosts.sh", "first", "gone", "--"), 3, "ssh_hosts: gone: rank 1 did not start")
        self.assertLess(time.monotonic() - start, 110)  # control alone would wait 120 s for the rank

    def test_the_exit_status_is_that_of_rank_0(self):
        (self.folder / "suite.yaml").write_text("no_such_key: 1\n")
        self.assertEqual(self.validate("ssh_hosts.sh", "first", "second", "--")[0], 2)
        (self.folder / "suite.yaml").write_text(SUITE + "faults: [{kind: corrupt, rank: 1, side: output}]\n")
        self.assertEqual(self.validate("ssh_hosts.sh", "-n", 2, "first", "second", "--")[0], 1)

    def test_ctrl_c_ends_all_ranks(self):
        self.assert_ctrl_c_ends_all_ranks("first", "second")

    def assert_ctrl_c_ends_all_ranks(self, *hosts):
        process = self.start("ssh_hosts.sh", "-n", 2, *hosts, "--", "validate", self.folder / "suite.yaml",
                             "--minutes", 5, "--out", self.folder / "run")
        said = iter(process.stdout.readline, "")  # the hosts' own start-up files may say something first
        self.assertTrue(any("environment" in line for line in said))
        process.send_signal(signal.SIGINT)
        self.expect(ended(process, 180), 130)
        left = subprocess.run(["pgrep", "-f", f"validate {self.folder}/suite.yaml"], stdout=subprocess.PIPE).stdout
        self.assertEqual(left, b"")

    @unittest.skipUnless(MANY and os.geteuid() == 0, "runs with --many, as root")
    def test_two_hosts_on_this_machine(self):
        for launcher in self.launchers():
            words = (launcher, self.folder / "suite.yaml", "--out", self.folder / "run")
            self.expect(ended(self.start("two_hosts.sh", *words), 180), 0, "two hosts of two ranks are validated, no findings")
            self.assertEqual(self.hosts_of_run(), (4, ["host0", "host1"]))

    def launchers(self):
        return ["ssh"] + ["torchrun"] * (machines.ROOT / ".venv/bin/torchrun").exists()

    @unittest.skipUnless(MANY and os.geteuid() == 0, "runs with --many, as root")
    def test_two_hosts_has_the_exit_status_of_validate(self):
        for text, expected in ((SUITE + "faults: [{kind: corrupt, rank: 1, side: output}]\n", 1),
                               (SUITE + "faults: [{kind: kill, rank: 2, at_call: 0, stage: groups}]\n", 3),
                               ("no_such_key: 1\n", 2)):
            (self.folder / "suite.yaml").write_text(text)
            for launcher in self.launchers():
                with self.subTest(launcher=launcher, expected=expected):
                    process = self.start("two_hosts.sh", launcher, self.folder / "suite.yaml", "--out", self.folder / "run")
                    said = self.expect(ended(process, 180), expected)
                    self.assertNotIn("are validated", said)
                    self.assertTrue(said.endswith(f"(exit status {expected})\n"), said)

    @unittest.skipUnless(MANY and os.geteuid() == 0, "runs with --many, as root")
    def test_ending_two_hosts_ends_the_job(self):
        for launcher in self.launchers():
            for number in (signal.SIGTERM, signal.SIGKILL):
                with self.subTest(launcher=launcher, signal=number):
                    self.end_two_hosts(launcher, number)

    def end_two_hosts(self, launcher, number):
        """The script alone, in the middle of a validation: none of its processes is left."""
        mark = self.env[MARK] = f"{os.getpid()}-{launcher}-{number}"
        self.env["TMPDIR"] = str(self.folder)
        self.addCleanup(lambda: kill_all(marked(mark)))
        process = self.start("two_hosts.sh", launcher, self.folder / "suite.yaml", "--minutes", 2, "--out",
                             self.folder / "run")
        self.addCleanup(process.stdout.close)
        said = iter(process.stdout.readline, "")
        self.assertTrue(any("groups" in line for line in said))
        self.assertGreater(len(marked(mark)), 4)
        process.send_signal(number)
        text, _ = process.communicate(timeout=BOUND_S)
        self.assert_marked_end(mark, lambda: text, BOUND_S)
        self.assertEqual(process.returncode, 143 if number == signal.SIGTERM else -number, text)

    def test_two_hosts_refuses_wrong_words(self):
        for words, expected, says in ((["mpirun"], 2, "mpirun is neither torchrun, ssh, an option nor a file"),
                                      (["ssh", "SSH"], 2, "SSH is neither torchrun, ssh, an option nor a file"),
                                      (["ssh", "--ranks", "4"], 2, "leave --ranks out"),
                                      (["torchrun", "--ranks=4"], 2, "leave --ranks=4 out"),
                                      (["--help"], 0, "two_hosts.sh [torchrun|ssh]"),
                                      (["ssh", "--help"], 0, "two_hosts.sh [torchrun|ssh]")):
            text = self.expect(ended(self.start("two_hosts.sh", *words), 60), expected, says)
            self.assertNotIn("are validated", text)

    def sshd(self):
        """The path of sshd and the folder of libraries that it needs."""
        if shutil.which("sshd"):
            return shutil.which("sshd"), ""
        if subprocess.run(["apt-get", "download", "openssh-server", "libwrap0"], cwd=self.folder,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode != 0:
            self.skipTest("no sshd, and apt-get could not download openssh-server")
        for package in glob.glob(f"{self.folder}/*.deb"):
            subprocess.run(["dpkg", "-x", package, self.folder / "debian"], check=True)
        return str(self.folder / "debian/usr/sbin/sshd"), glob.glob(f"{self.folder}/debian/**/*-linux-gnu", recursive=True)[0]

    @unittest.skipUnless(MANY and os.geteuid() == 0, "runs with --many, as root")
    def test_sshd(self):
        (self.folder / "ssh").unlink()  # the real one
        program, libraries = self.sshd()
        for key in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / key], check=True)
        users = Path("/etc/passwd").read_text() + "sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin\n"
        (self.folder / "passwd").write_text(users)
        (self.folder / "passwd").chmod(0o644)
        port = machines.free_port()
        (self.folder / "config").write_text(
            f"Port {port}\nListenAddress 127.0.0.1\nListenAddress 127.0.0.2\nHostKey {self.folder}/host\nStrictModes no\n"
            f"AuthorizedKeysFile {self.folder}/user.pub\nPidFile none\nPermitRootLogin yes\n")
        daemon = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", 'mount --bind "$0/passwd" /etc/passwd && mount -t tmpfs none /run && '
             'mkdir -m 755 /run/sshd && exec "$1" -D -e -f "$0/config"', self.folder, program],
            env=self.env | {"LD_LIBRARY_PATH": libraries}, stdout=open(self.folder / "log", "w"), stderr=subprocess.STDOUT)
        self.addCleanup(lambda: (daemon.kill(), daemon.wait()))
        self.env["SSH"] = (f"ssh -p {port} -i {self.folder}/user -o BatchMode=yes -o StrictHostKeyChecking=no "
                           f"-o UserKnownHostsFile={self.folder}/known")
        wait_for(lambda: "listening on 127.0.0.1" in (self.folder / "log").read_text(), 60)
        status, text = self.validate("ssh_hosts.sh", "-n", 2, "root@127.0.0.1", "root@127.0.0.2", "--")
        self.assertEqual(status, 0, text + (self.folder / "log").read_text())
        self.assertRegex(text, r"(?m)^root@127.0.0.1: validate: 4 ranks on 1 host, no findings")
        self.assertEqual((self.folder / "log").read_text().count("Accepted publickey"), 4)
        self.assert_ctrl_c_ends_all_ranks("root@127.0.0.1", "root@127.0.0.2")

    @unittest.skipUnless(MANY, "runs with --many")
    def test_manifests_agree_with_their_schemas(self):
        python = self.folder / "env/bin/python"
        subprocess.run([sys.executable, "-m", "venv", self.folder / "env"], check=True)
        if subprocess.run([python, "-m", "pip", "install", "-q", "kubernetes-validate==1.37.0",
                           "kubeflow-trainer-api==2.3.0"]).returncode != 0:
            self.skipTest("pip could not install kubernetes-validate and kubeflow-trainer-api")
        done = subprocess.run([python, "-c", SCHEMAS, EXAMPLES], text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
        self.assertEqual((done.returncode, done.stdout),
                         (0, "right Service\nright Job\nright JobSet\na wrong key is refused\n"))

    def test_the_container_file_installs_what_package_makes(self):
        text = (EXAMPLES / "Containerfile").read_text().replace("\\\n", " ")
        words = [line.split()[0] for line in text.splitlines() if line and not line.startswith("#")]
        self.assertEqual(words, ["FROM", "RUN", "COPY", "RUN", "WORKDIR", "RUN", "USER", "ENTRYPOINT", "CMD"])
        self.assertTrue(re.search(r"^COPY requirements\.txt \*\.whl ", text, re.MULTILINE))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background command ignores it
    PROGRAM = machines.program()
    unittest.main(argv=[word for word in sys.argv if word != "--many"])
