#!/usr/bin/env python3
"""Single layers at a real size: ours beside the reference's algorithm in PyTorch, in one run.

  bench/layers.py [--program FILE] [--binary FILE] [--runs N]

Cross entropy of 4096 tokens over 16384 columns of logits, forward and backward, with and without label
smoothing: the reference's steps (whole softmax kept in float32, written in place) run in PyTorch, each
kind in a fresh process so that its peak memory can be told. float32 logits are overwritten by that
algorithm; a second figure has them copied first, as a caller must who needs them again.

Addition and RMSNorm in one pass over the rows, and apart.

The backward of a column parallel linear layer on the virtual clock (scenarios/clock/linear_backward.yaml:
the link has a latency of 10 us and 1 GB/s, products 1 GFLOP/s): the gradient of the input reduced behind
the product of the weight's, and after it. The same times on any machine.

Each side computes with one thread, as a rank of several on a machine does. Freed memory stays with the process
where addition and norm are timed, as it does with an allocator that caches: else most of the time is the
kernel's, which fills pages. Run it on an idle machine; where it is not, CPU seconds say more than wall seconds.
Nothing here is asserted.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from run import peer_command

ROOT = Path(__file__).resolve().parents[1]
ROWS, COLUMNS = 4096, 16384


def memory_of_process(which):
    """Bytes: VmRSS, or VmHWM (the peak)."""
    for entry in Path("/proc/self/status").read_text().splitlines():
        if entry.startswith(which + ":"):
            return int(entry.split()[1]) * 1024
    return 0


def reference(dtype, smoothing, keeps_input, runs):
    """Seconds and growth of peak memory of the reference's algorithm, in this process."""
    import torch

    torch.set_num_threads(1)  # as a rank here: ranks share the cores

    class CrossEntropy(torch.autograd.Function):
        """One rank's columns are all there are: no collectives."""

        @staticmethod
        def forward(ctx, logits, target):
            work = logits.float()
            if keeps_input and work.data_ptr() == logits.data_ptr():
                work = work.clone()
            work -= work.max(dim=-1)[0].unsqueeze(-1)
            foreign = (target < 0) | (target >= COLUMNS)
            rows = torch.arange(work.size(0))
            picked = work[rows, target].clone()
            torch.exp(work, out=work)
            total = work.sum(dim=-1)
            loss = torch.log(total) - picked
            work.div_(total.unsqueeze(-1))
            if smoothing > 0:
                share = smoothing * COLUMNS / (COLUMNS - 1)
                loss = (1 - share) * loss - share * torch.log(work).mean(dim=-1)
            ctx.save_for_backward(work, foreign, target)
            return loss

        @staticmethod
        def backward(ctx, grad):
            softmax, foreign, target = ctx.saved_tensors
            rows = torch.arange(softmax.size(0))
            update = 1.0 - foreign.float()
            if smoothing > 0:
                share = smoothing * COLUMNS / (COLUMNS - 1)
                softmax[rows, target] -= (1 - share) * update
                softmax[rows, :] -= share / COLUMNS
            else:
                softmax[rows, target] -= update
            return softmax.mul_(grad.unsqueeze(-1)), None

    logits = torch.randn(ROWS, COLUMNS).to(getattr(torch, dtype)).requires_grad_()
    target = torch.randint(COLUMNS, (ROWS,))
    grad = torch.rand(ROWS)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted anew
    before = memory_of_process("VmRSS")
    best = best_cpu = float("inf")
    for _ in range(runs):
        logits.grad = None
        started, started_cpu = time.perf_counter(), time.process_time()
        CrossEntropy.apply(logits, target).backward(grad)
        best = min(best, time.perf_counter() - started)
        best_cpu = min(best_cpu, time.process_time() - started_cpu)
        if not keeps_input and dtype == "float32":
            with torch.no_grad():
                logits.normal_()  # what it wrote over
    grown = memory_of_process("VmHWM") - before
    return {"seconds": best, "cpu_seconds": best_cpu, "peak_bytes": grown,
            "shard_bytes": logits.numel() * logits.element_size()}


