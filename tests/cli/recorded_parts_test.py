#!/usr/bin/env python3
"""`judge RUN --golden RUN1`: causes in how ranks share a sequence or a batch, gradients that were left from the step
before, and what to record where too little is known.

Usage: recorded_parts_test.py PROGRAM [unittest arguments]
"""
import cli_test
from recorded_test import JudgedTest, Run, cut, values_of

ROWS, POSITIONS, WIDE = 3, 8, 6
WEIGHTS = {"pos.weight": (POSITIONS, WIDE), "emb.weight": (10, WIDE), "head.weight": (10, WIDE)}


def other(name, values):
    return [value + 0.3 * more for value, more in zip(values, values_of("noise " + name, WEIGHTS[name]))]


class Parts(JudgedTest):
    def made(self, axis=None, size=1, steps=1, logprobs=None, gradient=None, outputs=False):
        """A run of which `axis` cuts the sequence. logprobs(values) and gradient(step, name, values) change what it has."""
        run = Run([(axis, size)] if axis else [], steps=steps)
        for rank in range(run.world_size):
            for step in range(1, steps + 1):
                values = values_of(f"logprobs {step}", (ROWS, POSITIONS))
                run.box(rank, "logprobs", "logprobs", logprobs(values) if logprobs else values, (ROWS, POSITIONS), 1,
                        rank, size, step=step)
                if outputs:
                    run.add(rank, "act", "norm.output", [1.0, 2.0], (2,), step)
                for name, shape in WEIGHTS.items():
                    values = values_of(f"{name} {step}", shape)
                    run.add(rank, "grad", name, gradient(step, name, values) if gradient else values, shape, step)
        return run

    def judged(self, golden=None, mesh=("cp", 2), steps=1, golden_outputs=False, **changes):
        text = self.judged_pair(self.made(steps=steps, gradient=golden, outputs=golden_outputs),
                                self.made(*mesh, steps=steps, **changes)).stdout
        lines = {line.split()[0]: line.strip() for line in text.splitlines() if line.startswith("  ")}
        return lines.get("likely", "") + lines.get("note", "")

    # --- Parts of a sequence

    def wrong_at(self, positions):
        return lambda values: [value + 0.25 * (i % POSITIONS in positions) for i, value in enumerate(values)]

    def test_labels_that_were_shifted_after_the_cut(self):
        for size, last in ((2, (3, 7)), (4, (1, 3, 5))):
            with self.subTest(size=size):
                said = self.judged(mesh=("cp", size), logprobs=self.wrong_at(last))
                self.assertIn("the labels were shifted after the sequence was cut: only the last position along dim 1 of a "
                              "rank's part is wrong, and its label is the first token of the part after it", said)
        self.assertIn("only the first position", self.judged(logprobs=self.wrong_at((4,))))

    def test_other_positions_are_no_edges(self):
        for positions in ((7,), (0,), (3, 4), (3, 5), (2,)):
            with self.subTest(positions=positions):
                self.assertNotIn("shifted", self.judged(logprobs=self.wrong_at(positions)))

    def anew(self, first):
        """Rows of pos.weight from `first` on are zero; other values differ."""
        def gradient(step, name, values):
            return [0.0 if name == "pos.weight" and i // WIDE >= first else value
                    for i, value in enumerate(other(name, values))]
        return gradient

    def test_positions_that_begin_anew_on_each_rank(self):
        for size, first in ((2, 4), (4, 2)):
            with self.subTest(size=size):
                said = self.judged(mesh=("cp", size), logprobs=self.wrong_at(range(first, 8)), gradient=self.anew(first))
                self.assertIn(f"positions begin anew on each rank of cp: rows {first} to 7 of grad.pos.weight are zero", said)

    def test_the_axis_of_positions_is_that_of_the_wrong_ranks(self):
        """dp and cp have one size; the ranks 1 and 3, of cp 1, are wrong."""
        def made(rows, gradient=None):
            run = Run([("dp", 2), ("cp", 2)])
            for rank in range(4):
                whole = rows if rank % 2 else values_of("logprobs 1", (ROWS, POSITIONS))
                run.box(rank, "logprobs", "logprobs", whole, (ROWS, POSITIONS), 1, rank % 2, 2)
                for name, shape in WEIGHTS.items():
                    values = values_of(f"{name} 1", shape)
                    run.add(rank, "grad", name, gradient(1, name, values), shape)
            return run
        rows = self.wrong_at(range(4, 8))(values_of("logprobs 1", (ROWS, POSITIONS)))
        text = self.judged_pair(self.made(), made(rows, self.anew(4))).stdout
        self.assertIn("positions begin anew on each rank of cp: rows 4 to 7", text)

    def test_other_rows_are_no_positions(self):
        self.says(self.judged(logprobs=self.wrong_at(range(4, 8)), gradient=self.anew(5)),
                  "3 of 8 rows of grad.pos.weight", absent=["anew"])

    # --- Parts of a batch

    def tokens(self, factors):
        """Rows of emb.weight are multiples of the reference's, or other values; tokens 0 and 9 do not occur."""
        def gradient(step, name, values):
            if name != "emb.weight":
                return other(name, values) if factors else values
            whole = other(name, values) if factors else values
            return [0.0 if i // WIDE in (0, 9) else values[i] * factors[i // WIDE] if i // WIDE in factors else whole[i]
                    for i in range(len(values))]
        return gradient

    def judged_tokens(self, factors):
        return self.judged(self.tokens({}), ("dp", 4), gradient=self.tokens(factors))

    def test_single_rows_count_where_all_parts_fit_together(self):
        """Parts with 10%, 20%, 30% and 40% of the tokens, of which each is a mean over its own."""
        self.says(self.judged_tokens({1: 2.5, 2: 1.25, 4: 2.5 / 3, 5: 0.625}),
                  "is a mean over its own tokens, where each", "1 row is 0.625 x the reference",
                  "40% and 30% and 20% and 10% of the tokens")
        self.assertNotIn("batch", self.judged_tokens({1: 2.5, 2: 1.25, 4: 2.6 / 3, 5: 0.625}))

    def test_parts_that_were_clipped_before_the_sum(self):
        clipped = "each less than 1, as where each rank clips its own gradients before their sum"
        self.assertIn(clipped, self.judged_tokens({1: 0.35, 2: 0.35, 4: 0.5, 5: 0.5}))
        self.assertNotIn(clipped, self.judged_tokens({1: 0.35, 2: 0.35, 4: 1.5, 5: 1.5}))

    # --- The step before

    def test_gradients_that_were_left_and_scaled(self):
        def left(factor, of=lambda i: 1):
            def gradient(step, name, values):
                before = values_of(f"{name} 1", WEIGHTS[name])
                whole = factor if name != "head.weight" else 2 * factor
                return [value + (step > 1) * whole * of(i) * old for i, (value, old) in enumerate(zip(values, before))]
            return gradient
        said = self.judged(mesh=("dp", 2), steps=2, gradient=left(0.75))
        self.assertIn("0.75 to 1.5 x the gradients of step 1 are in those of step 2: they were not reset (zero_grad)", said)
        self.assertNotIn("reset", self.judged(mesh=("dp", 2), steps=2, gradient=left(0.75, lambda i: i % 3)))

    # --- One rank alone

    def stepped(self, size=1, fewer=None, factor=None):
        """Gradients and parameters of three steps; rank `fewer` makes two, and those of rank 1 have a factor."""
        run = Run([("dp", size)] if size > 1 else [], steps=3)
        for rank in range(size):
            for step in range(1, 4 - (rank == fewer)):
                wrong = fewer is not None and step > 1
                for name, shape in WEIGHTS.items():
                    values = values_of(f"{name} {step}", shape)
                    scale = factor if rank == 1 and factor else 1
                    run.add(rank, "grad", name, [scale * one for one in (other(name, values) if wrong else values)], shape, step)
                    run.add(rank, "param", name, [one + 0.1 * wrong for one in values], shape, step)
        return run

    def test_a_rank_that_skips_a_step(self):
        self.says(self.judged_pair(self.stepped(), self.stepped(2, fewer=1)).stdout, "of step 2",
                  "likely    rank 1 recorded 2 of 3 steps: the optimizer did not step there")

    def test_a_step_that_another_rank_lacks_later(self):
        run = self.stepped(2).without(lambda line: line["step"] == 3, [1])
        for line, data in zip(run.lines[0], run.data[0]):
            if line["kind"] == "grad" and line["step"] == 1:
                data[3][2] += 1
        self.assertNotIn("recorded 2 of 3 steps", self.judged_pair(self.stepped(), run).stdout.split("likely")[-1].split("note")[0])

    def test_a_factor_of_one_rank_is_no_sum_over_ranks(self):
        self.says(self.judged_pair(self.stepped(), self.stepped(2, factor=2)).stdout,
                  "on that rank alone: multiplied by it, or not divided by it", absent=["summed once too often"])

    def test_a_layout_that_does_not_fit(self):
        def made(size, dim):
            run = Run([("cp", size)] if size > 1 else [])
            for rank in range(size):
                whole = [4, 6]
                local = [4 // size, 6]
                glob = [one * size if i == dim else one for i, one in enumerate(local)]
                offset = [0, 0] if size == 1 else [rank * local[dim] if i == dim else 0 for i in range(2)]
                values = cut(values_of("pos", whole), whole, [rank * local[0], 0], local)
                run.add(rank, "act", "pos.output", values, local, global_shape=glob, offset=offset)
            return run
        text = self.judged_pair(made(1, 0), made(2, 1)).stdout
        self.assertIn("the rank has [2, 6] of it, which its layout in this run makes [2, 12]; of the reference's [4, 6] that is a "
                      "part along dim 0", " ".join(text.split()))
        self.assertNotIn("roundings", text)

    # --- What to record

    def test_outputs_are_to_be_recorded_where_no_cause_is_known(self):
        advice = 'record the outputs of modules in both runs (activations="*")'
        wrong = self.wrong_at((0, 1, 2, 3, 4, 5, 6))
        self.assertIn(advice, self.judged(logprobs=wrong))
        self.assertNotIn(advice, self.judged(logprobs=wrong, outputs=True, golden_outputs=True))
        self.assertNotIn(advice, self.judged(logprobs=self.wrong_at((3, 7))))

    def test_repeats_are_to_be_recorded_where_roundings_may_have_grown(self):
        def near(by):
            return lambda step, name, values: [value * (1 + by * (i % 3)) for i, value in enumerate(values)]
        self.assertIn("repeats of the one-rank run (noise=16)", self.judged(gradient=near(1e-10)))
        self.assertNotIn("noise=16", self.judged(gradient=near(1e-4)))


if __name__ == "__main__":
    cli_test.main()
