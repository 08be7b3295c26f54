#!/usr/bin/env python3
"""`judge RUN --golden RUN1`: experts over the ranks of ep. Which expert is wrong, whose values it holds, and what the gradients
of experts tell of a wrong loss. The runs are written by hand; experts are rows of a stacked tensor, or tensors of their own.

Usage: recorded_experts_test.py PROGRAM [unittest arguments]
"""

import cli_test
from recorded_test import ADAM, JudgedTest, Run, size_of, values_of

EXPERTS, SHAPE = 4, (3, 5)
NORM, HEAD = ("layers.0.norm.weight", (6,)), ("head.weight", (10, 6))
EP2 = (("dp", 1), ("ep", 2))
# Four ranks of dp x tp, over all of which the experts are spread.
EP4_OVER_ALL = (("dp", 2), ("tp", 2)), [{"axis": "ep", "stride": 1, "size": 4}]


def expert(kind, number, shape=SHAPE):
    return values_of(f"{kind} expert {number}", shape)


def recorded(mesh=(), parts=(), is_stacked=True, change=None, others=None, loss=1.25, name="up", shape=SHAPE):
    """`change(kind, rank, number)` may return other values of an expert, `others(kind, name, values)` of other tensors."""
    run = Run(mesh, optimizer=ADAM)
    if parts:
        run.head |= {"version": 3, "parts": parts}
    ranks_of_ep = next((part["size"] for part in parts), dict(mesh).get("ep", 1))
    held = EXPERTS // ranks_of_ep
    for rank in range(run.world_size):
        first = rank % ranks_of_ep * held

        def put(kind, step):
            for other, size in (NORM, HEAD):
                values = values_of(f"{kind} {other}", size)
                run.add(rank, kind, other, (others and others(kind, other, values)) or values, size, step)
            numbers = range(first, first + held)
            values = {number: (change and change(kind, rank, number)) or expert(kind, number, shape) for number in numbers}
            if is_stacked:
                run.add(rank, kind, f"layers.0.mlp.experts.{name}", sum((values[number] for number in numbers), []),
                        (held, *shape), step, global_shape=[EXPERTS, *shape], offset=[first] + [0] * len(shape))
                return
            for number in numbers:
                run.add(rank, kind, f"layers.0.mlp.experts.{number}.{name}", values[number], shape, step)
        put("param", 0)
        run.add(rank, "scalar", "loss", [loss], ())
        put("grad", 1)
        put("param", 1)
    return run


