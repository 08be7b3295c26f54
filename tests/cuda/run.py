#!/usr/bin/env python3
"""Runs on a GPU what only a GPU can show, and writes a report of what ran, what did not, and figures.

  tests/cuda/run.sh [--out DIR] [--program PROGRAM] [--units DIR] [--python PYTHON] [--minutes M]

Needs a machine with an NVIDIA driver, and a LibTorch with CUDA's libraries: `./shardproof build --torch DIR`, or
the wheel of `./shardproof package` beside torch. One GPU is enough: ranks share it, and NCCL connects them by
sockets. Exit status: 0 when all that ran is right, 1 when something is wrong, 2 when there is no GPU.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/release"
OK, WRONG, NOT_RUN = "right", "WRONG", "not run"


class Runner:
    def __init__(self, options):
        self.options, self.rows, self.out = options, [], Path(options.out)
        self.out.mkdir(parents=True, exist_ok=True)
        torch = subprocess.run([options.python, "-c", "import torch; print(torch.__path__[0])"], text=True,
                               stdout=subprocess.PIPE).stdout.strip()
        self.libraries = f"{torch}/lib" if torch else ""

    def call(self, name, command, limit, environment=None):
        """(exit status or None, output, seconds); the output is also a file of the folder."""
        started = time.monotonic()
        given = dict(os.environ, PYTHONPATH=str(ROOT / "python"), **(environment or {}))
        try:
            done = subprocess.run([str(word) for word in command], cwd=ROOT, env=given, text=True, timeout=limit,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace")
            status, text = done.returncode, done.stdout
        except subprocess.TimeoutExpired as late:
            status, text = None, (late.stdout or b"").decode(errors="replace")
        except OSError as error:
            status, text = None, str(error)
        (self.out / f"{name}.log").write_text(text)
        return status, text, time.monotonic() - started

    def note(self, what, outcome, figures, seconds=0.0):
        self.rows.append((what, outcome, figures, seconds))
        print(f"{outcome:8} {what}: {figures} ({seconds:.0f} s)", flush=True)

    def unit(self, what, name, filter_, limit=300):
        program = Path(self.options.units) / name
        if not program.is_file():
            return self.note(what, NOT_RUN, f"{program} was not built")
        status, text, seconds = self.call(name, [program, filter_], limit, {"LD_LIBRARY_PATH": self.libraries})
        if "skipped:" in text:
            return self.note(what, NOT_RUN, re.search(r"skipped: .*", text)[0], seconds)
        summary = re.search(r"All tests passed.*|test cases:.*", text)
        self.note(what, OK if status == 0 and "No tests ran" not in text else WRONG,
                  summary[0] if summary else f"exit status {status}", seconds)

    def scenarios(self, what, name, arguments, limit):
        folder = self.out / name
        shutil.rmtree(folder, ignore_errors=True)
        command = [self.options.program, "run", "--quiet", "--allow-partial", "--out", folder,
                   "--time-budget", limit, *arguments]
        status, text, seconds = self.call(name, command, limit + 120)
        counts = re.search(r"^\d+ (?:of \d+ )?cases: .*", text, re.M)
        self.note(what, OK if status == 0 and counts else WRONG, counts[0] if counts else f"exit status {status}", seconds)

    def report(self, machine):
        lines = ["# What ran on a GPU", "", f"`tests/cuda/run.sh` on {time.strftime('%Y-%m-%d')}.", ""]
        lines += [f"- {line}" for line in machine]
        lines += ["", "| what | outcome | figures | seconds |", "|---|---|---|---|"]
        lines += [f"| {what} | {outcome} | {figures} | {seconds:.0f} |" for what, outcome, figures, seconds in self.rows]
        (self.out / "report.md").write_text("\n".join(lines) + "\n")


def machine_lines(runner):
    fields = "name,driver_version,memory.total,ecc.mode.current,clocks.max.sm,power.limit"
    _, gpus, _ = runner.call("gpus", ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"], 60)
    _, versions, _ = runner.call("versions", [runner.options.python, "-c",
                                 "import torch; print('torch', torch.__version__, 'NCCL', "
                                 "'.'.join(map(str, torch.cuda.nccl.version())))"], 120)
    return [f"GPU: {line}" for line in gpus.splitlines()] + versions.splitlines()[-1:] + [f"{os.cpu_count()} cores"]


def bench(runner):
    program = Path(runner.options.units) / "shardproof-layer-bench"
    if not program.is_file():
        return runner.note("time of the kernel", NOT_RUN, f"{program} was not built")
    for dtype in ("bfloat16", "float32"):
        status, text, seconds = runner.call(f"bench_{dtype}", [program, "add_norm_on_gpu", dtype, 16384, 8192, 0, 50],
                                            120, {"LD_LIBRARY_PATH": runner.libraries})
        what = f"addition and norm of [16384, 8192] {dtype}"
        if status != 0:
            runner.note(what, WRONG, f"exit status {status}", seconds)
            continue
        times = json.loads(text.splitlines()[-1])
        runner.note(what, OK, f"one launch {times['joined'] * 1e6:.0f} µs ({times['joined_gb_s']:.0f} GB/s; a copy "
                    f"{times['copy_gb_s']:.0f} GB/s), apart {times['apart'] * 1e6:.0f} µs", seconds)


def validate(runner, backend, ranks):
    folder = runner.out / f"validate_{backend}"
    shutil.rmtree(folder, ignore_errors=True)
    command = [runner.options.program, "validate", "--ranks", ranks, "--backend", backend, "--device", "cuda",
               "--out", folder]
    status, text, seconds = runner.call(f"validate_{backend}", command, 300)
    lines = text.strip().splitlines()
    runner.note(f"validate, {ranks} ranks, {backend}", OK if status == 0 else WRONG,
                lines[-1] if status == 0 and lines else f"exit status {status}", seconds)


def recorded(runner):
    """FSDP2 and tensor parallelism over NCCL, recorded and judged; and with a gradient that one rank has wrong."""
    folder = runner.out / "recorded"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    launch = [runner.options.python, "-m", "torch.distributed.run", "--no-python"]
    script = f'NCCL_HOSTID=rank$RANK exec {runner.options.python} examples/dtensor_fsdp2/train.py --device cuda "$@"'

    def train(name, ranks, *arguments):
        words = [*launch, "--nproc-per-node", ranks, "--master-port", 29511, "sh", "-c", script, "train",
                 "--out", folder / name, *arguments]
        return runner.call(f"train_{name}", words, 200)

    status, _, first = train("golden", 1)
    status2, _, second = train("run", 4, "--golden", folder / "golden", "--tp", 2)
    if status != 0 or status2 != 0:
        return runner.note("FSDP2 and TP of torch over NCCL, recorded", WRONG, f"exit status {status or status2}",
                           first + second)
    status, text, seconds = runner.call("judge", [runner.options.program, "judge", folder / "run", "--golden",
                                                  folder / "golden"], 120)
    runner.note("FSDP2 and TP of torch over NCCL, recorded", OK if status == 0 else WRONG,
                text.strip().splitlines()[0] if text.strip() else f"exit status {status}", first + second + seconds)


def backend(runner):
    status, text, seconds = runner.call(
        "backend", [runner.options.python, "-m", "unittest", "discover", "-s", "tests/python/backend", "-p",
                    "test_values.py", "-v"], 300, {"SHARDPROOF_TEST_DEVICE": "cuda"})
    summary = re.findall(r"^(?:Ran .*|OK.*|FAILED.*)$", text, re.M)
    runner.note("checking backend of the Python package over NCCL", OK if status == 0 else WRONG,
                ", ".join(summary) or f"exit status {status}", seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=ROOT / "build/cuda", help="folder of the report and the logs")
    parser.add_argument("--program", default=shutil.which("shardproof") or BUILD / "shardproof-bin")
    parser.add_argument("--units", default=BUILD, help="folder of unit_comm, unit_parallel_tp, shardproof-layer-bench")
    parser.add_argument("--python", default=sys.executable, help="a Python with torch")
    parser.add_argument("--minutes", type=float, default=8, help="time for scenarios; the rest takes about 3 minutes")
    options = parser.parse_args()
    runner = Runner(options)
    status, text, _ = runner.call("doctor", [options.program, "doctor"], 120)
    worlds = dict(re.findall(r"^world +(\S+ +cuda) +(.*)$", text, re.M))
    if status != 0 or not any(state == "yes" for state in worlds.values()):
        print("\n".join(f"{world}: {state}" for world, state in worlds.items()) or text.strip(), file=sys.stderr)
        return 2
    machine = machine_lines(runner)
    print("\n".join(machine), flush=True)
    runner.unit("collectives on CUDA tensors, emulated and NCCL", "unit_comm", "[cuda]")
    runner.unit("kernel of addition and RMSNorm", "unit_parallel_tp", "the CUDA kernel*")
    bench(runner)
    recorded(runner)
    backend(runner)
    validate(runner, "emulated", 8)
    validate(runner, "nccl", 4)
    seconds = int(options.minutes * 60)
    runner.scenarios("smoke scenarios, NCCL", "smoke_nccl", ["scenarios/smoke", "--device", "cuda", "--backend", "nccl"], 120)
    runner.scenarios("default scenarios, emulated", "emulated",
                     ["--device", "cuda", "--backend", "emulated", "--shuffle", 1, "-j", max(2, os.cpu_count() - 2)], seconds * 2 // 5)
    runner.scenarios("default scenarios, NCCL", "nccl", ["--device", "cuda", "--backend", "nccl", "--shuffle", 1],
                     seconds * 3 // 5)
    runner.report(machine)
    wrong = sum(outcome == WRONG for _, outcome, _, _ in runner.rows)
    print(f"{len(runner.rows)} parts, {wrong} wrong: {Path(options.out) / 'report.md'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
