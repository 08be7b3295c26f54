#!/usr/bin/env python3
"""Steps of Muon in recorded runs that are written here by hand: of ten shapes on three layouts, an update that is wrong by 0.4
of itself is a mismatch, and one that roundings have moved by 0.1 never is.

Usage: recorded_muon_test.py PROGRAM [unittest arguments]
"""
import math
import random

import cli_test
import recorded_test
from said import SaidTest

SHAPES = ((8, 8), (8, 12), (12, 8), (4, 16), (16, 4), (12, 12), (16, 8), (8, 20), (20, 8), (24, 12))
LAYOUTS = (("replicated", 2), ("rows", 2), ("columns", 4))
RULE = {"state": "momentum_buffer", "momentum": 0.95, "nesterov": True, "average": True,
        "coefficients": [3.4445, -4.775, 2.0315], "iterations": 5, "blocks": []}
RATE, DECAY = 0.05, 0.1


def product(a, b):
    columns = list(zip(*b))
    return [[math.fsum(x * y for x, y in zip(row, column)) for column in columns] for row in a]


def combined(*parts):
    """factor * matrix + .."""
    return [[sum(factor * matrix[i][j] for factor, matrix in parts) for j in range(len(parts[0][1][0]))]
            for i in range(len(parts[0][1]))]


def norm(matrix):
    return math.sqrt(math.fsum(value * value for row in matrix for value in row))


def orthogonal(matrix):
    """As Muon's authors have written it, on plain lists."""
    is_tall = len(matrix) > len(matrix[0])
    x = [list(row) for row in zip(*matrix)] if is_tall else matrix
    size = norm(x)
    x = [[value / size for value in row] for row in x]
    a, b, c = RULE["coefficients"]
    for _ in range(RULE["iterations"]):
        gram = product(x, list(zip(*x)))
        x = combined((a, x), (1, product(combined((b, gram), (c, product(gram, gram))), x)))
    return [list(row) for row in zip(*x)] if is_tall else x


def in_blocks(matrix, blocks):
    done, first = [], 0
    for rows in blocks or [len(matrix)]:
        done += orthogonal(matrix[first:first + rows])
        first += rows
    return done


def drawn(name, shape, scale=1.0):
    draw = random.Random(name)
    return [[draw.gauss(0, scale) for _ in range(shape[1])] for _ in range(shape[0])]


def flat(matrix):
    return [value for row in matrix for value in row]


class Step:
    """One step of Muon of a matrix. `moved` is what is added to the update, in units of its size."""

    def __init__(self, shape, blocks=(), moved=0.0, made=None, rate=RATE, decay=DECAY):
        self.shape = shape
        self.start, self.gradient = drawn("start", shape, 0.3), drawn("gradient", shape)
        self.state = combined((1 - RULE["momentum"], self.gradient))
        direction = combined((1 - RULE["momentum"], self.gradient), (RULE["momentum"], self.state))
        update = in_blocks(direction, blocks) if made is None else made(direction)
        other = drawn("noise", shape)
        update = combined((1, update), (moved * norm(update) / norm(other), other))
        self.end = combined((1 - RATE * decay, self.start), (-rate, update))

    def run(self, layout, ranks, blocks=()):
        head = {"version": 3, "optimizer": {"type": "Muon", "rule": "other", "lr": [RATE], "weight_decay": DECAY},
                "matrices": [{**RULE, "blocks": list(blocks), "parameters": ["w"]}]}
        run = recorded_test.Run([("tp", ranks)] if ranks > 1 else [], **head)
        dim = {"rows": 0, "columns": 1}.get(layout)
        for rank in range(ranks):
            cut = {"dim": dim, "part": rank, "parts": ranks} if dim is not None else {}
            for kind, name, values, step in (("param", "w", self.start, 0), ("grad", "w", self.gradient, 1),
                                             ("opt", "momentum_buffer.w", self.state, 1), ("param", "w", self.end, 1)):
                run.box(rank, kind, name, flat(values), self.shape, step=step, **cut)
        return run


class RecordedMuonTest(recorded_test.JudgedTest, SaidTest):
    def judged(self, golden, step, layout, ranks, blocks=()):
        done = self.judged_pair(golden.run("", 1, blocks), step.run(layout, ranks, blocks), status=None)
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    def test_ten_shapes_on_three_layouts(self):
        caught = {moved: 0 for moved in (0.0, 0.1, 0.4)}
        for shape in SHAPES:
            golden = Step(shape)
            for layout, ranks in LAYOUTS:
                for moved in caught:
                    status, text = self.judged(golden, Step(shape, moved=moved), layout, ranks)
                    self.assertIn(status, (0, 1, 4), text)
                    self.assertIn("of step 1" if status == 1 else "", text)
                    caught[moved] += status == 1
        self.assertEqual(caught, {0.0: 0, 0.1: 0, 0.4: 30})

    def test_another_way_is_named_where_the_update_tells(self):
        shape, blocks = (16, 12), (8, 4, 4)
        golden = Step(shape, blocks)
        for made, layout, ranks, words in (
                (lambda m: orthogonal(m[:8]) + orthogonal(m[8:]), "rows", 2, None),
                (lambda m: orthogonal(m[:4]) + orthogonal(m[4:8]) + orthogonal(m[8:12]) + orthogonal(m[12:]), "rows", 4,
                 "the rank makes its own part orthogonal alone, where blocks of 8, 4, 4 rows belong, each for itself"),
                (orthogonal, "rows", 2, "the whole matrix is made orthogonal at once, where blocks of 8, 4, 4 rows belong"),
                (orthogonal, "replicated", 2, "the whole matrix is made orthogonal at once"),
                (lambda m: combined((3 / norm(m), m)), "columns", 2, "it is not made orthogonal")):
            text = self.expect(self.judged(golden, Step(shape, blocks, made=made), layout, ranks, blocks), 1)
            self.says(text, words or "the rank makes its own part orthogonal alone", "param.w")

    def test_a_rate_is_named(self):
        golden = Step((12, 12))
        for moved in (0.0, 0.1):
            self.expect(self.judged(golden, Step((12, 12), moved=moved, rate=2 * RATE), "rows", 2), 1,
                        "moved by 2 x the golden's update")

    def test_a_decay_and_a_rate_of_an_update_without_roundings(self):
        golden = Step((12, 12))
        self.assertEqual(self.judged(golden, Step((12, 12)), "rows", 2)[0], 0)
        for step, words in ((Step((12, 12), decay=0.0), "another weight decay"),
                            (Step((12, 12), decay=0.11), "another weight decay"),
                            (Step((12, 12), rate=1.05 * RATE), "moved by 1.05 x the golden's update")):
            self.expect(self.judged(golden, step, "rows", 2), 1, words)

    def test_a_golden_that_is_not_as_declared_is_no_ground(self):
        """The declaration is wrong there, and nothing is said of the run."""
        golden = Step((16, 12))
        status, text = self.judged(golden, Step((16, 12), moved=0.1), "rows", 2, (8, 4, 4))
        self.assertNotEqual(status, 1, text)

    def test_matrices_of_a_header(self):
        golden, run = Step((8, 8)).run("", 1), Step((8, 8)).run("", 1)
        for change, words in (({"coefficients": [1.0]}, "coefficients has 1 number, and an iteration has 3"),
                              ({"iterations": 0}, "iterations"), ({"nesterov": None}, "nesterov")):
            run.head["matrices"] = [{**RULE, "parameters": ["w"], **change}]
            self.assertIn(words, self.judged_pair(golden, run, status=2).stderr)


if __name__ == "__main__":
    cli_test.main()
