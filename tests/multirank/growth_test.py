#!/usr/bin/env python3
"""A thousand cases in one launcher: memory, file descriptors and processes stay as they are.

  growth_test.py PROGRAM

Over Gloo three hundred, which take longer; GROWTH_CASES=1000 in the environment changes both.
"""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
from processes import descendants, process_of  # noqa: E402

PROGRAM = ROOT / "build/dev/shardproof-bin"

CASES = {"emulated": 1000, "gloo": 300}
EARLY = 150  # by now every pool, cache and warm world has its size
# Every ten cases another batch: goldens are made and forgotten all the way through.
SCENARIO = """
name: growth
workload: train
model: {{vocab_size: 8, hidden_size: 8, intermediate_size: 8, num_attention_heads: 2, num_hidden_layers: 1}}
data: {{batch_size: 2, sequence_length: 4}}
precision: float64
parallel: {{tensor_parallel_size: 2}}
world: {{backend: {backend}}}
matrix:
  data.token_mask_probability: [{probabilities}]
  world.deadline_s: [{deadlines}]
"""


def usage(root):
    """[(name, its own megabytes, open descriptors)] of every process of a run, by name."""
    found = []
    for pid, name in [(root, process_of(root).name), *descendants(root).items()]:
        fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        found.append((name, int(fields["RssAnon"].split()[0]) / 1024, descriptors))
    return sorted(found)


class Growth(unittest.TestCase):
    def usages(self, backend):
        """What the run uses after EARLY cases and after nearly all of them."""
        cases = int(os.environ.get("GROWTH_CASES", CASES[backend]))
        with tempfile.TemporaryDirectory() as folder:
            scenario = Path(folder) / "growth.yaml"
            scenario.write_text(SCENARIO.format(
                backend=backend,
                probabilities=", ".join(str(0.5 + i / 1000) for i in range(cases // 10)),
                deadlines=", ".join(str(60 + i) for i in range(10))))
            run = subprocess.Popen(
                [PROGRAM, "run", scenario, "--no-cache", "--out", Path(folder) / "run"], cwd=ROOT,
                text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            self.addCleanup(run.kill)
            seen, samples, text = 0, {}, []
            for line in run.stdout:
                text.append(line)
                seen += line.startswith("match")
                if seen in (EARLY, cases - 5) and seen not in samples:
                    samples[seen] = usage(run.pid)
            self.assertEqual(run.wait(), 0, "".join(text[-20:]))
            self.assertEqual(seen, cases, "".join(text[-20:]))
            run.stdout.close()
            return samples[EARLY], samples[cases - 5]

    def check(self, backend):
        early, late = self.usages(backend)
        shown = f"\nafter {EARLY} cases: {early}\nat the end: {late}"
        print(f"{backend}, name, MB, descriptors:{shown}")
        self.assertEqual([name for name, _, _ in early], [name for name, _, _ in late], shown)
        for (name, early_mb, early_fds), (_, late_mb, late_fds) in zip(early, late):
            self.assertLessEqual(late_fds, early_fds + 2, name + shown)
            self.assertLessEqual(late_mb, early_mb * 1.1 + 4, name + shown)

    def test_emulated(self):
        self.check("emulated")

    def test_gloo(self):
        self.check("gloo")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        PROGRAM = Path(sys.argv.pop(1)).resolve()
    unittest.main()
