#!/usr/bin/env python3
"""`judge RUN --golden RUN1`: causes that other tensors of the step tell, or the copies of a value.

Usage: recorded_clues_test.py PROGRAM [unittest arguments]
"""
import math
import struct

import cli_test
from recorded_test import (ADAM, DP, PARAMETERS, TP, JudgedTest, Run, cut, either, gradient, of, recorded, replaced,
                           start, stepped, times, values_of)

UP = "layers.0.up.weight"


def noise(name):
    return values_of("noise " + name, PARAMETERS[name][0])


def disturbed(values, run, rank, name):
    """Other values."""
    return [value + 0.3 * other for value, other in zip(values, noise(name))]


def zeroed(values, rows):
    """Of `up`, whose rows have 6 values."""
    return [0.0 if i // 6 in rows else value for i, value in enumerate(values)]


OTHER_GRADIENTS = replaced("grad", "", disturbed)
BELOW_HEAD = replaced("grad", "layers", disturbed)  # all gradients but the head's


def without_rows_of_up(rows):
    """A change of all gradients, in which these rows of `up` are zero."""
    return either(replaced("grad", UP, lambda *given: zeroed(disturbed(*given), rows)), OTHER_GRADIENTS)


class Clues(JudgedTest):
    def judged(self, change, mesh=TP, golden_change=None):
        return self.judged_pair(recorded((), golden_change), recorded(mesh, change)).stdout

    def likely(self, text):
        return next((line.strip() for line in text.splitlines() if line.startswith("  likely")), "")

    def test_addends_on_the_way(self):
        """Other gradients are wrong before that of the norm, where the ranks of tp hold addends."""
        shares = of("grad", "norm", lambda value, run, rank: (0.25, 0.75)[rank] * value)
        text = self.judged(either(shares, BELOW_HEAD))
        self.assertIn("experts", text.split("tensor")[1].split()[0])
        self.assertIn("the sum over tp is missing where layers.0.norm.weight gets its gradient", self.likely(text))

    def test_other_wrong_gradients_are_no_addends(self):
        self.assertNotIn("sum", self.likely(self.judged(BELOW_HEAD)))

    def test_rows_that_do_not_count(self):
        """A microbatch is left out: rows whose tokens are in it alone are zero."""
        for axis in ("tp", "dp"):
            with self.subTest(axis=axis):
                self.assertIn("a part of the batch does not count, such as a microbatch or the rows of a rank: 2 of 8 rows of "
                              "grad.layers.0.up.weight", self.likely(self.judged(without_rows_of_up((1, 6)), ((axis, 2),))))

    def test_a_part_that_is_zero_is_no_batch(self):
        """All of a gradient is zero, or one row."""
        for rows in (range(8), [3]):
            with self.subTest(rows=rows):
                self.assertNotIn("batch", self.likely(self.judged(without_rows_of_up(rows))))

    def judged_with_rows(self, factors, absent=(0, 7), mesh=TP):
        """Rows of one gradient are multiples of the reference's, where `factors` has them; the other rows, and all other
        gradients but the head's, are other values. The reference's rows `absent` are zero."""
        def rows(values, *given):
            return zeroed([value * factors[i // 6] if i // 6 in factors else other
                           for i, (value, other) in enumerate(zip(values, disturbed(values, *given)))], absent)
        zeros = replaced("grad", UP, lambda values, *_: zeroed(values, absent))
        return self.likely(self.judged(either(replaced("grad", UP, rows), BELOW_HEAD), mesh, zeros))

    def test_parts_that_are_means_over_their_own_tokens(self):
        """Of two parts, one has a quarter of the tokens: the inverses of 2 and 2/3 add up to 2."""
        for axis in ("tp", "dp"):
            with self.subTest(axis=axis):
                said = self.judged_with_rows({1: 2, 2: 2, 4: 2 / 3, 5: 2 / 3}, mesh=((axis, 2),))
                if axis == "dp":
                    self.assertIn("each part of the batch, such as a rank's rows or a microbatch, is a mean over its own "
                                  "tokens", said)
                    self.assertIn("of grad.layers.0.up.weight, 2 rows are 0.666667 x the reference, 2 rows are 2 x the "
                                  "reference, as parts with 75% and 25% of the tokens give", said)
                else:  # the factors are those of the ranks' parts
                    self.assertNotIn("batch", said)

    def test_several_parts_with_as_many_tokens(self):
        """Of four parts, two have as many tokens: 39 are 13, 10.5, 10.5 and 5, so that 3 + 2 * 3.714.. + 7.8 inverses are 1."""
        said = self.judged_with_rows({1: 39 / 13, 2: 39 / 10.5, 3: 39 / 10.5, 4: 39 / 5, 5: 39 / 5}, mesh=DP)
        self.assertIn("is a mean over its own tokens, and these means are added", said)
        self.assertIn("as parts with 33.33% and 26.92% and 26.92% and 12.82% of the tokens give", said)

    def test_a_use_of_a_weight_that_gives_no_gradient(self):
        """All other gradients are right, so that the batch counts."""
        change = replaced("grad", UP, lambda *given: zeroed(disturbed(*given), (1, 6)))
        said = self.likely(self.judged(change, DP))
        self.assertIn("one use of this weight gives it no gradient, as where a tied head or embedding is cut off: 2 of 8 rows", said)

    def test_parts_whose_means_are_added(self):
        self.says(self.judged_with_rows({1: 4, 2: 4, 4: 4 / 3, 5: 4 / 3}, mesh=DP),
                  "is a mean over its own tokens, and these means are added", "as parts with 75% and 25% of the tokens give")

    def test_parts_with_other_weights(self):
        said = self.judged_with_rows({1: 2, 2: 2, 4: 3, 5: 3}, mesh=DP)
        self.assertIn("parts of the batch, such as a rank's rows or a microbatch, have other weights than in the reference: "
                      "of grad.layers.0.up.weight, 2 rows are 2 x the reference, 2 rows are 3 x the reference", said)

    def test_rows_that_say_nothing_of_the_batch(self):
        """Rows of a weight that all tokens use, one factor alone, and single rows."""
        means = {1: 2, 2: 2, 4: 2 / 3, 5: 2 / 3}
        for factors, absent in ((means, ()), ({1: 2, 2: 2}, (0, 7)), ({1: 2, 4: 2 / 3}, (0, 7)),
                                ({1: 2, 2: 2 + 1e-5, 4: 2 / 3, 5: 0.7}, (0, 7))):
            with self.subTest(factors=factors, absent=absent):
                self.assertNotIn("batch", self.judged_with_rows(factors, absent, DP))

    def test_ranks_that_do_not_agree_on_the_loss(self):
        loss = of("scalar", "loss", lambda value, run, rank: value + (0.1, 0.3)[run.at(rank, "tp")])
        text = self.judged(either(loss, BELOW_HEAD), (("dp", 2), ("tp", 2)))
        self.assertIn("the ranks of tp do not agree (1.35 on rank 0, 1.55 on rank 1)", self.likely(text))

    def test_ranks_that_agree_on_a_wrong_loss(self):
        change = of("scalar", "loss", lambda value, run, rank: value + 0.1)
        self.assertNotIn("agree", self.likely(self.judged(change)))

    def judged_with_terms(self, change):
        """Each rank of dp has a term of the loss, of which the mean counts."""
        run = recorded(DP, change)
        for lines in run.lines:
            next(line for line in lines if line["name"] == "loss")["partial"] = {"axes": ["dp"], "op": "mean"}
        said = self.judged_pair(recorded(), run).stdout
        self.assertIn("tensor    loss", said)
        return said

    def test_terms_of_a_loss_have_the_cause_of_its_gradients(self):
        text = self.judged_with_terms(either(times(15 / 16), times(15 / 16, "scalar", "loss")))
        self.assertIn("after it in grad.head.weight: every element is 0.9375 x golden on all ranks; 15/16", text)
        self.assertIn("divided by 16 where 15 are due", self.likely(text))

    def test_a_loss_times_the_size_of_an_axis_may_have_another_count(self):
        def scaled(factor, and_loss=True):
            changes = [times(factor), *([times(factor, "scalar", "loss")] if and_loss else [])]
            return self.likely(self.judged(either(*changes), DP))
        count = "; or a count of tokens or microbatches is off by that factor"
        self.assertIn("or divided by its size twice; or the sum over dp is missing" + count, scaled(0.5))
        self.assertIn("summed once too often over that axis, or not divided by its size" + count, scaled(2))
        self.assertNotIn(count, scaled(0.9375))
        self.assertNotIn(count, scaled(2, and_loss=False))  # the loss is right

    def test_terms_of_a_loss_whose_gradients_have_no_cause(self):
        def scaled(factor):
            return self.judged_with_terms(either(times(factor, "scalar", "loss"), OTHER_GRADIENTS))
        text = scaled(0.9374)
        self.assertNotIn("after it", text)
        self.assertEqual("", self.likely(text))
        text = scaled(15 / 16)  # the loss alone shows a quotient of counts
        self.assertNotIn("after it", text)
        self.assertIn("divided by 16 where 15 are due", self.likely(text))

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
            run = ordered(recorded(TP, change), order_of)
            return self.judged_pair(ordered(recorded(), order_of), run).stdout

        def twice_when_stepped(values, run, rank, name):
            return [2 * value for value in values] if values == stepped(name) else None
        down, loss = times(0.3, "grad", "down", ranks=[1]), times(2, "scalar", "loss")
        stepped_norm = replaced("param", "norm", twice_when_stepped)
        backward = judged(down, lambda order: 1000 - order)
        self.assertIn("tensor    grad.layers.0.down.weight", backward)
        self.assertEqual("before    grad.layers.0.up.weight was right on that rank", self.line("before", backward))
        self.assertNotIn("grad.", self.line("before", judged(down, lambda order: None)))
        self.assertEqual("", self.line("before", judged(loss, lambda order: order)))
        self.assertIn("grad_norm was right", self.line("before", judged(stepped_norm, lambda order: order)))

    def test_terms_of_a_mean_that_are_all_too_large(self):
        self.assertIn("the mean of the terms over dp: the value is 2.00 x golden on all ranks;",
                      self.judged_with_terms(times(2, "scalar", "loss")))

    def test_ranks_with_other_values_of_a_scalar(self):
        change = of("scalar", "loss", lambda value, run, rank: value * (1.01 if rank else 0.9))
        text = self.judged(change)
        self.assertIn("the value is 0.9 x golden on rank 0, 1.01 x golden on rank 1", text)

    def test_what_this_run_does_not_record(self):
        golden = recorded()
        golden.head["version"] = 2
        for i in range(20):
            golden.add(0, "scalar", f"other.{i:02}", [1.0], ())
        run = recorded(TP)
        done = self.judged_pair(golden, run.without(lambda line: line["name"] == "loss"))
        self.assertIn("tensor    loss   of step 1", done.stdout)
        self.assertIn("this run does not record it in that step: call rec.scalar(\"loss\", ..)", self.likely(done.stdout))
        self.assertNotIn("slot", done.stdout)
        self.assertIn("other.04 and 15 more", self.line("note", done.stdout))
        self.assertNotIn("other.09", done.stdout)

    def test_a_note_of_hashes_without_copies(self):
        run = recorded(TP, version=2)
        for lines in run.lines:
            lines.append({"kind": "hash", "name": "layers.0.output", "step": 1, "microbatch": 0, "order": 0,
                          "dtype": "float64", "shape": [2, 3], "global_shape": [2, 3], "offset": None,
                          "digest": "0123456789abcdef", "source": "plain"})
        done = self.judged_pair(recorded(), run, status=0)
        self.assertIn("2 hashes of outputs", self.line("note", done.stdout))
        self.assertNotIn("that ranks share, 0 differ", done.stdout)

    def test_a_copy_that_changed_on_one_rank(self):
        """The loss is wrong, and after the step a rank's copy is far from where an update leads."""
        def change(far):
            def moved(values, run, rank, name):
                return [values[0] + far, *values[1:]] if values == stepped(name) else None
            wrong_copy = replaced("param", "norm", moved, ranks=[1])
            return self.likely(self.judged(either(times(1.001, "scalar", "loss"), wrong_copy)))
        self.assertIn("the copy of layers.0.norm.weight on rank 1 is not that of rank 0 after this step: it is 0.4 from the "
                      "reference's, which moved by 0.01", change(0.4))
        self.assertIn("after this step, and both had the same gradient: it is 0.02 from", change(0.02))
        self.assertNotIn("copy", change(0.0005))

    def test_a_step_of_another_size(self):
        def change(share):
            def shorter(values, run, rank, name):
                return [old + share * (new - old) for old, new in zip(start(name), values)]
            return replaced("param", "head", shorter)
        self.assertIn("moved by 0.5 x the golden's update: the learning rate, or another setting of the optimizer, is wrong on all ranks; "
                      "0.5 is 1 over the size of tp", self.judged(change(0.5)))
        self.says(self.judged(change(0.25)),
                  "moved by 0.25 x the golden's update: the learning rate, or another setting of the optimizer",
                  absent=["the size of", "bias correction"])

    def test_gradients_that_are_addends_of_copies(self):
        change = of("grad", "norm", lambda value, run, rank: 0.5 * value + (0.3 if rank else -0.3))
        self.assertIn("must be equal over tp, but the ranks hold addends (partial)", self.judged(change))

    # --- Gradients that ranks did not record

    def fused(self, at_rank):
        """Two parameters of one shape, cut by rows over dp. at_rank(rank): {name: values of the rank's rows}."""
        names, shape = ("b.weight", "c.weight"), (4, 4)
        golden, run = Run(optimizer=ADAM), Run(DP, optimizer=ADAM)
        for one in (golden, run):
            for rank in range(one.world_size):
                def put(kind, name, whole, step):
                    one.box(rank, kind, name, whole, shape, 0, rank, one.world_size, step=step)
                for name in names:
                    put("param", name, values_of("start " + name, shape), 0)
                for name in names:
                    if one is golden:
                        put("grad", name, self.grad(name), 1)
                    elif name in at_rank(rank):
                        put("grad", name, at_rank(rank)[name], 1)
                for name in names:
                    put("param", name, values_of("after " + name, shape), 1)
        return self.judged_pair(golden, run).stdout

    @staticmethod
    def grad(name):
        return values_of("grad " + name, (4, 4))

    def test_gradients_of_two_parameters_in_one_call(self):
        mean = [(b + c) / 2 for b, c in zip(self.grad("b.weight"), self.grad("c.weight"))]
        text = self.fused(lambda rank: {("b.weight", "c.weight")[rank]: mean})
        self.assertIn("rank 0 recorded no gradient of c.weight, rank 1 none of b.weight; (b.weight + c.weight)/2 is what both "
                      "hold: gradients of two parameters met in one call", self.likely(text))

    def test_a_gradient_that_one_rank_did_not_record(self):
        b, c = self.grad("b.weight"), self.grad("c.weight")
        wrong = [0.3 * value + 0.2 for value in b]
        text = self.fused(lambda rank: {"b.weight": wrong, "c.weight": c} if rank == 0 else {"c.weight": c})
        self.assertIn("likely    rank 1 recorded no gradient of b.weight", self.likely(text))
        self.assertNotIn("one call", text)
        right = self.fused(lambda rank: {"b.weight": b, "c.weight": c} if rank == 0 else {"c.weight": c})
        self.assertIn("rank 1 recorded no gradient of b.weight", self.likely(right))
        self.assertNotIn("recorded no gradient", self.fused(lambda rank: {"b.weight": wrong, "c.weight": c}))

    # --- States of an optimizer

    @staticmethod
    def moments(name, square):
        """After steps 1 and 2, with betas 0.9 and 0.999."""
        beta = 0.999 if square else 0.9
        grads = [[value ** (2 if square else 1) for value in values_of(f"grad {name} {step}", (4, 6))] for step in (1, 2)]
        first = [(1 - beta) * value for value in grads[0]]
        return first, [beta * old + (1 - beta) * value for old, value in zip(first, grads[1])]

    def two_steps(self, change=None, mesh=(), held_by=None, golden=None, version=3):
        """Two weights of two steps. change(kind, name, step, values, rank) may return other values; states are recorded
        after the parameters, by the ranks held_by(name)."""
        run = Run(mesh, optimizer={**ADAM, "lr": [0.01, 0.01]}, steps=2)
        run.head["version"] = version
        for rank in range(run.world_size):
            def put(kind, name, values, step, shape=(4, 6), **more):
                values = (change and change(kind, name, step, list(values), rank)) or values
                run.add(rank, kind, name, values, shape, step=step, **more)
            for step in (0, 1, 2):
                for name in ("a", "b"):
                    if step:
                        put("grad", name, values_of(f"grad {name} {step}", (4, 6)), step)
                for name in ("a", "b"):
                    put("param", name, values_of(f"param {name} {step}", (4, 6)), step)
                for name in ("a", "b"):
                    if not step or (held_by and rank not in held_by(name)):
                        continue
                    for square in (False, True):
                        put("opt", ("exp_avg_sq." if square else "exp_avg.") + name,
                            self.moments(name, square)[step - 1], step)
                    put("opt", "step." + name, [step], step, (), dtype="int64")
        return run

    def judged_states(self, change, **more):
        return self.judged_pair(self.two_steps(), self.two_steps(change, DP, **more)).stdout

    def test_moments_that_began_anew(self):
        for square in (False, True):
            with self.subTest(square=square):
                share = 0.001 if square else 0.1

                def change(kind, name, step, values, rank):
                    if step == 2 and kind == "param":
                        return [value + 0.1 for value in values]
                    if step == 2 and name == ("exp_avg_sq.b" if square else "exp_avg.b"):
                        return [share * value ** (2 if square else 1) for value in values_of("grad b 2", (4, 6))]
                    return None
                text = self.judged_states(change)
                self.assertIn("tensor    " + ("exp_avg_sq.b" if square else "exp_avg.b"), text)
                self.assertIn(f"it is {share} x the {'square of the gradient' if square else 'gradient'} of step 2 alone",
                              self.likely(text))

    def test_moments_of_gradients_that_this_run_alone_clipped(self):
        def change(kind, name, step, values, rank):
            return [0.25 * value for value in values] if (name, step) == ("exp_avg.a", 1) else None
        runs = self.two_steps(), self.two_steps(change, DP)
        runs[1].add_to_all("scalar", "clip_coefficient", [0.25], ())
        self.assertIn("they were clipped, and the reference's were not", self.likely(self.judged_pair(*runs).stdout))

    def test_moments_of_gradients_that_were_clipped_twice_or_not(self):
        for square in (False, True):
            for factor, said in ((0.25, "which is the clip coefficient of step 1: they were clipped twice"),
                                 (4, "1 over the clip coefficient of step 1: they were not clipped"), (0.3, None)):
                with self.subTest(square=square, factor=factor):
                    def change(kind, name, step, values, rank):
                        if (name, step) != ("exp_avg_sq.a" if square else "exp_avg.a", 1):
                            return None
                        return [factor ** (2 if square else 1) * value for value in values]
                    runs = self.two_steps(), self.two_steps(change, DP)
                    for run in runs:
                        run.add_to_all("scalar", "clip_coefficient", [0.25], ())
                    likely = self.likely(self.judged_pair(*runs).stdout)
                    self.assertIn(said, likely) if said else self.assertNotIn("clip", likely)

    def test_an_update_that_was_not_clipped(self):
        """As by SGD: only the reference clipped, and recorded by how much."""
        def said(factor):
            def change(kind, name, step, values, rank):
                if (kind, name, step) != ("param", "a", 1):
                    return None
                start = values_of("param a 0", (4, 6))
                return [old + factor * (value - old) for old, value in zip(start, values)]
            runs = self.two_steps(), self.two_steps(change, DP)
            runs[0].add(0, "scalar", "clip_coefficient", [0.25], ())
            return self.likely(self.judged_pair(*runs).stdout)
        self.assertIn("its update is the reference's over 0.25, the clip coefficient of step 1: the gradients were not clipped",
                      said(4))
        self.assertNotIn("clip", said(3))

    def test_a_microbatch_that_nobody_recorded(self):
        run = recorded(DP)
        golden = recorded()
        values = values_of("logprobs", (4, 5))
        golden.add(0, "logprobs", "logprobs", values, (4, 5), order=0)
        for rank, rows in ((0, (0, 2)), (1, (2, 3))):
            run.add(rank, "logprobs", "logprobs", values[5 * rows[0]:5 * rows[1]], (rows[1] - rows[0], 5), global_shape=[4, 5],
                    offset=[rows[0], 0], order=0)
        text = self.judged_pair(golden, run).stdout
        self.assertIn("no rank recorded row 3 of its 4; rank 1 recorded those before", self.likely(text))
        self.assertNotIn("part [", self.line("tensor", text))

    def test_a_moment_that_is_kept_by_another_share(self):
        """After step 2: the rank keeps 0.95 and 0.99, where the reference keeps 0.9 and 0.999. Where the other moment is
        wrong too, the gradients may be what is wrong."""
        for square, here, said in ((False, 0.95, "keeps 0.95 of what it was before the step, and the reference's 0.9: beta1 of"),
                                   (True, 0.99, "keeps 0.99 of what it was before the step, and the reference's 0.999: beta2")):
            for both in (False, True):
                with self.subTest(square=square, both=both):
                    def change(kind, name, step, values, rank):
                        if rank == 0 or step != 2 or name not in ("exp_avg.a", "exp_avg_sq.a"):
                            return None
                        of_square = name == "exp_avg_sq.a"
                        if of_square != square:
                            return [value + 0.1 for value in values] if both else None
                        first, power = self.moments("a", of_square)[0], 2 if of_square else 1
                        return [here * old + (1 - here) * value ** power
                                for old, value in zip(first, values_of("grad a 2", (4, 6)))]
                    likely = self.likely(self.judged_states(change))
                    self.assertNotIn("keeps", likely) if both else self.assertIn(said, likely)

    def test_the_weight_decay_of_one_rank(self):
        """lr is 0.01: a decay of 0.3 more takes 0.003 of the value before the step."""
        def change(kind, name, step, values, rank):
            before = values_of("param a 1", (4, 6))
            return [value - 0.003 * old for value, old in zip(values, before)] if (name, step, rank) == ("a", 2, 1) and \
                kind == "param" else None
        text = self.judged_states(change)
        self.assertIn("on rank 1 only", text)
        self.assertIn("it is off by -0.003 x its value before the step: its weight decay is 0.3 there, and the reference's is 0",
                      self.likely(text))

        def grown(*given):  # by a decay below 0
            changed = change(*given)
            return changed and [2 * value - one for value, one in zip(given[3], changed)]
        self.assertEqual("", self.likely(self.judged_states(grown)))

    def test_moments_of_another_place_of_a_flat_buffer(self):
        def change(kind, name, step, values, rank):
            if step != 1 or name != "exp_avg.a" or rank == 0:
                return None
            return values[3:] + self.moments("b", False)[0][:3]
        self.assertIn("its values are those of the reference 3 elements further on in row-major order: it was cut from another "
                      "place of a flat buffer", self.likely(self.judged_states(change)))

        def noise(kind, name, step, values, rank):
            return values_of("other", (4, 6)) if name == "exp_avg.a" else None
        self.assertEqual("", self.likely(self.judged_states(noise)))

    def test_a_moment_that_was_misplaced_after_unresolved_parameters(self):
        """The gradients of step 2 are the rank's own then, and a little apart from the reference's."""
        def near(values):
            return [value * (1 + 1e-4 * (-1) ** i) for i, value in enumerate(values)]

        def run_of(misplaced_on=None, change=None):
            def both(kind, name, step, values, rank):
                made = change(kind, name, step, values) if change else values
                if step == 2 and name.startswith("exp_avg"):
                    square = name.startswith("exp_avg_sq.")
                    first, _ = self.moments(name[-1], square)
                    if name == "exp_avg.a" and rank == misplaced_on:
                        first = first[3:] + first[:3]
                    beta, power = (0.999, 2) if square else (0.9, 1)
                    own = near(values_of(f"grad {name[-1]} 2", (4, 6)))
                    made = [beta * old + (1 - beta) * g ** power for old, g in zip(first, own)]
                return made
            run = self.two_steps(both if change else None, [("dp", 2)] if change else [])
            run.head["optimizer"] |= {"type": "Mine", "rule": "other"}
            return run

        def scattered(kind, name, step, values):
            if (kind, step) == ("param", 1):
                return [value + 0.01 * (value - old) * (-1) ** i
                        for i, (value, old) in enumerate(zip(values, values_of(f"param {name} 0", (4, 6))))]
            return near(values) if (kind, step) == ("grad", 2) else values
        self.assertIn("MATCH, ", self.judged_pair(run_of(), run_of(None, scattered), status=0).stdout)
        text = self.judged_pair(run_of(), run_of(1, scattered)).stdout
        self.assertIn("tensor    exp_avg.a", text)
        self.assertIn("its values are what this step makes of those that lay 3 elements further on after step 1 in row-major "
                      "order: it was cut from another place of a flat buffer", self.likely(text))

    def test_a_count_of_steps_that_began_anew(self):
        def change(kind, name, step, values, rank):
            if name.startswith("step.") and step == 2:
                return [1]
            return [value + 0.1 for value in values] if (kind, step) == ("param", 2) else None
        text = self.judged_states(change)
        self.assertIn("tensor    step.a", text)
        self.assertIn("the optimizer's count of steps of this parameter is 1, where the reference has 2", self.likely(text))

    def test_the_only_holder_of_a_tensor(self):
        def change(kind, name, step, values, rank):
            return [value + 0.1 * (i + 1) for i, value in enumerate(values)] if name == "exp_avg.b" else None

        def owner(name):
            return (1,) if name == "b" else (0,)
        self.assertIn("on rank 1, its only holder", self.judged_states(change, held_by=owner))

        def on_rank_1(kind, name, step, values, rank):
            return change(kind, name, step, values, rank) if rank == 1 else None
        self.assertIn("on rank 1 only", self.judged_states(on_rank_1))

    # --- Norms

    @staticmethod
    def squares(run, rank=None):
        """Of the gradients: {name: square} on one rank's pieces, or of whole tensors."""
        out = {}
        for name, (shape, dim) in PARAMETERS.items():
            values = gradient(name)
            if rank is not None and dim is not None:
                local = list(shape)
                local[dim] //= 2
                offset = [0] * len(shape)
                offset[dim] = run.at(rank, "tp") * local[dim]
                values = cut(values, shape, offset, local)
            out[name] = sum(value * value for value in values)
        return out

    def test_a_norm_of_each_rank(self):
        def norm(value, run, rank):
            return 3.5 * math.sqrt(sum(self.squares(run, rank).values()) / sum(self.squares(run).values()))
        text = self.judged(of("scalar", "grad_norm", norm))
        self.assertIn("tensor    grad_norm", text)
        self.assertIn("on each rank it is the norm of the gradients that this rank holds", self.likely(text))

    def test_a_norm_that_counts_copies(self):
        def norm(value, run, rank):
            squares = self.squares(run)
            counted = sum((1 if PARAMETERS[one][1] is not None else 2) * square for one, square in squares.items())
            return 3.5 * math.sqrt(counted / sum(squares.values()))
        self.assertIn("its square has the square of layers.0.experts.0.weight and 1 more, which the ranks of tp hold as equal "
                      "copies, 2 times", self.likely(self.judged(of("scalar", "grad_norm", norm))))

    def test_norms_of_shares_that_are_not_recorded(self):
        """Each rank holds whole gradients and has the norm of a share of them, as of a flat buffer."""
        def shares(*squares):
            change = of("scalar", "grad_norm", lambda value, run, rank: 3.5 * math.sqrt(squares[rank]))
            return self.likely(self.judged(change, (("dp", len(squares)),)))
        cause = "the squares of the ranks' norms add up over dp to that of the whole norm"
        self.assertIn(cause, shares(0.3, 0.7))
        self.assertIn(cause, shares(0.3, 0.3, 0.4))
        for others in ((0.3, 0.6), (0.5, 0.5), (0.3, 0.3, 0.5)):
            self.assertNotIn("squares of the ranks", shares(*others))

    def test_a_norm_of_another_order(self):
        values = [abs(value) for name in PARAMETERS for value in gradient(name)]
        of_two = math.sqrt(sum(value * value for value in values))

        def said(norm):
            return self.likely(self.judged(of("scalar", "grad_norm", lambda *_: 3.5 * norm / of_two)))
        self.assertIn("it is the largest magnitude of all gradients, the norm of order infinity", said(max(values)))
        self.assertIn("it is the sum of the magnitudes of all gradients, the norm of order 1", said(sum(values)))
        self.assertNotIn("of order", said(0.9 * max(values)))

    def test_a_norm_of_no_such_kind(self):
        self.assertNotIn("norm of", self.likely(self.judged(of("scalar", "grad_norm", lambda *_: 3.9))))

    def test_each_rank_clips_by_its_own_norm(self):
        def clipped(largest):
            return self.judged(of("grad", "", lambda value, run, rank: 0.8 / largest(run, rank) * value))

        def own(run, rank):
            return math.sqrt(sum(self.squares(run, rank).values()))
        text = clipped(own)
        self.assertIn("each rank's values are the golden times a factor of that rank", text)
        self.assertIn("each rank clips by the norm of the gradients that it holds", self.likely(text))
        text = clipped(lambda run, rank: 2.3 + 0.4 * rank)
        self.assertIn("0.347826 on rank 0, 0.296296 on rank 1; explains all of the difference", text)
        self.assertIn("each rank scales by a number of its own", self.likely(text))

    # --- Causes that the values disprove

    def test_zeros_on_one_rank_may_be_an_addend(self):
        change = of("grad", "norm", lambda *_: 0.0, ranks=[0])
        text = self.judged(change)
        self.assertIn("every element is 0 on rank 0 only (tp 0); the sum of the ranks' values over tp is the golden", text)
        self.assertIn("likely    the sum over tp is missing", self.likely(text))
        self.assertNotIn("the sum", self.judged(change, (("tp", 3),)))  # of two right copies it is not

    def test_fused_halves_are_no_zigzag(self):
        def reordered(order):
            def chunks(values, *_):
                return [value for chunk in order for value in values[12 * chunk:12 * chunk + 12]]
            return self.likely(self.judged(replaced("grad", UP, chunks)))
        self.assertIn("two fused halves, such as gate and up, are cut by rank of tp", reordered((0, 2, 1, 3)))
        for order in ((0, 3, 1, 2), (3, 2, 1, 0), (1, 3, 0, 2), (2, 3, 1, 0)):
            with self.subTest(order=order):
                self.assertNotIn("zigzag", reordered(order))

    def activation(self, actual_of):
        shape = (4, 8, 6)
        golden = values_of("activation", shape)
        runs = (recorded(version=2), recorded(DP, version=2))
        for run, values in zip(runs, (golden, actual_of(golden))):
            run.add_to_all("act", "layers.0", values, shape)
        said = self.judged_pair(*runs).stdout
        self.assertIn("tensor    layers.0.output", said)
        return said

    def test_a_module_whose_output_is_wrong_and_whose_weights_are_right(self):
        """The last activation is other values, and the one before it is right."""
        def said(module, changed=None):
            runs = recorded(version=2), recorded(TP, changed, version=2)
            for run, wrong in zip(runs, (0, 1)):
                for order, name in enumerate(("layers.0.up", module)):
                    values = values_of("activation " + name, (4, 10))
                    if wrong and name == module:
                        values = [value + 0.3 * other for value, other in zip(values, values_of("other", (4, 10)))]
                    run.add_to_all("act", name, values, (4, 10), order=order)
            return self.judged_pair(*runs).stdout
        text = said("head")
        self.assertIn("tensor    head.output", text)
        self.assertIn("the error begins in head, or in what it is given: its weights at the start were right, and so is "
                      "layers.0.up.output before it", self.likely(text))
        self.assertIn("ranks hold parts of head.weight along dim 0, so their outputs are summed or joined", self.likely(text))
        self.assertNotIn("ranks hold parts", self.likely(said("layers.0.norm")))
        # Without weights, or where they are wrong, nothing is known of the module.
        self.assertNotIn("the error begins", said("rope"))
        self.assertNotIn("the error begins", said("head", times(1.5, "param", "head.weight")))

    def test_a_wrong_loss_behind_right_outputs(self):
        def said(outputs):
            runs = recorded(version=2), recorded(DP, times(1.0037, "scalar", "loss"), version=2)
            for run in runs:
                for name in outputs:
                    run.add_to_all("act", name, values_of(name, (4, 6)), (4, 6), order=1)
            return self.likely(self.judged_pair(*runs).stdout)
        self.assertIn("all outputs of modules that both runs recorded in this step are right, head.output the last of them: the "
                      "loss is computed from other labels", said(["head"]))
        self.assertNotIn("labels", said([]))

    def test_orders_of_positions_may_be_zigzag(self):
        def reordered(order):
            def actual(values):
                return [value for row in range(4) for chunk in order
                        for value in values[48 * row + 12 * chunk:48 * row + 12 * chunk + 12]]
            return self.likely(self.activation(actual))
        self.assertIn("zigzag", reordered((0, 3, 1, 2)))
        self.assertIn("zigzag", reordered((0, 1, 3, 2)))
        self.assertNotIn("zigzag", reordered((1, 3, 0, 2)))

    def test_a_claim_that_leaves_more_than_rounding_is_no_cause(self):
        bias = values_of("bias", (6,))

        def wrong(more):
            return lambda values: [2 * value + bias[i % 6] + more * other for i, (value, other) in
                                   enumerate(zip(values, values_of("more", (4, 8, 6))))]
        exact = self.activation(wrong(0))
        self.assertIn("summed once too often over dp", self.likely(exact))
        rough = self.activation(wrong(1e-2))
        self.assertRegex(self.likely(rough), "^likely    the error begins in layers.0, or in what it is given")
        self.assertNotIn("dp", self.likely(rough))
        self.says(rough, "2 x golden plus one vector of 6", "not the cause alone")

    def test_a_factor_near_the_size_of_an_axis(self):
        self.assertIn("2 is the size of dp", self.judged(times(2), DP))
        self.assertNotIn("size of dp", self.judged(times(2.00005), DP))
        self.says(self.judged(times(1 + 3e-6), DP), "every element is (1 + 3e-06) x golden",
                  absent=["1.00 x golden"])

    def test_a_part_that_went_through_float32(self):
        def narrowed(values, *_):
            narrow = struct.unpack(f"{len(values)}f", struct.pack(f"{len(values)}f", *values))
            return [small if i // 6 in (2, 3) else value for i, (value, small) in enumerate(zip(values, narrow))]
        text = self.judged(replaced("grad", UP, narrowed), DP)
        self.says(text, "wrong only at dim 0 2..3", absent=["x golden"])
        self.assertIn("computed or stored in float32 somewhere on the way", self.likely(text))

    # --- Factors of counts

    def test_whole_factors_have_a_cause(self):
        def likely(*factor_and_kind):
            return self.likely(self.judged(times(*factor_and_kind), DP))
        self.assertIn("not divided by 9, or divided by a number that is 9 times too small: a count of tokens, rows or "
                      "microbatches", likely(9))
        self.assertIn("divided by 3 once too often", likely(1 / 3))
        self.assertIn("divided by 2 where 15 are due", likely(15 / 2))
        self.assertEqual("", likely(math.pi))
        scalar = self.judged(times(29 / 43, "scalar"), DP)
        self.assertIn("29/43", scalar)
        self.assertIn("divided by 43 where 29 are due", self.likely(scalar))
        self.assertEqual("", likely(0.67442, "scalar"))

    def test_another_factor_in_a_later_step_is_a_count(self):
        def factors(*of_steps):
            def change(kind, name, step, values, rank):
                return [of_steps[step - 1] * value for value in values] if kind == "grad" else None
            return self.likely(self.judged_states(change))
        self.assertIn("a number that changes from batch to batch, such as a count of tokens: at step 2 the factor is 7.5",
                      factors(2, 7.5))
        self.assertNotIn("changes from batch", factors(2, 2))

    # --- The order of a step

    def test_logprobs_come_before_the_loss_that_is_made_of_them(self):
        for first in ("loss", "logprobs"):
            with self.subTest(first=first):
                runs = [recorded(), recorded(DP)]
                for run in runs:
                    wrong = len(run.lines) == 2
                    for rank, lines in enumerate(run.lines):
                        values = values_of("logprobs", (2, 4))
                        if wrong and rank == 1:
                            values[5] += 0.1
                        run.add(rank, "logprobs", "logprobs", values, (2, 4), order=-1 if first == "logprobs" else 900)
                        if first == "logprobs":
                            lines[-1]["order"] = 0
                        if wrong:
                            next(at for at, line in zip(run.data[rank], lines) if line["name"] == "loss")[3][0] = 1.3
                done = self.judged_pair(*runs)
                self.says(done.stdout, "tensor    logprobs", "on rank 1 (dp 1)")

    def test_a_wrong_loss_names_the_rank_whose_gradients_are_wrong(self):
        change = either(times(1.0003, "scalar", "loss"), replaced("grad", "layers", disturbed, ranks=[1]))
        self.assertIn("the gradients of rank 1 are wrong, those of rank 0 are right", self.likely(self.judged(change)))

    # --- Statistics of an activation

    def test_an_activation_that_is_zero_is_no_batch(self):
        """Elements 1 and 6 of the activation between up and down are zero here alone."""
        def without_columns(*given):
            return [0.0 if i % 8 in (1, 6) else value for i, value in enumerate(disturbed(*given))]
        self.says(self.likely(self.judged(either(replaced("grad", "down", without_columns), without_rows_of_up((1, 6))))),
                  "an activation is zero where it is not in the reference: 2 of 8 rows of grad.layers.0.up.weight and the "
                  "same columns of grad.layers.0.down.weight", absent=["batch"])

    def test_rows_that_are_new_are_no_tokens(self):
        golden_change = replaced("grad", UP, lambda values, *_: zeroed(values, [3]))
        self.assertNotIn("batch", self.likely(self.judged(without_rows_of_up((1, 6)), golden_change=golden_change)))


if __name__ == "__main__":
    cli_test.main()