def call(command, environment=None):
    done = subprocess.run([str(word) for word in command], text=True, stdout=subprocess.PIPE,
                          check=True, env=environment)
    return json.loads(done.stdout)


def line(name, figures):
    print(f"  {name:34} {1000 * figures['seconds']:5.0f} ms, {1000 * figures['cpu_seconds']:5.0f} ms of "
          f"CPU   peak extra memory "
          f"{figures['peak_bytes'] / figures['shard_bytes']:.2f} x the logits")


def cross_entropy(program, runs):
    for dtype in ("bfloat16", "float32"):
        for smoothing in (0.0, 0.1):
            print(f"cross entropy [{ROWS}, {COLUMNS}] {dtype}, label smoothing {smoothing}")
            ours = call([program, "cross_entropy", dtype, ROWS, COLUMNS, smoothing, runs])
            line("here", ours)
            for keeps in ((True,) if dtype == "bfloat16" else (True, False)):
                command, environment = peer_command(Path(__file__).name)
                theirs = call(command + ["--reference", dtype, "--smoothing", smoothing, "--runs",
                                         runs] + (["--keeps-input"] if keeps else []), environment)
                line("reference in PyTorch" + ("" if keeps else ", input overwritten"), theirs)
                print(f"  {'':34} {theirs['seconds'] / ours['seconds']:.1f} times the time, "
                      f"{theirs['cpu_seconds'] / ours['cpu_seconds']:.1f} times the CPU time, "
                      f"{theirs['peak_bytes'] / max(ours['peak_bytes'], 1):.1f} times the memory")


def add_norm(program, runs):
    for dtype in ("bfloat16", "float32"):
        # The first few runs fill pages that the later ones find in place.
        took = call([program, "add_norm", dtype, 2048, 2048, 0, max(runs, 15)])
        print(f"{dtype}, 2048 tokens of width 2048, CPU time: addition and norm in one pass "
              f"{1000 * took['joined']:.1f} ms, apart {1000 * took['apart']:.1f} ms "
              f"({took['apart'] / took['joined']:.1f} times)")


def overlap(binary):
    """Virtual microseconds of whole cases: both ranks, forward and backward."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([str(binary), "run", str(ROOT / "scenarios/clock/linear_backward.yaml"), "--backend",
                        "emulated", "--out", folder + "/run"], check=True, stdout=subprocess.DEVNULL)
        results = json.loads(Path(folder, "run", "results.json").read_text())
    times = {case["name"].split("layer=")[-1].split("[")[-1].rstrip("]"): case["virtual_time"]
             for case in results["cases"]}
    for kind in ("", "_sp"):
        together, apart = times["overlapped" + kind], times["sequential" + kind]
        exposed = [max(rank["exposed_us"] for rank in time["ranks"]) for time in (together, apart)]
        print(f"linear layer{', sequence parallel' if kind else ''}, virtual time: overlapped "
              f"{together['total_us']:.1f} us ({exposed[0]:.1f} waited for calls), one after the other "
              f"{apart['total_us']:.1f} us ({exposed[1]:.1f})")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", type=Path,
                        default=ROOT / "build/release/shardproof-layer-bench")
    parser.add_argument("--binary", type=Path, default=ROOT / "build/release/shardproof-bin")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--reference", help=argparse.SUPPRESS)
    parser.add_argument("--smoothing", type=float, default=0.0, help=argparse.SUPPRESS)
    parser.add_argument("--keeps-input", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.reference:
        print(json.dumps(reference(options.reference, options.smoothing, options.keeps_input,
                                   options.runs)))
        return
    if not options.program.exists():
        sys.exit(f"no {options.program}: ninja -C build/release shardproof-layer-bench")
    cross_entropy(options.program, options.runs)
    add_norm(options.program, options.runs)
    overlap(options.binary)


if __name__ == "__main__":
    main()
