#!/usr/bin/env python3
"""`judge RUN --golden RUN1`: runs that another program recorded. The runs are written here by hand, so that nothing
of the recorder is needed, and their values come from the formulas below.

Usage: recorded_test.py PROGRAM [unittest arguments]
"""
import itertools
import json
import math
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

HERE = os.path.dirname(os.path.abspath(__file__))
import cli_test  # noqa: E402

CODES = {"float64": ("F64", "d"), "float32": ("F32", "f"), "float16": ("F16", "e"), "int64": ("I64", "q")}
DP, TP = (("dp", 2),), (("tp", 2),)  # meshes
ADAM = {"type": "AdamW", "lr": [0.01], "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}


def size_of(shape):
    return math.prod(shape)


def values_of(name, shape):
    """Different at every position."""
    draw = random.Random(name)
    return [draw.uniform(-1, 1) for _ in range(size_of(shape))]


def cut(values, shape, offset, local):
    """The box [offset, offset + local) of a row-major tensor."""
    strides = [size_of(shape[d + 1:]) for d in range(len(shape))]
    ranges = [range(start, start + length) for start, length in zip(offset, local)]
    return [values[sum(i * s for i, s in zip(index, strides))] for index in itertools.product(*ranges)]


class Run:
    """A recorded run that is written line by line."""

    def __init__(self, mesh=(), **more):
        self.mesh = list(mesh)
        self.world_size = size_of([size for _, size in self.mesh])
        self.head = {"format": "shardproof-run", "version": 1, "made_by": {"torch": "2.11.0"},
                     "world_size": self.world_size,
                     "mesh": [{"axis": axis, "size": size} for axis, size in self.mesh],
                     "precision": "float64", "steps": 1, "only": None, **more}
        self.lines = [[] for _ in range(self.world_size)]
        self.data = [[] for _ in range(self.world_size)]

    def at(self, rank, axis):
        """The rank's coordinate, row-major, outer to inner."""
        for name, size in reversed(self.mesh):
            if name == axis:
                return rank % size
            rank //= size
        return 0

    def add(self, rank, kind, name, values, shape, step=1, dtype="float64", **more):
        key = str(len(self.lines[rank]))
        line = {"key": key, "kind": kind, "name": name, "step": step, "microbatch": 0,
                "order": len(self.lines[rank]), "dtype": dtype, "shape": list(shape),
                "global_shape": list(shape), "offset": [0] * len(shape), "source": "declared", **more}
        self.lines[rank].append(line)
        self.data[rank].append((key, dtype, list(shape), list(values)))
        return line

    def add_to_all(self, *piece, **more):
        for rank in range(self.world_size):
            self.add(rank, *piece, **more)
        return self

    def box(self, rank, kind, name, whole, shape, dim=None, part=0, parts=1, **more):
        """One of `parts` equal parts along `dim`."""
        local, offset = list(shape), [0] * len(shape)
        if dim is not None:
            local[dim] //= parts
            offset[dim] = part * local[dim]
        return self.add(rank, kind, name, cut(whole, shape, offset, local), local,
                        global_shape=list(shape), offset=offset, **more)

    def place(self, rank, kind, part):
        """Where the rank's first piece of this kind is whose name holds this part."""
        return next(i for i, line in enumerate(self.lines[rank]) if line["kind"] == kind and part in line["name"])

    def edit(self, rank, place, how=lambda value: value, **more):
        """Changes each value of a piece, and what its line says."""
        key, dtype, shape, values = self.data[rank][place]
        self.lines[rank][place] |= more
        self.data[rank][place] = (key, more.get("dtype", dtype), shape, [how(value) for value in values])

    def edit_all(self, kind, part, how=lambda value: value, **more):
        """Edits each rank's first piece of this kind whose name holds this part."""
        for rank in range(self.world_size):
            self.edit(rank, self.place(rank, kind, part), how, **more)
        return self

    def without(self, unwanted, ranks=None):
        """Takes the lines of these ranks, or of all, that `unwanted` holds of out of the run."""
        for rank in range(self.world_size) if ranks is None else ranks:
            kept = [i for i, line in enumerate(self.lines[rank]) if not unwanted(line)]
            for rows in (self.lines, self.data):
                rows[rank] = [rows[rank][i] for i in kept]
        return self

    def write(self, folder):
        os.makedirs(folder)
        for rank, lines in enumerate(self.lines):
            text = "".join(json.dumps(line) + "\n" for line in [*lines, {"end": len(lines)}])
            pathlib.Path(folder, f"rank{rank}.jsonl").write_text(text, encoding="utf-8")
            self._write_tensors(pathlib.Path(folder, f"rank{rank}.safetensors"), self.data[rank])
        pathlib.Path(folder, "run.json").write_text(json.dumps(self.head), encoding="utf-8")
        return folder

    @staticmethod
    def _write_tensors(path, tensors):
        made = {}
        for key, dtype, shape, values in sorted(tensors, key=lambda one: -struct.calcsize(CODES[one[1]][1])):
            name, code = CODES[dtype]
            made[key] = (name, shape, struct.pack(f"<{len(values)}{code}", *values))
        path.write_bytes(cli_test.case_maker.safetensors(made))


# name: shape, and the dim that tp cuts
PARAMETERS = {"layers.0.norm.weight": ((6,), None), "layers.0.up.weight": ((8, 6), 0),
              "layers.0.down.weight": ((6, 8), 1), "layers.0.experts.0.weight": ((4, 6), None),
              "head.weight": ((10, 6), 0)}


def gradient(name):
    return values_of("grad " + name, PARAMETERS[name][0])


def start(name):
    return values_of("start " + name, PARAMETERS[name][0])


def adam_step(values, gradients, rate=0.01):
    """The first step of AdamW without decay: each element moves by lr * g / (|g| + eps)."""
    return [w - rate * g / (abs(g) + 1e-8) for w, g in zip(values, gradients)]


def stepped(name):
    return adam_step(start(name), gradient(name))


def recorded(mesh=(), change=None, optimizer_of=None, **more):
    """A run of one step. `change(run, rank, kind, name, values)` may return other values of a whole tensor."""
    run = Run(mesh, optimizer=optimizer_of or ADAM, **more)
    tp = dict(run.mesh).get("tp", 1)
    for rank in range(run.world_size):
        def put(kind, name, whole, shape, step, dim=None):
            whole = (change and change(run, rank, kind, name, list(whole))) or whole
            run.box(rank, kind, name, whole, shape, dim, run.at(rank, "tp"), tp, step=step)

        for name, (shape, dim) in PARAMETERS.items():
            put("param", name, start(name), shape, 0, dim)
        put("scalar", "loss", [1.25], (), 1)
        for name, (shape, dim) in reversed(PARAMETERS.items()):
            put("grad", name, gradient(name), shape, 1, dim)
        put("scalar", "grad_norm", [3.5], (), 1)
        for name, (shape, dim) in PARAMETERS.items():
            put("param", name, stepped(name), shape, 1, dim)
    return run


def in_float32(run):
    """The run, with all that it has so far in float32."""
    for rank, lines in enumerate(run.lines):
        for place in range(len(lines)):
            run.edit(rank, place, dtype="float32")
    return run


def replaced(wanted_kind, part_of_name, how, ranks=None):
    """A change of one kind of tensor: how(values, run, rank, name), which may be None."""
    def change(run, rank, kind, name, values):
        is_wanted = kind == wanted_kind and part_of_name in name and (ranks is None or rank in ranks)
        return how(values, run, rank, name) if is_wanted else None
    return change


def of(kind, part_of_name, how, ranks=None):
    """A change of each value of one kind of tensor: how(value, run, rank)."""
    return replaced(kind, part_of_name, lambda values, run, rank, name: [how(one, run, rank) for one in values], ranks)


def times(factor, kind="grad", part_of_name="", ranks=None):
    return of(kind, part_of_name, lambda value, run, rank: factor * value, ranks)


def either(*changes):
    """What the first of these changes makes of a tensor that it changes."""
    return lambda *given: next((made for change in changes if (made := change(*given))), None)


def after_step(part_of_name, how):
    """A change of each value of parameters, but not at the start."""
    return replaced("param", part_of_name, lambda values, run, rank, name:
                 [how(value) for value in values] if values != start(name) else None)


def jitter(size):
    """For repeats: each value is moved by less than `size` of it, in each repeat by another share."""
    return lambda values, repeat: [value * (1 + size * math.sin(repeat + i)) for i, value in enumerate(values)]


class JudgedTest(cli_test.CommandTest):
    def written(self, run):
        """The folder of a run, or this folder."""
        if not isinstance(run, Run):
            return run
        return run.write(tempfile.mkdtemp(dir=self.scratch) + "/run")

    def judged_pair(self, golden, run, *words, status=1):
        """What the judge says of a run beside a golden; each is a Run or a folder."""
        return self.run_to_end("judge", self.written(run), "--golden", self.written(golden),
                               *words, status=status)


class RecordedRunTest(JudgedTest):
    def setUp(self):
        super().setUp()
        self.golden = self.written(recorded())

    def expect(self, run, status, *texts, golden=None, words=(), absent=()):
        """How the judge ends and what it says of a run; returns that."""
        done = self.judged_pair(golden or self.golden, run, *words, status=status)
        self.says(done, *texts, absent=absent)
        return done

    def test_right_layouts_match(self):
        whole = sum(size_of(shape) for shape, _ in PARAMETERS.values())
        uncut = sum(size_of(shape) for shape, dim in PARAMETERS.values() if dim is None)
        # start, gradient and parameter of each, and two scalars; what tp does not cut is on each of its ranks
        elements = {"tp": 3 * (whole + uncut) + 4, "dp": 2 * (3 * whole + 2)}
        for axis, count in elements.items():
            with self.subTest(axis=axis):
                self.expect(recorded([(axis, 2)]), 0, "MATCH",
                            f"17 tensors, {count} elements", "(one rank)",
                            absent=["collective"])
        self.expect(recorded([("dp", 3), ("tp", 2)]), 0, "MATCH", "dp=3 tp=2")

    def test_a_gradient_of_one_rank_that_is_stale(self):
        change = of("grad", "norm", lambda value, run, rank: 0.5 * value + 0.1, ranks=[1])
        self.expect(recorded([("dp", 1), ("tp", 2)], change), 1, "MISMATCH", "values",
                    "grad.layers.0.norm.weight", "on rank 1 (tp 1)", "rank 1 only")

    def test_copies_that_differ_within_the_allowance(self):
        change = of("grad", "norm", lambda value, run, rank: value * (1 + 1e-15), ranks=[1])
        self.expect(recorded(TP, change), 1, "replicas", "grad.layers.0.norm.weight")

    def test_a_factor_names_the_axis(self):
        change = of("grad", "", lambda value, run, rank: 3 * value)
        self.expect(recorded([("dp", 3), ("tp", 2)], change), 1, "grad.head.weight",
                    "every element is 3.00 x golden", "3 is the size of dp", "5 of 5 gradients")

    def test_a_sum_that_is_missing(self):
        def half(value, run, rank):
            share = 0.3 + 0.4 * run.at(rank, "tp")
            return share * value + (0.2 if run.at(rank, "tp") else -0.2)
        self.expect(recorded([("dp", 2), ("tp", 2)], of("grad", "norm", half)), 1,
                    "grad.layers.0.norm.weight", "the sum over tp is missing")

    def test_files_of_two_runs(self):
        folder = self.written(recorded(TP))
        pathlib.Path(folder, "rank2.jsonl").touch()
        self.expect(folder, 2, "holds rank2.jsonl, and its run.json says 2 ranks")

    def test_wrong_gradients_with_a_part_of_the_name_in_common(self):
        change = of("grad", "layers", lambda value, run, rank: 1.5 * value)
        self.expect(recorded(TP, change), 1, "4 of 5 gradients of step 1 are wrong",
                    "all with 'layers' in their name, and no others")

    def test_a_module_with_the_name_of_a_kind(self):
        """The output of a module that is called "grad" is not a gradient."""
        def with_output(run, factor=1.0):
            return run.add_to_all("act", "grad.up", [factor * value for value in values_of("up", (4, 6))], (4, 6))
        self.golden = with_output(recorded())
        change = of("grad", "layers", lambda value, run, rank: 1.5 * value)
        self.expect(with_output(recorded(DP, change), 1.5), 1,
                    "tensor    grad.up.output", "4 of 5 gradients of step 1 are wrong")

    def test_the_first_wrong_gradient_is_the_first_that_backward_computes(self):
        change = of("grad", "layers", lambda value, run, rank: 1.5 * value)
        self.expect(recorded(TP, change), 1, "tensor    grad.layers.0.experts.0.weight")

    def test_addends_are_summed(self):
        def run_of(addend):
            run = recorded(TP)
            for rank in range(2):
                run.edit(rank, run.place(rank, "grad", "layers.0.norm.weight"), lambda value: addend(value, rank),
                         partial={"axes": ["tp"], "op": "sum"})
            return run
        share = [0.25, 0.75]
        self.expect(run_of(lambda value, rank: share[rank] * value), 0, "MATCH")
        self.expect(run_of(lambda value, rank: value), 1, "grad.layers.0.norm.weight",
                    "the sum of the addends over tp")

    def test_a_mean_over_an_axis(self):
        def run_of(losses):
            run = recorded(DP, of("scalar", "loss", lambda value, run, rank: losses[rank]))
            return run.edit_all("scalar", "loss", partial={"axes": ["dp"], "op": "mean"})
        self.expect(run_of([1.0, 1.5]), 0, "MATCH")
        self.expect(run_of([1.0, 1.0]), 1, "loss", "of step 1")
        run = run_of([1.0, 1.0]).edit_all("scalar", "loss", dtype="float32")  # terms of a mean that nothing judges
        self.expect(run, 0, "MATCH", "MATCH, 1 of 17 not judged")

    def test_shards_in_the_wrong_order(self):
        def change(run, rank, kind, name, values):
            return values[24:] + values[:24] if kind == "grad" and "up" in name else None
        self.expect(recorded(TP, change), 1, "grad.layers.0.up.weight", "order")

    def test_flat_pieces(self):
        run = Run(DP, optimizer=ADAM)
        for rank in range(2):
            run.add(rank, "scalar", "loss", [1.25], ())
            run.add(rank, "scalar", "grad_norm", [3.5], ())
            for name, (shape, _) in PARAMETERS.items():
                middle = size_of(shape) // 3
                begin, end = ((0, middle), (middle, size_of(shape)))[rank]
                for kind, step, whole in (("param", 0, start(name)), ("grad", 1, gradient(name)),
                                          ("param", 1, stepped(name))):
                    run.add(rank, kind, name, whole[begin:end], [end - begin], step=step, global_shape=list(shape),
                            offset=None, flat=[begin, end])
        self.expect(run, 0, "MATCH")
        run.edit(1, run.place(1, "grad", "norm"), lambda value: 0.0)
        self.expect(run, 1, "grad.layers.0.norm.weight", "rank 1")

    def test_plain_tensors_are_placed_by_their_start(self):
        run = recorded(TP)
        for lines in run.lines:
            for line in lines:
                line.update(offset=None, global_shape=line["shape"], source="plain")
        self.expect(run, 0, "MATCH")

    def test_plain_tensors_of_which_two_parts_fit(self):
        same = of("param", "up", lambda value, run, rank: 0.5)
        self.golden = recorded((), same)
        run = recorded(TP, same)
        for lines in run.lines:
            for line in lines:
                line.update(offset=None, global_shape=line["shape"])
        self.expect(run, 2, "2 parts of the start parameter", "layouts=")

    def test_other_start_weights(self):
        change = of("param", "head", lambda value, run, rank: value + 0.25)
        self.expect(recorded(TP, change), 1, "param.head.weight", "at the start",
                    "shardproof.load(model, golden)")

    def test_a_parameter_that_moved_otherwise(self):
        run = recorded(TP)
        for rank in range(2):
            line = run.lines[rank][-1]
            self.assertEqual((line["kind"], line["step"], line["name"]), ("param", 1, "head.weight"))
            run.edit(rank, -1, lambda value: value + 0.001)
        self.expect(run, 1, "param.head.weight", "of step 1")

    def test_a_part_that_no_rank_holds(self):
        run = recorded(TP).without(lambda line: line["kind"] == "grad" and "up" in line["name"], [1])
        self.expect(run, 1, "missing", "grad.layers.0.up.weight")

    def test_a_gradient_that_no_rank_holds(self):
        run = recorded(TP).without(lambda line: line["kind"] == "grad" and "up" in line["name"])
        self.expect(run, 1, "missing", "grad.layers.0.up.weight", "no rank of this run recorded it")

    def test_a_name_that_the_reference_lacks(self):
        run = recorded(TP)
        for lines in run.lines:
            for line in lines:
                line["name"] = line["name"].replace("head.weight", "heed.weight")
        self.expect(run, 1, "missing", "head.weight")

    def test_float32_is_not_called_right(self):
        run = in_float32(recorded(TP))
        self.expect(run, 4, "REFUSED", "float32", "record both runs in float64")
        run.edit(1, run.place(1, "grad", "norm"), lambda value: value + 1)
        self.expect(run, 1, "replicas", "grad.layers.0.norm.weight")

    def test_counts_of_steps_are_no_result(self):
        def with_counts(kind, name, mesh=()):
            return in_float32(recorded(mesh)).add_to_all(kind, name, [1], (), dtype="int64")
        for of in (("opt", "step.head.weight"), ("buffer", "positions"), ("scalar", "tokens")):
            with self.subTest(of):
                self.golden = with_counts(*of)
                self.expect(with_counts(*of, DP), 4, "REFUSED", "no value could be judged", "float32")

    def test_other_settings_of_the_optimizer(self):
        moved = after_step("head", lambda value: value + 1e-3)
        other = {**ADAM, "rule": "adamw", "weight_decay": 0.1}
        self.golden = recorded(optimizer_of={**ADAM, "rule": "adamw"})
        self.expect(recorded(DP, moved, optimizer_of=other), 1, "param.head.weight",
                    "the optimizers have other settings (run.json): weight_decay is 0.1, the golden's 0")
        slower = {**ADAM, "rule": "adamw", "lr": [0.75 * ADAM["lr"][0]]}
        grouped = {**slower, "groups": [{**slower, "parameters": sorted(PARAMETERS)}]}
        self.expect(recorded(DP, moved, optimizer_of=grouped), 1, "lr of step 1 is 0.0075, the golden's 0.01")
        for same in ({"type": "FusedAdam"}, {"weight_decay": 0}, {"rule": "other"}):  # the rule and the numbers count
            fused = {**ADAM, "rule": "adamw", **same}
            self.expect(recorded(DP, moved, optimizer_of=fused), 1, "param.head.weight", absent=["other settings"])

    def test_one_tensor_below_float64(self):
        run = recorded(TP).edit_all("scalar", "loss", dtype="float32")
        self.expect(run, 0, "MATCH", "MATCH, 1 of 17 not judged", "loss")
        self.expect(run, 1, "loss", words=["--no-unresolved"])

    def test_other_settings_of_an_update_that_nothing_judged(self):
        def narrow(lr):
            run = recorded(TP, optimizer_of={**ADAM, "lr": [lr]})
            for rank, lines in enumerate(run.lines):
                for place, line in enumerate(lines):
                    if line["kind"] == "param" and "head" in line["name"] and line["step"] == 1:
                        run.edit(rank, place, dtype="float32")
            return run
        self.expect(narrow(ADAM["lr"][0]), 0, "MATCH, 1 of 17 not judged", "param.head.weight")
        self.expect(narrow(0.02), 1, "MISMATCH",
                    "lr of step 1 is 0.02, the golden's 0.01, and param.head.weight of step 1 could not be judged")

    def test_a_batch_that_only_the_golden_cut(self):
        def of_batch(mesh=(), parts=None):
            run = recorded(mesh)
            run.head |= {} if parts is None else {"batch": {"rows": 8, "parts": parts}}
            return run
        said = "the golden took 8 rows from shardproof.batch, which this run never called"
        self.golden = of_batch(parts=1)
        self.expect(of_batch(DP), 0, "MATCH", said)
        self.expect(of_batch(DP, 1), 0, "MATCH",
                    "shardproof.batch gave every rank all 8 rows, although the mesh has an axis that cuts batches")
        for run in (of_batch(DP, 2), of_batch(TP, 1), of_batch(TP)):
            self.expect(run, 0, "MATCH", absent=[said])

    def test_two_layouts(self):
        run, self.golden = recorded(TP), recorded(DP)
        self.expect(run, 2, "has 2 ranks", "--reference")
        self.expect(run, 0, "MATCH", "dp=2, not against one rank", words=["--reference"])
        wrong = of("grad", "norm", lambda value, run, rank: value + rank)
        self.expect(run, 2, "unequal copies", "grad.layers.0.norm.weight", words=["--reference"],
                    golden=recorded(DP, wrong))

    def test_what_a_rank_holds_at_the_start_it_holds_after_each_step(self):
        for unwanted in (lambda line: line["step"] == 1, lambda line: line["kind"] == "param" and line["step"] == 1):
            self.expect(recorded(DP).without(unwanted, [1]), 1, "MISMATCH",
                        "rank 1 recorded other parts of it than at the start, or none")
        self.expect(recorded(DP).without(lambda line: True, [1]), 2, "rank1.jsonl has no piece")

    def test_an_optimizer_of_which_no_rule_is_known(self):
        muon = {**ADAM, "type": "Muon"}
        self.golden = recorded(optimizer_of=muon)
        self.expect(recorded(TP, optimizer_of=muon), 0, "MATCH", absent=["unresolved"])
        near = recorded(TP, after_step("head", lambda value: value + 1e-4), optimizer_of=muon)
        self.expect(near, 0, "MATCH, 1 of 17 not judged", "param.head.weight")
        for how in (lambda value: value + 0.5, lambda value: math.nan):
            self.expect(recorded(TP, after_step("head", how), optimizer_of=muon), 1, "MISMATCH",
                        "param.head.weight")

    def test_a_gradient_of_roundings_moves_by_any_update(self):
        other = {"type": "Other", "rule": "other", "lr": [0.01]}

        def moved(size, gradient=1e-17, mesh=()):
            def change(run, rank, kind, name, values):
                if "norm" not in name:
                    return None
                if kind == "grad":
                    return [gradient * value for value in values]
                return [value + size * (-1) ** i * (1 + i / 9) for i, value in enumerate(start(name))] \
                    if kind == "param" and values != start(name) else None
            return recorded(mesh, change, optimizer_of=other)
        unresolved, wrong = "its gradient is 0 but for roundings", "param.layers.0.norm.weight"
        for golden_gradient, gradient, size, status, text in (
                (1e-17, 1e-17, -3e-4, 0, unresolved), (0.0, 1e-17, -3e-4, 0, unresolved),
                (1e-17, 1e-17, 5, 1, wrong), (0.0, 0.0, -3e-4, 1, wrong), (0.0, 1e-3, -3e-4, 1, "grad.layers.0.norm.weight")):
            with self.subTest(golden=golden_gradient, gradient=gradient, size=size):
                self.golden = moved(1e-4, golden_gradient)
                self.expect(moved(size, gradient, DP), status, text)

    def test_the_rule_counts_and_not_the_name_of_the_class(self):
        moved = after_step("head", lambda value: value + 1e-4)
        for settings, status, text in (({"type": "MyAdamW", "rule": "adamw"}, 1, "param.head.weight"),
                                       ({"type": "AdamW", "rule": "other"}, 0, "unresolved"),
                                       ({"type": "AdamW"}, 1, "param.head.weight")):
            of_both = {**ADAM, **settings}
            self.expect(recorded(TP, moved, optimizer_of=of_both), status, text,
                        golden=recorded(optimizer_of=of_both))
        group = {**ADAM, "rule": "adamw", "parameters": ["head.weight"]}
        self.expect(recorded(TP, optimizer_of={**ADAM, "groups": [group, group]}), 0, "MATCH")
        del group["parameters"]
        self.expect(recorded(TP, optimizer_of={**ADAM, "groups": [group]}), 2,
                    "optimizer: groups: parameters is missing")

    def test_each_group_of_parameters_has_its_rule(self):
        def moved(part):
            return after_step(part, lambda value: value + 1e-4)
        groups = [{**ADAM, "rule": "adamw", "lr": [0.01], "parameters": ["head.weight"]},
                  {**ADAM, "rule": "other", "parameters": [name for name in PARAMETERS if name != "head.weight"]}]
        both = {**ADAM, "rule": "other", "groups": groups}
        self.golden = recorded(optimizer_of=both)
        self.expect(recorded(TP, moved("head"), optimizer_of=both), 1, "param.head.weight")
        self.expect(recorded(TP, moved("norm"), optimizer_of=both), 0, "MATCH, 1 of 17 not judged")
        # The gradient of an element is within its allowance, and Adam makes as much of it as of any other.
        tiny = {**groups[0], "lr": [0.02]}
        def small(run, rank, kind, name, values):
            if "head" not in name or kind == "scalar":
                return None
            gradient = (1 if run.mesh else -1) * 4e-11
            if kind == "grad":
                return [gradient, *values[1:]]
            move = 0.02 * gradient / (abs(gradient) + 1e-8) if values != start(name) else 0
            return [start(name)[0] - move, *values[1:]]
        own_rate = {**both, "groups": [tiny, groups[1]]}
        self.golden = recorded(change=small, optimizer_of=own_rate)
        self.expect(recorded(TP, small, optimizer_of=own_rate), 0, "MATCH", absent=["not judged"])

    def test_large_buffers_and_counts_widen_no_allowance(self):
        def with_buffer(run, count=3):
            run.add_to_all("buffer", "large", [1e12, 1.0], [2])
            return run.add_to_all("opt", "step.head.weight", [count], (), dtype="int64")
        self.golden = with_buffer(recorded())
        self.expect(with_buffer(recorded(TP)), 0, "MATCH")
        change = of("grad", "norm", lambda value, run, rank: value + 1e-7)
        self.expect(with_buffer(recorded(TP, change)), 1, "grad.layers.0.norm")
        self.expect(with_buffer(recorded(TP), 4), 1, "step.head.weight")
        self.expect(recorded(TP), 0, "only the reference recorded it: buffer.large")
        self.expect(with_buffer(recorded(TP)), 0, "only this run recorded it: buffer.large",
                    golden=recorded())

    def own_steps(self, mesh=(), rule="other", rate=1.0, noise=0.0, gradient_of=None, narrow=False, shift=0.0, loss=2.0, steps=2,
                  precision="float64"):
        """Steps of w [8, 6] and b [4, 6], which all ranks hold: each element moves by lr * sin(g). Of the first update,
        every element is wrong by `noise` of it, up or down. A change of the parameters changes the gradients of later steps
        by `shift` of them. `gradient_of` changes those, by step and rank."""
        optimizer = {**ADAM, "type": "Mine", "rule": rule, "lr": [0.01] * steps}
        run = Run(mesh, steps=steps, optimizer=optimizer, version=3, precision=precision)
        for rank in range(run.world_size):
            def put(kind, name, values, step):
                shape = (8, 6) if name.endswith("w") else (4, 6)
                low = narrow and kind == "grad"
                values = [struct.unpack("f", struct.pack("f", value))[0] for value in values] if low else values
                run.add(rank, kind, name, values, shape, step, dtype="float32" if low else "float64")
                return values

            now = {name: values_of("start " + name, shape) for name, shape in (("w", (8, 6)), ("b", (4, 6)))}
            for name, values in now.items():
                put("param", name, values, 0)
            for step in range(1, steps + 1):
                run.add(rank, "scalar", "loss", [1.5 if step == 1 else loss * (1 + shift / 3)], (), step)
                for name, values in now.items():
                    gradient = [g * (1 + (shift * (-1) ** i if step > 1 else 0))
                                for i, g in enumerate(values_of(f"g{step}{name}", (len(values),)))]
                    if gradient_of:
                        gradient = gradient_of(gradient, step, rank)
                    gradient = put("grad", name, gradient, step)
                    if rule == "adamw":
                        put("opt", f"exp_avg.{name}", [0.1 * g for g in gradient], step)
                    now[name] = [value - rate * 0.01 * math.sin(g) * (1 + (noise * (-1) ** i if step == 1 else 0))
                                 for i, (value, g) in enumerate(zip(values, gradient))]
                    put("param", name, now[name], step)
        return run

    def test_what_is_computed_from_unresolved_parameters(self):
        self.golden = self.own_steps(steps=3)
        self.expect(self.own_steps(DP, steps=3), 0, "MATCH", absent=["unresolved"])
        scattered = {"mesh": DP, "noise": 0.01, "shift": 1e-4, "steps": 3}
        self.expect(self.own_steps(**scattered), 0, "MATCH", "unresolved")

        def changed(step, how):
            return lambda gradient, at, rank: how(gradient) if at == step else gradient

        def other(values):  # as where one of two addends is lost
            return [0.5 * (value + math.cos(40 * value)) for value in values]
        for how in (lambda values: [2 * value for value in values], other):
            for step in (1, 2, 3):
                wrong = self.own_steps(**scattered, gradient_of=changed(step, how))
                done = self.expect(wrong, 1, "MISMATCH")
                self.assertRegex(done.stdout, rf"(?m)^  tensor +grad\.\w .* of step {step}\b")
        self.expect(self.own_steps(**scattered, loss=4.0), 1, "MISMATCH", "loss")
        # without a parameter that is unresolved the rule is that of float64
        self.expect(self.own_steps(DP, shift=1e-4, steps=3), 1, "MISMATCH", "loss")

    def test_sums_that_are_computed_from_unresolved_parameters(self):
        def summed(run, share=0.5):
            for rank in range(run.world_size):
                for line in run.lines[rank]:
                    if run.mesh and line["kind"] == "scalar":
                        line["partial"] = {"axes": ["dp"], "op": "sum"}
                run.data[rank] = [(key, dtype, shape, [share * v for v in values] if run.mesh and shape == [] else values)
                                  for key, dtype, shape, values in run.data[rank]]
            return run
        self.golden = self.own_steps()
        self.expect(summed(self.own_steps(DP, noise=0.01)), 0, "MATCH, 4 of 12 not judged")
        self.expect(summed(self.own_steps(DP, noise=0.01, shift=1e-4)), 0, "MATCH", "unresolved")
        self.expect(summed(self.own_steps(DP, noise=0.01), 0.25), 1, "loss")

    def test_an_update_by_another_factor(self):
        self.golden = self.own_steps()
        for rate in (2, 1.5, 0.5):
            self.expect(self.own_steps(DP, rate=rate), 1, "MISMATCH", "param.", "of step 1",
                        f"moved by {rate:g} x the golden's update", "on all ranks")
        # a rank's own part of a parameter that is cut over tp
        muon = {**ADAM, "type": "Muon"}
        self.golden = recorded(optimizer_of=muon)

        def twice(values, run, rank, name):
            return [first + 2 * (value - first) for first, value in zip(start(name), values)]
        run = recorded(TP, replaced("param", "head", twice, ranks=[1]), optimizer_of=muon)
        self.expect(run, 1, "param.head.weight", "moved by 2 x the golden's update", "on rank 1 only")

    def test_states_of_gradients_that_were_recorded_below_float64(self):
        self.golden = self.own_steps(rule="adamw")
        run = self.own_steps(DP, rule="adamw", narrow=True)
        self.expect(run, 0, "MATCH, 12 of 16 not judged", "grad.w of step 1 and 3 more",
                    "it differs by roundings of float32, in which gradients of step 1 were recorded", absent=["1 x golden"])
        doubled = self.own_steps(DP, rule="adamw", narrow=True,
                                 gradient_of=lambda gradient, step, rank: [2 * g for g in gradient])
        self.expect(doubled, 1, "exp_avg.", "2 x golden")

    def with_repeats(self, move, precision="float32", count=16, kinds=("grad", "scalar"), **options):
        """A golden run and its repeats, whose tensors of these kinds are moved by move(values, repeat)."""
        folder = self.written(self.own_steps(**options))
        for k in range(1, count + 1):
            repeat = self.own_steps(**options)
            repeat.head |= {"noise": k, "precision": precision}
            repeat.data[0] = [(key, dtype, shape, move(values, k) if line["kind"] in kinds and line["step"] else values)
                              for line, (key, dtype, shape, values) in zip(repeat.lines[0], repeat.data[0])]
            repeat.write(os.path.join(folder, f"noise{k}"))
        return folder

    def test_repeats_that_have_other_inputs(self):
        def moved(values, k):  # all repeats alike
            return [math.cos(3 * i) + 1e-7 * k for i, _ in enumerate(values)]
        low = self.own_steps(DP, precision="float32")
        self.expect(low, 0, "MATCH", "16 repeats", golden=self.with_repeats(jitter(1e-6)))
        self.expect(low, 2, "the repeats of", "have other inputs than it", "they agree with each other to",
                    "away from the golden", "in 3 of 3 tensors", "outside of shardproof.float64()",
                    golden=self.with_repeats(moved))

        def moved_little(values, k):  # 3% away, and a millionth of that apart
            return [value * (1 + 0.03 * (-1) ** i + 1e-8 * k) for i, value in enumerate(values)]
        self.expect(low, 2, "have other inputs than it", golden=self.with_repeats(moved_little))

    def test_one_repeat_of_another_run(self):
        def one_far(values, k):
            return [value + (0.2 * (-1) ** i if k == 7 else 0) for i, value in enumerate(jitter(1e-6)(values, k))]
        self.expect(self.own_steps(DP, precision="float32"), 2,
                    "noise7 repeats another run than the other repeats do: its loss of step 1 lies 0.2 away from the "
                    "golden, and half of the others at most", "in 3 of 3 tensors", "record all repeats anew",
                    golden=self.with_repeats(one_far))

    def test_repeats_in_float64(self):
        """They measure what is computed from what is unresolved, in later steps too."""
        def off(size):
            return self.own_steps(DP, gradient_of=lambda gradient, step, rank: [
                g * (1 + size * (-1) ** i) for i, g in enumerate(gradient)])
        self.expect(off(1e-4), 1, "MISMATCH", "grad.w", golden=self.own_steps())
        self.golden = self.with_repeats(jitter(1e-4), "float64", kinds=("grad", "scalar", "param"))
        self.expect(off(1e-4), 0, "MATCH", "16 repeats of it in float64")
        self.expect(off(0.5), 1, "MISMATCH", "grad.w")

    def test_a_rank_below_the_precision_of_the_run(self):
        """Its dtype must not widen what it is allowed."""
        self.golden = self.with_repeats(jitter(1e-6))
        for dtype, status, texts in (("float32", 0, ["MATCH"]),
                                     ("float16", 1, ["grad.w", "it is float16 on this rank, and float32 is the narrowest "
                                                     "dtype of rank 0"])):
            run = self.own_steps(DP, precision="float32")
            for rank, narrow in enumerate(["float32", dtype]):
                run.edit(rank, run.place(rank, "grad", ""), dtype=narrow)
            self.expect(run, status, *texts)

    def test_what_a_step_or_a_part_lacks_is_said(self):
        def with_optional(mesh=(), steps=(1, 2), rows=4):
            run = self.own_steps(mesh)
            for step in steps:
                run.add_to_all("scalar", "grad_norm", [0.5], (), step=step)
            return run.add_to_all("act", "m", values_of("m", (4, 2))[:2 * rows], (rows, 2), global_shape=[4, 2])
        self.golden = with_optional()
        self.expect(with_optional(DP), 0, "MATCH", absent=["not compared"])
        self.expect(with_optional(DP, steps=[1], rows=2), 0, "MATCH",
                    "only the reference recorded it: grad_norm of step 2",
                    "because the ranks recorded a part of it: m.output of step 1 (4 of 8 elements)")

    def test_zeros_are_no_match(self):
        zeros = either(*(of(kind, part, lambda *_: 0.0) for kind, part in (("grad", ""), ("scalar", "loss"))))
        self.golden = recorded((), zeros)
        self.expect(recorded(DP, zeros), 2, "BAD INPUT",
                    "the loss and all 5 gradients are 0, so a match would show nothing of them")

    def test_a_buffer_that_one_rank_lacks(self):
        def with_buffer(run, ranks):
            for rank in ranks:
                run.add(rank, "buffer", "norm.running_mean", [0.5, 0.25], [2])
            return run
        self.golden = with_buffer(recorded(), [0])
        self.expect(with_buffer(recorded(DP), [0, 1]), 0, "MATCH")
        self.expect(with_buffer(recorded(DP), [0]), 1, "buffer.norm.running_mean",
                    "rank 1 recorded none of it, and rank 0, which has the same parameters, did")
        stages = with_buffer(recorded([("pp", 2)]), [0])  # the second stage has the head alone
        stages.without(lambda line: line["name"] == "head.weight", [0])
        stages.without(lambda line: line["name"] in PARAMETERS and line["name"] != "head.weight", [1])
        self.expect(stages, 0, "MATCH")

    def test_a_factor_of_a_buffer_is_no_count_of_tokens(self):
        def with_buffer(run, *factors):
            for rank, factor in enumerate(factors):
                run.add(rank, "buffer", "average", [0.5 * factor, 0.25 * factor], [2])
            return run
        self.golden = with_buffer(recorded(), 1)
        self.expect(with_buffer(recorded(DP), 1, 1.4), 1, "buffer.average",
                    "every element is 1.4 x golden on rank 1 only", absent=["likely", "tokens"])

    def test_a_wait_says_what_it_waits_for(self):
        """A judge whose standard output takes nothing for now, which nothing but the next words can end."""
        words = ["judge", self.written(recorded(TP)), "--golden", self.golden]
        with cli_test.StuckProgram(words, self.scratch, self.environment) as process:
            for _ in range(2):
                self.assertRegex(process.stderr.readline(), r"^shardproof: \d+ s: judging, (\d+) of \1 tensors\n$")
            process.read_terminal()
            self.assertEqual(process.wait(cli_test.LIMIT_S), 0)

    def test_one_rank_beside_one_rank_judges_no_sharding(self):
        text = "this run has one rank, as the golden has: nothing of a sharding is judged"
        self.assertIn(text, self.expect(recorded(), 0).stdout)
        self.assertNotIn(text, self.expect(recorded([("dp", 2)]), 0).stdout)

    def test_the_folder_of_out(self):
        wrong = of("grad", "norm", lambda value, run, rank: 1.5 * value, ranks=[1, 3])
        layout = [("dp", 2), ("tp", 2)]
        self.environment["GITHUB_ACTIONS"] = "true"
        self.environment["GITHUB_STEP_SUMMARY"] = summary = self.path("summary.md")
        self.expect(recorded(layout), 0)
        self.assertFalse(os.path.exists(summary))  # without --out
        for change, status in ((None, 0), (wrong, 1)):
            out, run = self.path(f"out{status}"), self.written(recorded(layout, change))
            done = self.expect(run, status, words=["--out", out])
            self.assertEqual("::error file=" in done.stdout, status == 1, done.stdout)
            results = self.results(out)
            case, = results["cases"]
            self.assertEqual((results["run"]["exit_status"], case["as_expected"], case["mesh"]["text"], case["name"]),
                             (status, status == 0, "dp=2 tp=2", run))
            self.assertEqual((case["precision"], case["backend"], case["device"]), ("float64", "", ""))  # of no world
            self.assertEqual(done.stdout.split("::error")[0].rstrip(), case["text"].rstrip())
            self.assertEqual(results["run"]["command"], f"shardproof judge {run} --golden {self.golden}")
            suite = xml.etree.ElementTree.parse(os.path.join(out, "junit.xml")).getroot()
            self.assertEqual((suite.get("tests"), suite.get("failures")), ("1", str(status)))
            self.assertFalse(os.path.exists(os.path.join(out, "replay")))
            if status:
                self.assertIn("::error file=" + os.path.join(run, "run.json"), done.stdout)
                self.assertIn("grad.layers.0.norm.weight", suite.find(".//failure").get("message"))
                self.assertRegex(self.read(summary),
                                 r"(?s)\A### shardproof: 1 of 1 as expected\n.*### shardproof: 0 of 1 as expected\n.*"
                                 r"\| grad.layers.0.norm.weight on ranks 1, 3: every element is 1.5 x golden")
                self.assertTrue(os.listdir(os.path.join(out, "tensors")))
                self.assertEqual(case["worst_tensor"], "grad.layers.0.norm.weight")
                self.assertGreater(case["worst_ratio"], 1)
            with self.subTest("the page", status=status):
                self.draw(out)
        self.expect(run, 1, words=["--out", out])
        for folder in (run, self.golden):
            self.expect(run, 2, "the same command reads this folder", words=["--out", folder, "--force"])
        other = os.path.dirname(self.write("other/notes.txt", "mine"))
        self.expect(run, 2, "holds", "which the same command reads", words=["--out", self.scratch, "--force"])
        self.expect(self.golden, 2, "are the same, and what is compared with itself is equal")
        self.expect(run, 2, "--out -: this option does not write to standard output", words=["--out", "-"])
        self.expect(run, 2, "holds files that are not of a run", "--force", words=["--out", other])
        self.expect(run, 1, words=["--out", other, "--force"])
        self.assertEqual(sorted(os.listdir(other))[-4:], ["notes.txt", "results.json", "tensors", "timeline.json"])

    def draw(self, folder):
        """The page, where this Python or the clone's has what it needs."""
        root = os.path.dirname(os.path.dirname(HERE))
        own = os.path.join(root, ".venv", "bin", "python")
        python = own if os.path.isfile(own) else sys.executable
        if subprocess.run([python, "-c", "import jinja2"], capture_output=True, check=False).returncode != 0:
            self.skipTest(f"{python} has no jinja2")
        done = subprocess.run([python, "-B", os.path.join(root, "reports", "report.py"), folder], capture_output=True,
                              text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(os.path.getsize(os.path.join(folder, "report.html")) > 1000)

    def test_a_frozen_parameter_that_moved(self):
        def frozen(run):
            return run.without(lambda line: line["kind"] == "grad" and "head" in line["name"])
        self.golden = frozen(recorded())
        self.expect(frozen(recorded(TP)), 0, "MATCH")
        moved = of("param", "head", lambda value, run, rank: value + 1e-6)
        self.expect(frozen(recorded(TP, moved)), 1, "param.head.weight")

    def test_what_the_run_says_of_itself_widens_no_allowance(self):
        run = recorded(TP, of("param", "", lambda value, run, rank: value), optimizer_of={**ADAM, "lr": [1e9]})
        for rank in range(2):
            run.edit(rank, -1, lambda value: value + 0.5)
        self.expect(run, 1, "param.head.weight")

        def with_count(run, loss):
            run.add_to_all("scalar", "tokens_seen", [1e12], ())
            return run.edit_all("scalar", "loss", lambda value: loss)
        self.golden = with_count(recorded(), 1.25)
        self.expect(with_count(recorded(TP), 1.25), 0, "MATCH")
        self.expect(with_count(recorded(TP), 1.26), 1, "loss")

    def test_a_schedule_of_the_learning_rate(self):
        """A first step at rate 0, a gradient as small as rounding: Adam amplifies its error in the second step."""
        def run_of(mesh, gradients):
            run = Run(mesh, optimizer={**ADAM, "lr": [0.0, 0.01]}, steps=2)
            for rank in range(run.world_size):
                run.add(rank, "param", "w", [0.5, 0.25], [2], step=0)
                for step, rate, gradient in ((1, 0.0, gradients), (2, 0.01, gradients)):
                    run.add(rank, "grad", "w", [1.0, gradient], [2], step=step)
                    run.add(rank, "param", "w",
                            adam_step([0.5, 0.25], [1.0, gradient], rate), [2], step=step)
            return run
        self.golden = run_of([], 1e-13)
        self.expect(run_of(DP, 3e-13), 0, "MATCH")

    def test_forward_tensors_are_demanded(self):
        def with_logprobs(run, missing=None):
            for rank in range(run.world_size):
                if rank != missing:
                    run.box(rank, "logprobs", "logprobs", values_of("lp", (4, 6)), (4, 6), 0, rank, run.world_size)
            return run
        self.golden = with_logprobs(recorded())
        self.expect(with_logprobs(recorded(DP)), 0, "MATCH")
        self.expect(with_logprobs(recorded(DP), 1), 1, "missing", "logprobs")
        self.expect(recorded(DP), 1, "missing", "logprobs")
        self.expect(with_logprobs(recorded(DP)), 0, "only this run recorded it: logprobs", golden=recorded())

    def test_a_tensor_below_float64_that_is_not_finite(self):
        run = recorded(TP).edit_all("grad", "norm", lambda value: math.nan, dtype="float32")
        self.expect(run, 1, "grad.layers.0.norm.weight", "not finite")

    def test_parts_that_overlap(self):
        run, golden, shape = Run(DP, optimizer=ADAM), Run(optimizer=ADAM), (8, 6)
        for kind, step in (("param", 0), ("grad", 1), ("param", 1)):
            whole = values_of(f"{kind}{step}", shape)
            golden.box(0, kind, "w", whole, shape, step=step)
            for rank, (first, end) in enumerate(((0, 5), (3, 8))):
                run.add(rank, kind, "w", cut(whole, shape, (first, 0), (end - first, 6)), [end - first, 6], step=step,
                        global_shape=[8, 6], offset=[first, 0])
        self.expect(run, 0, "MATCH", golden=golden)

    def test_values_of_single_microbatches_are_no_reference(self):
        self.golden = recorded()
        self.golden.add(0, "scalar", "loss", [1.5], (), microbatch=1)
        line = "MATCH, 1 of 17 not judged", "unresolved loss of step 1: the reference's pieces do not make it whole"
        self.expect(recorded(TP), 0, *line, "single microbatches: loss")
        self.expect(recorded(TP), 1, *line, words=["--no-unresolved"])

    def test_runs_that_are_not_whole(self):
        def broken(change):
            folder = self.written(recorded(TP))
            change(folder)
            return folder

        def rewrite(name, edit):
            def change(folder):
                path = pathlib.Path(folder, name)
                path.write_text(edit(path.read_text(encoding="utf-8")), encoding="utf-8")
            return change

        def line(number, **fields):
            def edit(text):
                lines = text.splitlines()
                lines[number] = json.dumps({**json.loads(lines[number]), **fields})
                return "\n".join(lines) + "\n"
            return rewrite("rank1.jsonl", edit)

        def head(**fields):
            return rewrite("run.json", lambda text: json.dumps({**json.loads(text), **fields}))

        self.expect(broken(rewrite("rank1.jsonl", lambda text: text[:len(text) // 2])), 2, "rank1.jsonl")
        self.expect(broken(rewrite("rank1.jsonl", lambda text: text.rsplit("\n", 2)[0])), 2, "without its last line")
        self.expect(broken(lambda folder: os.remove(os.path.join(folder, "rank1.jsonl"))), 2, "rank1.jsonl")
        self.expect(broken(lambda folder: os.remove(os.path.join(folder, "rank1.safetensors"))), 2,
                    "rank1.safetensors")
        self.expect(broken(lambda folder: os.truncate(os.path.join(folder, "rank0.safetensors"), 700)), 2,
                    "rank0.safetensors")
        self.expect(broken(lambda folder: os.remove(os.path.join(folder, "run.json"))), 2, "no run.json")
        self.expect(broken(line(1, offset=[5, 0])), 2, "rank1.jsonl:2", "[5, 9) in dim 0 of [8, 6]")
        self.expect(broken(line(1, shape=[4, 5])), 2, "rank1.jsonl:2", "shape")
        self.expect(broken(line(1, offset=None, global_shape=[3000000])), 2, "offset is missing")
        self.expect(broken(line(1, name="x\u001b[2J\nMATCH")), 2, "cannot be shown", absent=["\x1b"])
        self.expect(broken(rewrite("rank1.jsonl", lambda text: "[" * 100000 + "\n" + text)), 2, "rank1.jsonl:1")
        self.expect(broken(rewrite("rank1.jsonl", lambda text: text + text)), 2, "follows the last line")
        self.expect(broken(line(1, key="0")), 2, "tensors")

        def pipe(folder):
            os.remove(os.path.join(folder, "rank1.jsonl"))
            os.mkfifo(os.path.join(folder, "rank1.jsonl"))
        self.expect(broken(pipe), 2, "rank1.jsonl is a pipe, not a file")
        self.expect(broken(line(1, kind="gradient")), 2, "kind", "gradient")
        self.expect(broken(line(1, kind="hash")), 2, "digest is missing")
        self.expect(broken(line(1, kind="hash", digest="12")), 2, "digest is '12'")
        self.expect(broken(line(1, key="x")), 2, "key x")
        self.expect(broken(line(1, dtype="float32")), 2, "dtype", "float64")
        self.expect(broken(line(1, step="one")), 2, "step", "integer")
        self.expect(broken(line(1, global_shape=[1 << 40, 1 << 40])), 2, "too large")
        self.expect(broken(line(1, global_shape=[80, 60])), 1, "its global shape is [80, 60]")
        self.expect(broken(head(world_size=3)), 2, "world_size is 3")
        self.expect(broken(head(version=4)), 2, "version")
        self.expect(broken(head(steps=2, optimizer={**ADAM, "lr": [0.01, 0.01]})), 2,
                    "steps is 2, and no rank recorded a tensor of step 2")
        for lr, text in (([-0.01], "lr has -0.01; a learning rate is at least 0"),
                         ([0.01, -1], "lr has -1"), (0.01, "lr is not a list")):
            self.expect(broken(head(optimizer={**ADAM, "lr": lr})), 2, text)
        self.expect(broken(head(optimizer={"type": "AdamW"})), 2, "optimizer: lr is missing")
        self.expect(broken(head(steps=2)), 2, "lr has 1 learning rate for 2 steps; write one for each step")
        self.expect(broken(head(optimizer={**ADAM, "lr": [0.01, 0.01]})), 2, "lr has 2 learning rates for 1 step;")
        self.expect(broken(head(optimizer={**ADAM, "betas": [0.9]})), 2, "betas has 1 number; Adam has two")
        self.expect(broken(head(mesh=[])), 2, "mesh has 1 rank, and world_size is 2")
        self.expect(broken(head(batch={"rows": -4, "parts": 2})), 2, "batch: rows is -4")
        self.expect(broken(head(batch={"rows": 4, "parts": 0})), 2, "batch: parts is 0")
        self.expect(broken(head(batch={"rows": 4, "parts": 5})), 2, "batch: parts is 5; it must be an integer from 1 to 4")
        self.expect(broken(head(noise=3)), 2, "noise is 3, and a run of 2 ranks is not a repeat of a run of one rank")
        self.expect(broken(head(rows=0)), 2, "rows is 0")
        self.expect(broken(head(rows=3)), 2, "the number of rows (rows=)", "is 3", "it is all")
        for places in ("tp", [[0]], [[1], [0]], [{"tp": 0}, {"tp": 1}], [[0], [1], [2]], [[0, 0], [1, 0]]):
            self.expect(broken(head(coordinates=places)), 2, "coordinates")
        self.expect(broken(head(coordinates=[[0], [1]])), 0, "MATCH")
        self.expect(broken(line(1, partial={"axes": [], "op": "sum"})), 2, "rank1.jsonl:2: partial: axes is empty")
        self.expect(broken(line(1, partial={"axes": ["tp", "tp"], "op": "sum"})), 2, "axes is [tp, tp], and an axis is")
        self.expect(broken(line(1, partial={"axes": ["zz"], "op": "sum"})), 2, "rank1.jsonl:2: partial: axes has 'zz'",
                    "the axes of the mesh are tp=2")
        self.expect(broken(head(mesh="tp")), 2, "mesh", "list")
        self.expect(broken(rewrite("run.json", lambda text: text[:-4])), 2, "run.json", "JSON")

    def test_arguments(self):
        run = self.written(recorded([("dp", 2)]))
        for words, *texts in (([self.golden], "--golden"), ([self.scratch], "needs a result file"),
                              ([self.golden, "file.safetensors", "--golden", self.golden], "takes no result file"),
                              ([run, "--golden", self.golden, "--no-cache"],
                               "--no-cache computes the golden of a case anew"),
                              ([run, "--golden", self.golden, "--force"], "--out, which is not given"),
                              ([self.scratch, "x", "--out", "out"],
                               "--out and --force are of recorded runs")):
            self.says(self.run_to_end("judge", *words, status=2), *texts)
        for flag, value in (("--precision", "float32"), ("--seed", "1"), ("--steps", "2")):
            self.expect(self.golden, 2, f"{flag} changes the case, and",
                        f"is a recorded run, which has no case; leave {flag} out", words=[flag, value])
        self.expect(self.scratch, 2, "not a recorded run")


if __name__ == "__main__":
    cli_test.main()
