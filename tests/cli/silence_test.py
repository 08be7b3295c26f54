#!/usr/bin/env python3
"""What a rank does not observe is missing on that rank: each planted silence, in the emulated and in the Gloo world.

  silence_test.py PROGRAM
"""

import re
from pathlib import Path

import cli_test

SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"
PLANTED = re.compile(r"kind: silence, rank: (\d+), step: (\d+), .*?label: ([\w.]+)")


def planted(file):
    """{name of the case: its silences, (rank, step, label) each}"""
    _, *rows = re.split(r"^    - name: (\w+)$", file.read_text(), flags=re.MULTILINE)
    found = {name: PLANTED.findall(row) for name, row in zip(rows[::2], rows[1::2])}
    return {name: silences for name, silences in found.items() if silences}


class Silence(cli_test.CommandTest):
    def check(self, scenario, kinds):
        cases = planted(SCENARIOS / f"{scenario}.yaml")
        self.assertEqual(len(cases), kinds)
        for backend in ("emulated", "gloo"):
            self.run_to_end("run", SCENARIOS / f"{scenario}.yaml", "--filter", "silence", "--backend", backend,
                            "--no-skips", "--out", backend)
            results = {re.search(r"\[(\w+)", one["name"])[1]: one for one in self.results(backend)["cases"]}
            self.assertEqual(set(results), set(cases))
            for name, silences in cases.items():
                with self.subTest(backend=backend, case=name):
                    found = results[name]["divergence"]
                    ranks, steps, labels = (set(column) for column in zip(*silences))
                    if len(ranks) == results[name]["world_size"]:
                        self.assertIn("no rank observed it", found["pattern"])
                        self.assertEqual(found["ranks"], [])
                    else:
                        self.assertEqual(found["ranks"], sorted(map(int, ranks)))
                    self.assertEqual({str(found["step"])}, steps)
                    self.assertTrue(all(found["tensor"].endswith(label) for label in labels), found["tensor"])

    def test_of_each_kind_of_observation(self):
        self.check("faults/silence", kinds=10)

    def test_on_a_stage_and_at_its_boundaries(self):
        self.check("pp/faults", kinds=4)

    def test_what_no_golden_names_cannot_be_silent(self):
        # The proofs of the optimizer: nothing would miss them.
        text = (SCENARIOS / "faults/silence.yaml").read_text()
        case = text[:text.index("matrix:")] + "faults: [{kind: silence, rank: 1, label: LABEL}]\n"
        for label in ("fed.param.model.norm.weight", "initial.model.norm.weight"):
            text_of_run = self.call("run", self.write("silence.yaml", case.replace("LABEL", label)), status=2)
            self.assertIn("observed no tensor of the golden", " ".join(text_of_run.split()))


if __name__ == "__main__":
    cli_test.main()
