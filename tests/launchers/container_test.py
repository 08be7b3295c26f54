#!/usr/bin/env python3
"""The image of examples/cluster/Containerfile, built by podman on a Debian 12 that mmdebstrap makes, and containers of
it as pods: the variables of job.yaml and jobset.yaml, names and addresses of their own, a user that is not root.

  container_test.py BUILD_FOLDER

It needs root, podman, mmdebstrap and the network, downloads 0.7 GB and takes 3 GB of the temporary folder while it runs;
SHARDPROOF_WHEELS names a folder of wheels that are at hand. Exit status 77: it cannot run here. Not tested: a
registry, and what only a Kubernetes does (DNS, starting pods again, secrets from its store).
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import machines  # makes tests/support importable
from processes import process_of
from said import ended

sys.path.insert(0, str(machines.ROOT / "tests/package"))
import bare_test  # noqa: E402

COUNT = 4
EXAMPLES = machines.ROOT / "examples/cluster"
SECRET = "0b6d8f1f4f3e2a795a1f0d4c6b8e9a72"
# podman sees cgroup v2 there, which crun asks for, and none of its containers is put into one: the test needs no
# right over the machine's own. The limits are those of this process, which not every root may raise.
PODMAN = "mount -t cgroup2 none /sys/fs/cgroup && exec podman \"$@\""


def podman(*words):
    return ["unshare", "--mount", "sh", "-c", PODMAN, "podman", "--root", f"{STORE}/store", "--runroot",
            f"{STORE}/run", *map(str, words)]


def build_image(build, folder):
    """From the file as it is; pip alone is told to take the wheels from a folder."""
    bare_test.make_system(folder / "debian.tar")
    bare_test.make_wheel(build, folder / "package")
    (folder / "wheels").mkdir()
    bare_test.add_required(folder / "wheels")
    (folder / "pip.conf").write_text("[global]\nno-index = true\nfind-links = /mnt\n")
    subprocess.run(podman("import", "--quiet", folder / "debian.tar", "docker.io/library/debian:12"), check=True)
    subprocess.run(podman("build", "--quiet", "--isolation", "chroot", "-v", f"{folder}/pip.conf:/etc/pip.conf:ro",
                          "-v", f"{folder}/wheels:/mnt:ro", "-t", "shardproof", "-f", EXAMPLES / "Containerfile",
                          folder / "package"), check=True)


def address(number):
    return f"10.79.0.{number + 1}"


def joined_machines():
    return machines.switched([f"host{number}" for number in range(COUNT)], address)


class Containers(machines.SwitchedTest):
    @classmethod
    def setUpClass(cls):
        """The wheel, the base, the image; podman's mounts go with the namespaces in which it runs."""
        global STORE
        STORE = Path(tempfile.mkdtemp(prefix="image."))
        cls.addClassCleanup(shutil.rmtree, STORE)
        build_image(BUILD, STORE)

    def setUp(self):
        super().setUp()
        self.join(joined_machines())

    def variables(self, manifest):
        """Those that the manifest itself gives, after a look at where it takes the other two from."""
        text = (EXAMPLES / manifest).read_text()
        self.assertRegex(text, r"image: shardproof\n +args: \[validate\]\n")
        self.assertRegex(text, r"- name: RANK\b[^-]*valueFrom:\s+\{?fieldRef: .*job-completion-index")
        self.assertRegex(text, r"- name: SHARDPROOF_SECRET\n +valueFrom: \{secretKeyRef: ")
        found = dict(re.findall(r'- \{name: (\w+), value: "?([^"}]+)"?\}', text))
        self.assertEqual(found["WORLD_SIZE"], str(COUNT))
        return found

    def pod(self, manifest, rank, *options, secret=SECRET, words=("validate",)):
        variables = self.variables(manifest) | {"RANK": str(rank)} | ({"SHARDPROOF_SECRET": secret} if secret else {})
        master = variables["MASTER_ADDR"]
        settings = [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
        command = podman("run", "--rm", "--cgroups=disabled", "--ulimit", "nofile=4096:4096", "--ulimit",
                         "nproc=4096:4096", "--network", f"ns:/proc/{self.nodes[rank].holder.pid}/ns/net",
                         "--hostname", master.split(".")[0][:-1] + str(rank), "--add-host", f"{master}:{address(0)}",
                         *settings, *options, "shardproof", *words)
        process = subprocess.Popen(command, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT)
        self.addCleanup(lambda: process.poll() is None and (process.terminate(), process.communicate()))
        return process

    def results(self):
        """A volume for rank 0 in which any user may write, as an emptyDir is."""
        volume = self.folder / "work"
        volume.mkdir()
        volume.chmod(0o777)
        return volume

    def assert_validated(self, pods, volume, prefix):
        outputs = [pod.communicate(timeout=300)[0] for pod in pods]
        self.assertEqual([pod.returncode for pod in pods], [0] * COUNT, outputs)
        self.assertRegex(outputs[0], r"(?m)^validate: 4 ranks on 4 hosts, no findings in \S+ s; exit status 0$")
        file = volume / "runs/latest/validation.json"
        found = json.loads(file.read_text())
        self.assertEqual([host["name"] for host in found["hosts"]], [f"{prefix}{rank}" for rank in range(COUNT)])
        return file, outputs[0]

    def test_the_job(self):
        volume = self.results()
        pods = [self.pod("job.yaml", rank, "-v", f"{volume}:/work") for rank in range(COUNT)]
        file, _ = self.assert_validated(pods, volume, "validate-ranks-")
        self.assertEqual(file.stat().st_uid, 1000)

    def test_the_job_set_as_a_drawn_user_on_a_file_system_that_is_read_only(self):
        volume = self.results()
        options = ("--user", "1000650000:0", "--read-only", "--read-only-tmpfs=false")
        pods = [self.pod("jobset.yaml", rank, *options, "-v", f"{volume}:/work") for rank in range(COUNT)]
        file, _ = self.assert_validated(pods, volume, "validate-ranks-0-")
        self.assertEqual(file.stat().st_uid, 1000650000)

    def test_a_pod_with_another_secret_is_refused_and_its_successor_is_not(self):
        volume = self.results()
        pods = [self.pod("job.yaml", rank, "-v", f"{volume}:/work") for rank in range(COUNT - 1)]
        stranger = self.pod("job.yaml", COUNT - 1, secret=SECRET[::-1])
        self.expect(ended(stranger, 120), 2, "secret")
        pods.append(self.pod("job.yaml", COUNT - 1))
        _, text = self.assert_validated(pods, volume, "validate-ranks-")
        self.assertIn(f"1 connection without the secret was refused, from {address(COUNT - 1)}", text)

    def test_a_secret_in_a_file_that_the_user_owns(self):
        file = self.folder / "secret"
        file.write_text(SECRET)
        options = ("--env", "SHARDPROOF_SECRET_FILE=/secret", "-v", f"{file}:/secret:ro")
        file.chmod(0o440)
        os.chown(file, 0, 0)
        self.expect(ended(self.pod("job.yaml", 1, *options, secret=None), 60), 2, "/secret has mode 0440")
        file.chmod(0o400)
        os.chown(file, 1000, 0)
        volume = self.results()
        options += ("-v", f"{volume}:/work")
        pods = [self.pod("job.yaml", rank, *options, secret=None) for rank in range(COUNT)]
        self.assert_validated(pods, volume, "validate-ranks-")

    def runs_in(self, node):
        """Whether the program has started in a pod of this machine."""
        there = filter(None, map(process_of, node.processes()))
        return any(one.name.startswith("shardproof") for one in there)

    def test_a_pod_that_waits_ends_when_it_is_told_to(self):
        pod = self.pod("job.yaml", 1)  # nobody is rank 0
        machines.wait_for(lambda: self.runs_in(self.nodes[1]), 30)
        time.sleep(1)
        self.assertIsNone(pod.poll())
        pod.terminate()
        self.expect(ended(pod, 10), 128 + signal.SIGTERM)

    def test_the_image(self):
        shown = json.loads(subprocess.check_output(podman("image", "inspect", "shardproof")))[0]
        print(f"{shown['Size'] / 1e9:.2f} GB")
        self.assertEqual((shown["User"], shown["Config"]["WorkingDir"]), ("1000", "/work"))
        self.assertLess(shown["Size"], 2e9)
        said = subprocess.check_output(podman("run", "--rm", "--cgroups=disabled", "--ulimit", "nofile=4096:4096",
                                              "--ulimit", "nproc=4096:4096", "--network", "none", "shardproof",
                                              "version"), text=True)
        self.assertRegex(said, r"^shardproof \S+ \(LibTorch \S+\)\n$")


if __name__ == "__main__":
    if os.geteuid() != 0 or not all(map(shutil.which, ("podman", "mmdebstrap", "ip"))):
        print("needs root, podman, mmdebstrap and ip")
        sys.exit(77)
    BUILD = Path(sys.argv.pop(1)).resolve()
    machines.main(joined_machines)