class ExpertsTest(JudgedTest):
    def expect(self, texts, *mesh, absent=(), is_stacked=True, **changes):
        run = recorded(*mesh, is_stacked=is_stacked, **changes)
        self.says(self.judged_pair(recorded(is_stacked=is_stacked), run), *texts, absent=absent)

    def test_right_runs_match(self):
        for mesh in ((EP2,), EP4_OVER_ALL):
            for is_stacked in (True, False):
                self.judged_pair(recorded(is_stacked=is_stacked), recorded(*mesh, is_stacked=is_stacked), status=0)

    def test_experts_in_another_order(self):
        """Those of rank 1 stand in each other's place."""
        def swapped(kind, rank, number):
            return expert(kind, {2: 3, 3: 2}.get(number, number)) if rank == 1 else None
        for is_stacked in (True, False):
            self.expect(["at the start", "expert 2 holds the golden's expert 3, expert 3 holds the golden's expert 2",
                         "on rank 1 only", "experts were put in another order"], EP2, is_stacked=is_stacked, change=swapped)

    def test_each_rank_has_the_first_experts(self):
        def local(kind, rank, number):
            return expert(kind, number % 2)
        for is_stacked in (True, False):
            self.expect(["expert 2 holds the golden's expert 0, expert 3 holds the golden's expert 1",
                         "the number of an expert among those of its rank was taken for its number among all experts"],
                        EP2, is_stacked=is_stacked, change=local)

    def test_gradients_of_the_experts_of_one_rank(self):
        def doubled(kind, rank, number):
            return [2 * one for one in expert(kind, number)] if (kind, rank) == ("grad", 1) else None
        self.expect(["grad.layers.0.mlp.experts.up", "2.00 x golden on rank 1 only (ep 1)",
                     "experts 2, 3 of 4 are wrong, and the others are right"], EP2, change=doubled)

    def test_a_gradient_that_is_zero_is_not_that_of_an_idle_expert(self):
        """Expert 0 is idle, so that its gradient is zero in the golden, too."""
        def idle(kind, rank, number):
            return [0.0] * size_of(SHAPE) if kind == "grad" and number in ((0, 3) if rank else (0,)) else None
        golden = recorded(change=lambda kind, _, number: [0.0] * 15 if (kind, number) == ("grad", 0) else None)
        done = self.judged_pair(golden, recorded(EP2, change=idle))
        self.says(done.stdout, "expert 3 of 4 is wrong, and the others are right", absent=["holds the golden's expert"])

    def test_a_part_of_the_mesh_names_a_factor(self):
        def doubled(kind, _, number):
            return [4 * one for one in expert(kind, number)] if kind == "grad" else None
        self.expect(["every element is 4.00 x golden on all ranks", "4 is the size of ep"], *EP4_OVER_ALL, change=doubled)

    def test_the_place_of_a_rank_has_its_part(self):
        def wrong(kind, rank, number):
            return [0.1 + one for one in expert(kind, number)] if (kind, rank) == ("grad", 3) else None
        self.expect(["on rank 3 (dp 1, tp 1, ep 3)", "expert 3 of 4 is wrong"], *EP4_OVER_ALL, change=wrong)

    @staticmethod
    def noisy(share):
        def others(kind, name, values):
            noise = values_of(f"noise {name}", (len(values),))
            return [one + share * other for one, other in zip(values, noise)] if kind == "grad" else None
        return others

    @staticmethod
    def far(numbers, others=0.0, zero=False):
        def change(kind, rank, number):
            values, noise = expert(kind, number), values_of(f"noise {number}", SHAPE)
            if kind != "grad":
                return None
            if number in numbers and zero:
                return [0.0] * len(values)
            return [one + (1.0 if number in numbers else others) * other for one, other in zip(values, noise)]
        return change

    def test_a_wrong_loss_of_experts_with_other_weights(self):
        for is_stacked in (True, False):
            self.expect(["tensor    loss", "the gradients of experts 2, 3 of layers.0.mlp are", "on rank 1 only",
                         "these experts compute with other weights, or on the rows of other tokens"],
                        EP2, is_stacked=is_stacked, change=self.far((2, 3), 0.01), others=self.noisy(0.01), loss=1.2500001)

    def test_a_wrong_loss_of_all_experts(self):
        self.expect(["the gradients of all experts of layers.0.mlp are"], EP2, change=self.far(range(4)),
                    others=self.noisy(0.01), loss=1.2500001)

    def test_an_expert_that_does_not_count(self):
        self.expect(["the gradients of expert 3 of layers.0.mlp are zero on rank 1 only",
                     "nothing that these experts compute counts"], EP2, change=self.far((3,), 0.01, zero=True),
                    others=self.noisy(0.01), loss=1.2500001)

    def test_biases_of_experts_are_not_rows_of_tokens(self):
        """Rows of a stacked bias are experts, neither positions nor tokens."""
        biases = {"name": "up_bias", "shape": (5,)}

        def lost(kind, rank, number):
            return [0.0] * 5 if (kind, rank) == ("grad", 1) else None
        self.says(self.judged_pair(recorded(**biases), recorded(EP2, change=lost, loss=1.2500001, **biases)).stdout,
                  "the gradients of experts 2, 3 of layers.0.mlp are zero on rank 1 only", absent=["positions"])

        def swapped(kind, rank, number):
            return expert(kind, {2: 3, 3: 2}[number], (5,)) if rank == 1 else None
        text = self.judged_pair(recorded(**biases), recorded(EP2, change=swapped, **biases)).stdout
        self.assertIn("expert 2 holds the golden's expert 3, expert 3 holds the golden's expert 2", text)

    def test_a_wrong_loss_whose_gradients_are_all_wrong(self):
        self.expect(["tensor    loss"], EP2, change=self.far(range(4)), others=self.noisy(1.0), loss=1.5,
                    absent=["these experts"])
        self.expect(["tensor    loss"], EP2, change=self.far((), 0.01), others=self.noisy(0.01), loss=1.5,
                    absent=["these experts"])

    def test_bad_parts_are_refused(self):
        for part, message in (({"axis": "ep", "stride": 1, "size": 3}, "does not divide"), ({"axis": "ep", "size": 2}, "stride"),
                              ({"axis": "", "stride": 1, "size": 2}, "which is not a name"),
                              ({"axis": "dp", "stride": 1, "size": 2}, "named twice")):
            run = recorded((("dp", 2), ("tp", 2)))
            run.head |= {"version": 3, "parts": [part]}
            self.assertIn(message, self.judged_pair(recorded(), run, status=2).stderr)


if __name__ == "__main__":
    cli_test.main()
