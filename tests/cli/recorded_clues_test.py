#!/usr/bin/env python3
"""`judge RUN --golden RUN1`: causes that other tensors of the step tell, or the copies of a value.

Usage: recorded_clues_test.py PROGRAM [unittest arguments]
"""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import cli_test  # noqa: E402
from recorded_test import PARAMETERS, gradient, recorded, start, stepped, values_of  # noqa: E402


def noise(name):
    return values_of("noise " + name, PARAMETERS[name][0])


def below_head(kinds_of_noise):
    """A change of all gradients but the head's: kinds_of_noise(run, rank, name) times other values are added."""
    def change(run, rank, kind, name, values):
        if kind != "grad" or name == "head.weight":
            return None
        return [value + kinds_of_noise(run, rank, name) * other for value, other in zip(values, noise(name))]
    return change


class Clues(cli_test.CommandTest):
    def judged(self, change, mesh=(("tp", 2),), golden_change=None):
        golden = recorded((), golden_change).write(os.path.join(self.scratch, "one"))
        run = recorded(mesh, change).write(os.path.join(self.scratch, "run"))
        done = self.run_to_end("judge", run, "--golden", golden, status=1)
        return done.stdout

    def likely(self, text):
        return next((line.strip() for line in text.splitlines() if line.startswith("  likely")), "")

    def test_addends_on_the_way(self):
        """Other gradients are wrong before that of the norm, where the ranks of tp hold addends."""
        def change(run, rank, kind, name, values):
            if kind != "grad" or name == "head.weight":
                return None
            if "norm" in name:
                share = 0.25 if run.at(rank, "tp") == 0 else 0.75
                return [share * value for value in values]
            return [value + 0.3 * other for value, other in zip(values, noise(name))]
        text = self.judged(change)
        self.assertIn("experts", text.split("tensor")[1].split()[0])
        self.assertIn("the sum over tp is missing where layers.0.norm.weight gets its gradient", self.likely(text))

    def test_other_wrong_gradients_are_no_addends(self):
        self.assertNotIn("sum", self.likely(self.judged(below_head(lambda run, rank, name: 0.3))))

    def test_rows_that_do_not_count(self):
        """A microbatch is left out: rows whose tokens are in it alone are zero."""
        def change(run, rank, kind, name, values):
            if kind != "grad":
                return None
            if name != "layers.0.up.weight":
                return [value + 0.3 * other for value, other in zip(values, noise(name))]
            wide = PARAMETERS[name][0][1]
            return [0.0 if i // wide in (1, 6) else value + 0.3 * other
                    for i, (value, other) in enumerate(zip(values, noise(name)))]
        for axis in ("tp", "dp"):
            with self.subTest(axis=axis):
                self.setUp()
                self.assertIn("a part of the batch does not count, such as a microbatch or the rows of a rank: 2 of 8 rows of "
                              "grad.layers.0.up.weight", self.likely(self.judged(change, ((axis, 2),))))

    def test_a_part_that_is_zero_is_no_batch(self):
        """All of a gradient is zero, or one row."""
        for rows in (range(8), [3]):
            with self.subTest(rows=rows):
                self.setUp()

                def change(run, rank, kind, name, values):
                    if kind != "grad":
                        return None
                    values = [value + 0.3 * other for value, other in zip(values, noise(name))]
                    return [0.0 if name == "layers.0.up.weight" and i // 6 in rows else value
                            for i, value in enumerate(values)]
                self.assertNotIn("batch", self.likely(self.judged(change)))

    def judged_with_rows(self, factors, absent=(0, 7), mesh=(("tp", 2),)):
        """Rows of one gradient are multiples of the reference's, where `factors` has them; the other rows, and all other
        gradients but the head's, are other values. The reference's rows `absent` are zero."""
        def zero(values):
            return [0.0 if i // 6 in absent else value for i, value in enumerate(values)]

        def golden_change(run, rank, kind, name, values):
            return zero(values) if (kind, name) == ("grad", "layers.0.up.weight") else None

        def change(run, rank, kind, name, values):
            if kind != "grad" or name == "head.weight":
                return None
            other = [value + 0.3 * more for value, more in zip(values, noise(name))]
            if name != "layers.0.up.weight":
                return other
            return zero([values[i] * factors[i // 6] if i // 6 in factors else other[i] for i in range(len(values))])
        return self.likely(self.judged(change, mesh, golden_change))

    def test_parts_that_are_means_over_their_own_tokens(self):
        """Of two parts, one has a quarter of the tokens: the inverses of 2 and 2/3 add up to 2."""
        for axis in ("tp", "dp"):
            with self.subTest(axis=axis):
                self.setUp()
                said = self.judged_with_rows({1: 2, 2: 2, 4: 2 / 3, 5: 2 / 3}, mesh=((axis, 2),))
                if axis == "dp":
                    self.assertIn("each part of the batch, such as a rank's rows or a microbatch, is a mean over its own "
                                  "tokens", said)
                    self.assertIn("of grad.layers.0.up.weight, 2 rows are 0.666667 x the reference, 2 rows are 2 x the "
                                  "reference, as parts with 75% and 25% of the tokens give", said)
                else:  # the factors are those of the ranks' parts
                    self.assertNotIn("batch", said)

    def test_parts_whose_means_are_added(self):
        said = self.judged_with_rows({1: 4, 2: 4, 4: 4 / 3, 5: 4 / 3}, mesh=(("dp", 2),))
        self.assertIn("is a mean over its own tokens, and these means are added", said)
        self.assertIn("as parts with 75% and 25% of the tokens give", said)

    def test_parts_with_other_weights(self):
        said = self.judged_with_rows({1: 2, 2: 2, 4: 3, 5: 3}, mesh=(("dp", 2),))
        self.assertIn("parts of the batch, such as a rank's rows or a microbatch, have other weights than in the reference: "
                      "of grad.layers.0.up.weight, 2 rows are 2 x the reference, 2 rows are 3 x the reference", said)

    def test_rows_that_say_nothing_of_the_batch(self):
        """Rows of a weight that all tokens use, one factor alone, and single rows."""
        means = {1: 2, 2: 2, 4: 2 / 3, 5: 2 / 3}
        for factors, absent in ((means, ()), ({1: 2, 2: 2}, (0, 7)), ({1: 2, 4: 2 / 3}, (0, 7)),
                                ({1: 2, 2: 2 + 1e-5, 4: 2 / 3, 5: 0.7}, (0, 7))):
            with self.subTest(factors=factors, absent=absent):
                self.setUp()
                self.assertNotIn("batch", self.judged_with_rows(factors, absent, (("dp", 2),)))

    def test_ranks_that_do_not_agree_on_the_loss(self):
        def change(run, rank, kind, name, values):
            if name == "loss":
                return [values[0] + (0.1 if run.at(rank, "tp") == 0 else 0.3)]
            return below_head(lambda *_: 0.3)(run, rank, kind, name, values)
        text = self.judged(change, (("dp", 2), ("tp", 2)))
        self.assertIn("the ranks of tp do not agree (1.35 on rank 0, 1.55 on rank 1)", self.likely(text))

    def test_ranks_that_agree_on_a_wrong_loss(self):
        def change(run, rank, kind, name, values):
            return [values[0] + 0.1] if name == "loss" else None
        self.assertNotIn("agree", self.likely(self.judged(change)))

    def judged_with_terms(self, change):
        """Each rank of dp has a term of the loss, of which the mean counts."""
        golden = recorded().write(os.path.join(self.scratch, "one"))
        run = recorded((("dp", 2),), change)
        for lines in run.lines:
            next(line for line in lines if line["name"] == "loss")["partial"] = {"axes": ["dp"], "op": "mean"}
        done = self.run_to_end("judge", run.write(os.path.join(self.scratch, "run")), "--golden", golden, status=1)
        self.assertIn("tensor    loss", done.stdout)
        return done.stdout

    def test_terms_of_a_loss_have_the_cause_of_its_gradients(self):
        def change(run, rank, kind, name, values):
            return [15 / 16 * value for value in values] if kind == "grad" or name == "loss" else None
        text = self.judged_with_terms(change)
        self.assertIn("after it in grad.head.weight: every element is 0.9375 x golden on all ranks; 15/16", text)
        self.assertIn("divided by 16 where 15 are due", self.likely(text))

    def test_a_loss_times_the_size_of_an_axis_may_have_another_count(self):
        def times(factor, kinds):
            def change(run, rank, kind, name, values):
                return [factor * value for value in values] if kind == "grad" or name in kinds else None
            self.setUp()
            return self.likely(self.judged(change, (("dp", 2),)))
        count = "; or a count of tokens or microbatches is off by that factor"
        self.assertIn("or divided by its size twice; or the sum over dp is missing" + count, times(0.5, ["loss"]))
        self.assertIn("summed once too often over that axis, or not divided by its size" + count, times(2, ["loss"]))
        self.assertNotIn(count, times(0.9375, ["loss"]))
        self.assertNotIn(count, times(2, []))  # the loss is right

    def test_terms_of_a_loss_whose_gradients_have_no_cause(self):
        def change(run, rank, kind, name, values):
            if name == "loss":
                return [15 / 16 * value for value in values]
            return [value + 0.3 * other for value, other in zip(values, noise(name))] if kind == "grad" else None
        text = self.judged_with_terms(change)
        self.assertNotIn("after it", text)
        self.assertEqual("", self.likely(text))

    def line(self, label, text):
        return next((line.strip() for line in text.splitlines() if line.startswith("  " + label)), "")

    def test_what_was_right_before_is_what_was_computed_before(self):
        """Gradients are recorded in another order than that of the computation, and the loss at the end of its step."""
        def ordered(run, order_of):
            for lines in run.lines:
                for one in lines:
                    if one["kind"] == "grad":
                        one["order"] = order_of(one["order"])
                    elif one["kind"] == "scalar":
                        del one["order"]
                    if one.get("order", 0) is None:
                        del one["order"]
                lines.sort(key=lambda one: one["name"] == "loss")
            return run

        def judged(change, order_of):
            self.setUp()
            golden = ordered(recorded(), order_of).write(os.path.join(self.scratch, "one"))
            run = ordered(recorded((("tp", 2),), change), order_of).write(os.path.join(self.scratch, "run"))
            done = self.run_to_end("judge", run, "--golden", golden, status=1)
            return done.stdout

        def down(run, rank, kind, name, values):
            return [0.3 * value for value in values] if kind == "grad" and "down" in name and rank else None

        def loss(run, rank, kind, name, values):
            return [2 * values[0]] if name == "loss" else None

        def stepped_norm(run, rank, kind, name, values):
            return [2 * value for value in values] if values == stepped("layers.0.norm.weight") else None
        backward = judged(down, lambda order: 1000 - order)
        self.assertIn("tensor    grad.layers.0.down.weight", backward)
        self.assertEqual("before    grad.layers.0.up.weight was right on that rank", self.line("before", backward))
        self.assertNotIn("grad.", self.line("before", judged(down, lambda order: None)))
        self.assertEqual("", self.line("before", judged(loss, lambda order: order)))
        self.assertIn("grad_norm was right", self.line("before", judged(stepped_norm, lambda order: order)))

    def test_terms_of_a_mean_that_are_all_too_large(self):
        def change(run, rank, kind, name, values):
            return [2 * values[0]] if name == "loss" else None
        self.assertIn("the mean of the terms over dp: the value is 2.00 x golden on all ranks;",
                      self.judged_with_terms(change))

    def test_ranks_with_other_values_of_a_scalar(self):
        def change(run, rank, kind, name, values):
            return [values[0] * (1.01 if rank else 0.9)] if name == "loss" else None
        text = self.judged(change)
        self.assertIn("the value is 0.9 x golden on rank 0, 1.01 x golden on rank 1", text)

    def test_what_this_run_does_not_record(self):
        golden = recorded()
        golden.head["version"] = 2
        for i in range(20):
            golden.add(0, "scalar", f"other.{i:02}", [1.0], ())
        run = recorded((("tp", 2),))
        for rank in range(2):
            key = next(one["key"] for one in run.lines[rank] if one["name"] == "loss")
            run.lines[rank] = [one for one in run.lines[rank] if one["key"] != key]
            run.data[rank] = [one for one in run.data[rank] if one[0] != key]
        done = self.run_to_end("judge", run.write(os.path.join(self.scratch, "run")), "--golden",
                                golden.write(os.path.join(self.scratch, "one")), status=1)
        self.assertIn("tensor    loss   of step 1", done.stdout)
        self.assertIn("this run does not record it in that step: call rec.scalar(\"loss\", ..)", self.likely(done.stdout))
        self.assertNotIn("slot", done.stdout)
        self.assertIn("other.04 and 15 more", self.line("note", done.stdout))
        self.assertNotIn("other.09", done.stdout)

    def test_a_note_of_hashes_without_copies(self):
        run = recorded((("tp", 2),), version=2)
        for lines in run.lines:
            lines.append({"kind": "hash", "name": "layers.0.output", "step": 1, "microbatch": 0, "order": 0,
                          "dtype": "float64", "shape": [2, 3], "global_shape": [2, 3], "offset": None,
                          "digest": "0123456789abcdef", "source": "plain"})
        done = self.run_to_end("judge", run.write(os.path.join(self.scratch, "run")), "--golden",
                                recorded().write(os.path.join(self.scratch, "one")))
        self.assertIn("2 hashes of outputs", self.line("note", done.stdout))
        self.assertNotIn("that ranks share, 0 differ", done.stdout)

    def test_a_copy_that_changed_on_one_rank(self):
        """The loss is wrong, and after the step a rank's copy is far from where an update leads."""
        def change(far):
            def of_run(run, rank, kind, name, values):
                if name == "loss":
                    return [values[0] * 1.001]
                if values == stepped("layers.0.norm.weight") and rank == 1:
                    return [values[0] + far, *values[1:]]
                return None
            self.setUp()
            return self.likely(self.judged(of_run))
        self.assertIn("the copy of layers.0.norm.weight on rank 1 is not that of rank 0 after this step: it is 0.4 from the "
                      "reference's, which moved by 0.01", change(0.4))
        self.assertNotIn("copy", change(0.02))

    def test_a_step_of_another_size(self):
        def change(run, rank, kind, name, values):
            if values != stepped("head.weight"):
                return None
            return [old + 0.25 * (new - old) for old, new in zip(start("head.weight"), values)]
        text = self.judged(change)
        self.assertIn("moved by 0.25 of the golden's update: the learning rate, or another setting of the optimizer", text)
        self.assertNotIn("bias correction", text)

    def test_gradients_that_are_addends_of_copies(self):
        def change(run, rank, kind, name, values):
            if kind != "grad" or "norm" not in name:
                return None
            return [0.5 * value + (0.3 if rank else -0.3) for value in values]
        self.assertIn("must be equal over tp, but the ranks hold addends (partial)", self.judged(change))


if __name__ == "__main__":
    cli_test.main()
