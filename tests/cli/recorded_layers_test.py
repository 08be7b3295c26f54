#!/usr/bin/env python3
"""`judge RUN --golden RUN1`: names that stand for all layers, as Megatron's do, and routers. The runs are written by hand.

Usage: recorded_layers_test.py PROGRAM [unittest arguments]
"""

import cli_test
from recorded_test import ADAM, DP, JudgedTest, Run, cut, size_of, values_of

LAYERS = 2
ROUTER, EXPERTS = "decoder.layers.mlp.router.weight", "decoder.layers.mlp.experts.weight"
SHAPES = {ROUTER: (LAYERS, 4, 6), EXPERTS: (LAYERS, 4, 3, 5)}
HEAD = "head.weight", (10, 6)


def whole(kind, name):
    return values_of(f"{kind} {name}", dict([HEAD], **SHAPES)[name])


def recorded(mesh=(), change=None, spans=(), with_loss=True, with_counts=False):
    """Each rank has all layers. `change(kind, name, layer, values)` may return other values of a layer. On the ranks in `spans`
    a piece is of all layers. With counts, the optimizer counts the steps of each parameter."""
    run = Run(mesh, optimizer=ADAM)
    for rank in range(run.world_size):
        def put(kind, name, step, layer=None):
            shape = dict([HEAD], **SHAPES)[name]
            values, offset, local = whole(kind, name), [0] * len(shape), list(shape)
            if layer is not None and not (rank in spans and kind == "grad"):
                offset[0], local[0] = layer, 1
                values = cut(values, shape, offset, local)
                values = (change and change(kind, name, layer, values)) or values
            elif layer:
                return
            run.add(rank, kind, name, values, local, step, global_shape=list(shape), offset=offset)

        def put_all(kind, step):
            put(kind, HEAD[0], step)
            for layer in reversed(range(LAYERS)):
                for name in (EXPERTS, ROUTER):
                    put(kind, name, step, layer)
        put_all("param", 0)
        if with_loss:
            run.add(rank, "scalar", "loss", [1.25], ())
        put_all("grad", 1)
        for name in (EXPERTS, ROUTER) * LAYERS if with_counts else ():
            run.add(rank, "opt", f"step.{name}", [1], (), dtype="int64")
        put_all("param", 1)
    return run


def wrong(*places):
    """The gradients of these (name, layer) are other values."""
    def change(kind, name, layer, values):
        if kind != "grad" or (name, layer) not in places:
            return None
        return [value + 0.3 * other for value, other in zip(values, values_of(f"noise {name}", (len(values),)))]
    return change


BELOW = (EXPERTS, 0), (ROUTER, 0)


class Layers(JudgedTest):
    def judged(self, *given, status=1, **options):
        same = {name: options[name] for name in ("with_loss", "with_counts") if name in options}
        return self.judged_pair(recorded(**same), recorded(DP, *given, **options), status=status).stdout

    def test_each_layer_is_a_tensor(self):
        text = self.judged(status=0)
        elements = 3 * 2 * (size_of(HEAD[1]) + sum(map(size_of, SHAPES.values()))) + 2
        self.assertIn(f"{3 * (1 + 2 * LAYERS) + 1} tensors, {elements} elements", text)

    def test_the_first_wrong_tensor_is_that_of_a_layer(self):
        text = self.judged(wrong((ROUTER, 1), *BELOW))
        self.assertIn("tensor    grad.decoder.layers.1.mlp.router.weight   [4, 6]   of step 1", text)
        self.assertIn("3 of 5 gradients of step 1 are wrong", text)

    def test_counts_of_steps_do_not_put_layers_together(self):
        """As AdamW of torch counts them: one number for each parameter, which is in no layer."""
        self.says(self.judged(wrong((ROUTER, 1), *BELOW), with_counts=True),
                  "tensor    grad.decoder.layers.1.mlp.router.weight   [4, 6]   of step 1", absent=["step.decoder"])

    def test_a_layer_that_is_right_is_not_named(self):
        text = self.judged(wrong(*BELOW))
        self.assertIn("tensor    grad.decoder.layers.0.mlp.experts.weight   [4, 3, 5]", text)

    def test_pieces_of_several_layers_stay_one_tensor(self):
        text = self.judged(wrong((ROUTER, 1)), spans=[1])
        self.assertIn("tensor    grad.decoder.layers.mlp.router.weight   [2, 4, 6]", text)

    def test_a_layer_without_its_piece(self):
        """Rank 1 lacks the router of a layer after the step."""
        run = recorded(DP)
        place = next(i for i, line in enumerate(run.lines[1])
                     if (line["kind"], line["name"], line["step"], line["offset"][:1]) == ("param", ROUTER, 1, [0]))
        del run.lines[1][place], run.data[1][place]
        self.says(self.judged_pair(recorded(), run).stdout, "param.decoder.layers.0.mlp.router.weight",
                  "rank 1 recorded other parts of it than at the start, or none")

    def test_a_router_alone(self):
        text = self.judged(wrong((ROUTER, 1), *BELOW))
        self.assertIn("likely    an auxiliary loss of the router (its balance, or a z-loss) has another weight", text)
        self.assertIn("the loss and the gradients of decoder.layers.1.mlp.experts are right", text)

    def test_a_router_whose_experts_are_wrong_too(self):
        self.says(self.judged(wrong((EXPERTS, 1), (ROUTER, 1), *BELOW)), absent=["auxiliary"])

    def test_a_router_without_a_recorded_loss(self):
        self.says(self.judged(wrong((ROUTER, 1), *BELOW), with_loss=False), "MISMATCH",
                  absent=["auxiliary"])

    def test_a_router_of_which_a_part_has_a_factor(self):
        """The auxiliary loss, most of the router's gradient, counts half."""
        def change(kind, name, layer, values):
            if (kind, name, layer) == ("grad", ROUTER, 1):
                return [0.5 * value + 0.01 * other for value, other in zip(values, values_of("rest", (len(values),)))]
            return wrong(*BELOW)(kind, name, layer, values)
        text = self.judged(change)
        self.assertIn("every element is about 0.5 (1/2) x golden", text)
        self.assertIn("likely    an auxiliary loss of the router", text)
        self.assertNotIn("averaged over that axis", text)  # 1/2 leaves more than rounding

    def test_a_router_with_a_factor_has_that_cause(self):
        def change(kind, name, layer, values):
            return [2 * value for value in values] if (kind, name) == ("grad", ROUTER) else None
        self.says(self.judged(change), "2 is the size of dp", absent=["auxiliary"])


if __name__ == "__main__":
    cli_test.main()
