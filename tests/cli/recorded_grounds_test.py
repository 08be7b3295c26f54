#!/usr/bin/env python3
"""`judge RUN --golden RUN1`: what a match must rest on.

Usage: recorded_grounds_test.py PROGRAM [unittest arguments]
"""
import os
import random

import cli_test
from recorded_test import (ADAM, DP, PARAMETERS, TP, JudgedTest, Run, adam_step, gradient, in_float32, of, recorded,
                           replaced, start, stepped, times, values_of)


class Grounds(JudgedTest):
    def test_two_judged_runs_are_compared_whatever_their_names(self):
        for out, run in (("a", recorded(TP)), ("b", recorded(TP)), ("c", recorded(DP))):
            self.judged_pair(recorded(), run, "--out", self.folder / out, status=0)
        same = self.run_to_end("compare-runs", self.folder / "a", self.folder / "b", status=0).stdout
        self.assertRegex(same, r"same +\S+ and \S+   17 tensors\n1 case in both runs: 1 the same to the bit, 0 differ\n")
        self.assertIn("other mesh: tp=2 in A, dp=2 in B",
                      self.run_to_end("compare-runs", self.folder / "a", self.folder / "c", status=1).stdout)

    def test_moments_of_small_gradients_are_judged(self):
        """Gradients of 1e-6: their squares are far below the roundings of a parameter."""
        def run_of(mesh=(), lost=False):
            run = Run(mesh, optimizer=ADAM)
            for rank in range(run.world_size):
                for name, (shape, _) in PARAMETERS.items():
                    run.box(rank, "param", name, start(name), shape, step=0)
                run.box(rank, "scalar", "loss", [1.25], ())
                for name, (shape, _) in PARAMETERS.items():
                    grad = [1e-6 * value for value in gradient(name)]
                    run.box(rank, "grad", name, grad, shape)
                    run.box(rank, "opt", "exp_avg." + name, [0.1 * value for value in grad], shape)
                    run.box(rank, "opt", "exp_avg_sq." + name, [0.0 if lost else 0.001 * value ** 2 for value in grad], shape)
                    run.box(rank, "param", name, adam_step(start(name), grad), shape)
            return run
        self.judged_pair(run_of(), run_of(DP), status=0)
        self.says(self.judged_pair(run_of(), run_of(DP, lost=True)).stdout,
                  "tensor    exp_avg_sq.", "every element is 0")

    def test_a_huge_tensor_widens_no_gradient_and_no_loss(self):
        """A parameter, or masked logits, of -1e9 beside gradients of 1e-6 and a loss of 0.05."""
        rate, shape = 0.001, (4, 4)

        def run_of(ranks=1, times=1.0, loss=0.05, masks=False, is_stale=False):
            run = Run([("dp", ranks)] if ranks > 1 else [], optimizer={**ADAM, "lr": [rate]})
            old, grad = values_of("w", shape), [1e-6 * value for value in values_of("grad w", shape)]
            new = adam_step(old, grad, rate)
            for rank in range(ranks):
                if not masks:
                    run.box(rank, "param", "pad", [0.0, -1e9], (2,), step=0)
                run.box(rank, "param", "w", old, shape, step=0)
                if masks:
                    run.box(rank, "act", "head.output", [0.3, -1e9, 0.7, -1e9], (2, 2))
                run.box(rank, "scalar", "loss", [loss], ())
                run.box(rank, "grad", "w", [times * value for value in grad], shape)
                if not masks:
                    run.box(rank, "grad", "pad", [0.0, 0.0], (2,))
                    run.box(rank, "param", "pad", [0.0, -1e9], (2,))
                run.box(rank, "param", "w", old if is_stale else new, shape)
            return run
        for golden, wrong, tensor in ((run_of(), {"times": 2.0}, "grad.w"), (run_of(), {"times": 0.0, "is_stale": True}, "grad.w"),
                                      (run_of(), {"is_stale": True}, "param.w"),
                                      (run_of(masks=True), {"masks": True, "loss": 0.050012}, "loss")):
            masks = wrong.get("masks", False)
            self.judged_pair(golden, run_of(2, masks=masks), status=0)
            self.assertIn(f"tensor    {tensor}", self.judged_pair(golden, run_of(2, **wrong)).stdout)

    def narrowed(self, run, kind, name, ranks=(0, 1)):
        """Keeps one tensor of these ranks in float32."""
        for rank in ranks:
            for place, line in enumerate(run.lines[rank]):
                if (line["kind"], line["name"]) == (kind, name):
                    run.edit(rank, place, dtype="float32")
        return run

    def test_a_dtype_of_one_rank(self):
        """It would be no more than unresolved, whatever its values are."""
        run = self.narrowed(recorded(DP), "grad", "head.weight", [1])
        text = self.judged_pair(recorded(), run).stdout
        self.assertIn("it is float32 on this rank, and float64 on another", text)

    def test_one_narrow_gradient_excuses_no_other_update(self):
        """The gradient of one parameter is in float32 on both ranks; another one's update is of other signs."""
        def flipped(values, run, rank, name):
            return [2 * a - b for a, b in zip(start(name), values)]
        right, wrong = (self.narrowed(recorded(DP, change), "grad", "head.weight")
                        for change in (None, replaced("param", "layers.0.norm.weight", flipped)))
        self.assertIn("not judged", self.judged_pair(recorded(), right, status=0).stdout)
        text = self.judged_pair(recorded(), wrong).stdout
        self.assertIn("tensor    param.layers.0.norm.weight", text)

    def test_a_switch_of_the_optimizer_that_nothing_judged(self):
        """An absent switch is off."""
        def settings(**more):
            return self.narrowed(recorded(DP, optimizer_of={**ADAM, **more}), "param", "head.weight")
        self.judged_pair(recorded(), settings(), status=0)
        for switch in ("amsgrad", "nesterov", "maximize"):
            text = self.judged_pair(recorded(), settings(**{switch: True})).stdout
            self.assertIn(f"{switch} is true, the golden's false", text)

    def test_the_rank_whose_states_are_missing_is_named(self):
        def run_of(mesh=(), lost=False):
            run, shape = Run(mesh, optimizer=ADAM), (4, 6)
            start_of, grad = values_of("w", shape), values_of("grad w", shape)

            def put(rank, kind, name, values, step=1):
                run.box(rank, kind, name, values, shape, 0 if mesh else None, rank, 2, step=step)
            for rank in range(run.world_size):
                put(rank, "param", "w", start_of, 0)
                run.box(rank, "scalar", "loss", [1.25], ())
                put(rank, "grad", "w", grad)
                for name, values in (("exp_avg", [0.1 * value for value in grad]),
                                     ("exp_avg_sq", [0.001 * value ** 2 for value in grad])):
                    if not lost or rank == 0:
                        put(rank, "opt", f"{name}.w", values)
                put(rank, "param", "w", adam_step(start_of, grad))
            return run
        self.judged_pair(run_of(), run_of(DP), status=0)
        self.says(self.judged_pair(run_of(), run_of(DP, lost=True)).stdout, "tensor    exp_avg.w",
                  "likely    rank 1 recorded a part of the parameter and no such state of it, rank 0 did: the optimizer there "
                  "does not hold it, or its states were lost")

    def test_one_rank_that_stepped_less_or_more_often(self):
        late = recorded(DP, times(1.5262621, "scalar", "loss"))
        late.add(1, "scalar", "loss", [1.25], (), microbatch=1)
        self.says(self.judged_pair(recorded(), late).stdout, "tensor    loss",
                  "rank 1 recorded it 2 times in this step and rank 0 once: an optimizer did not step there")
        more = recorded(DP)
        more.box(1, "param", "head.weight", start("head.weight"), PARAMETERS["head.weight"][0], step=2)
        self.says(self.judged_pair(recorded(), more).stdout, "rank 1 recorded 2 steps, and the run has 1")

    def test_a_parameter_that_is_frozen_in_the_golden(self):
        frozen = recorded((), replaced("param", "head.weight", lambda values, run, rank, name: start(name)))
        frozen = frozen.without(lambda line: line["kind"] in ("grad", "opt") and "head" in line["name"])
        self.says(self.judged_pair(frozen, recorded(DP)).stdout, "param.head.weight", "it is frozen there")

    def test_a_copy_under_another_name(self):
        run, shape = recorded(DP), PARAMETERS["head.weight"][0]
        run.box(1, "param", "copy.weight", start("head.weight"), shape, step=0)
        self.says(self.judged_pair(recorded(), run).stdout, "tensor    param.copy.weight",
                  "its values are those of param.head.weight (a tied copy keeps that name)")
        other = recorded(DP)
        other.box(1, "param", "copy.weight", gradient("head.weight"), shape, step=0)
        self.says(self.judged_pair(recorded(), other).stdout, "the nearest one is ", absent=["tied copy"])

    def test_gradients_that_are_all_zero(self):
        def zeros(but=None):
            return lambda run, rank, kind, name, values: [0.0] * len(values) if kind == "grad" and name != but else None
        text = self.judged_pair(recorded((), zeros()), recorded(DP, zeros()), status=2).stdout
        self.assertIn("all 5 gradients are 0, so a match would show nothing of them; record steps in which tokens count", text)
        one = zeros("head.weight")
        text = self.judged_pair(recorded((), one), recorded(DP, one), status=0).stdout
        self.assertIn("1 of 5 gradients not all zero", text)

    def test_a_rank_without_gradients_is_noted(self):
        def run_of(wanted):
            run = recorded(DP).without(lambda line: line["kind"] == "grad" and wanted not in line["name"], [1])
            return self.judged_pair(recorded(), run, status=0).stdout
        self.assertIn("rank 1 recorded parameters and no gradient", run_of("none"))
        self.assertNotIn("and no gradient", run_of("head"))

    def test_an_update_that_has_nothing_of_the_goldens(self):
        """The gradients are right and no rule of the optimizer is known."""
        lion = {**ADAM, "type": "Lion"}

        def judged(after, status):
            return self.judged_pair(recorded(optimizer_of=lion), run_of(after), status=status).stdout

        def run_of(after, mesh=DP):
            def change(run, rank, kind, name, values):
                return after(start(name), values) if kind == "param" and values == stepped(name) else None
            return recorded(mesh, change, optimizer_of=lion)
        def drawn(old, _):
            draw = random.Random(old[0])  # the same on both ranks
            return [value + draw.uniform(-0.01, 0.01) for value in old]
        for after in (drawn, lambda old, new: [a - (b - a) * (-1) ** i for i, (a, b) in enumerate(zip(old, new))]):
            self.assertIn("it has the golden's gradient and moved elsewhere", judged(after, 1))
        # A few signs are those of roundings, but where repeats of the reference have the same ones.
        def turned(old, new):
            return [2 * a - b if i == 3 else b for i, (a, b) in enumerate(zip(old, new))]
        self.assertIn("not judged", judged(turned, 0))
        folder = os.path.join(self.scratch, "repeated")
        recorded(optimizer_of=lion).write(folder)
        for number in range(1, 17):
            repeat = run_of(lambda old, new: [value * (1 + 1e-15) for value in new], mesh=())
            repeat.head["noise"] = number
            repeat.write(os.path.join(folder, f"noise{number}"))
        for after, status in ((turned, 1), (lambda old, new: new, 0)):
            run = run_of(after).write(os.path.join(self.scratch, f"turned {status}"))
            self.run_to_end("judge", run, "--golden", folder, status=status)

    def test_an_addend_of_another_form_is_not_missing(self):
        halves = of("grad", "layers.0.norm.weight", lambda value, run, rank: value * (0.25, 0.75)[rank])
        for shape in ((6,), (5,)):
            run = recorded(TP, halves)
            for rank in (0, 1):
                at = run.place(rank, "grad", "layers.0.norm.weight")
                run.lines[rank][at]["partial"] = {"axes": ["tp"], "op": "sum"}
                if rank == 1:
                    key, dtype, _, values = run.data[rank][at]
                    run.data[rank][at] = (key, dtype, list(shape), values[:shape[0]])
                    run.lines[rank][at] |= {"shape": list(shape), "global_shape": list(shape), "offset": [0]}
            text = self.judged_pair(recorded(), run, status=int(shape != (6,))).stdout
            self.assertNotIn("an addend is missing", text)
        self.assertIn("tensor    grad.layers.0.norm.weight", text)
        self.assertRegex(text, r"\[5\].*\[6\]|\[6\].*\[5\]")

    def test_a_wide_scatter_hides_no_half(self):
        """Repeats in float32 scatter by a sixth of the largest element; the ranks' gradients are another multiple."""
        folder = os.path.join(self.scratch, "wide")
        recorded().write(folder)

        def narrow(run):
            run.head["precision"] = "float32"
            return in_float32(run)
        for number in range(1, 17):
            draw = random.Random(number)

            def moved(values, *_):
                return [value + max(map(abs, values)) / 6 * draw.uniform(-1, 1) for value in values]
            repeat = narrow(recorded((), replaced("grad", "", moved)))
            repeat.head["noise"] = number
            repeat.write(os.path.join(folder, f"noise{number}"))

        def judged(factor, status):
            run = narrow(recorded(DP, times(factor))).write(os.path.join(self.scratch, f"times {factor}"))
            return self.run_to_end("judge", run, "--golden", folder, status=status).stdout
        judged(1, 0)
        for factor in (0.5, 1.5):
            self.assertIn("5 of 5 gradients of step 1 are wrong", judged(factor, 1))


if __name__ == "__main__":
    cli_test.main()
