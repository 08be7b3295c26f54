#!/usr/bin/env python3
"""`logprobs A B` with files of routes beside those of logprobs: tokens that were routed elsewhere, noise alone, replays that are
off, and bad input. SEED=n draws other batches.

Usage: routes_test.py PROGRAM [unittest arguments]
"""
import json
import os
import pathlib
import random
import struct

import cli_test
from logprobs_test import NOISY, SEED, Batch, write_file

LAYERS, EXPERTS, CHOSEN = 3, 16, 2


def write_routes(path, routes, layers=None, code="I32"):
    """[layers][rows][positions][K]"""
    flat = [expert for layer in routes for row in layer for token in row for expert in token]
    shape = [len(routes), len(routes[0]), len(routes[0][0]), len(routes[0][0][0])]
    raw = struct.pack(f"<{len(flat)}{'i' if code == 'I32' else 'f'}", *flat)
    metadata = None if layers is None else {"layers": layers}
    made = cli_test.case_maker.safetensors({"routes": (code, shape, raw)}, metadata=metadata)
    pathlib.Path(path).write_bytes(made)


def drawn(draw, batch):
    """The experts of each token in any order; none in padding."""
    return [[[draw.sample(range(EXPERTS), CHOSEN) if t < batch.lengths[b] else [-1] * CHOSEN
              for t in range(batch.length)] for b in range(batch.rows)] for _ in range(LAYERS)]


def copied(routes):
    return [[[list(token) for token in row] for row in layer] for layer in routes]


def flipped(draw, routes, places):
    """At each (row, position) another expert in one of the layers, and in all later ones."""
    out = copied(routes)
    for row, position in places:
        for layer in range(draw.randrange(LAYERS), LAYERS):
            ids = out[layer][row][position]
            ids[draw.randrange(CHOSEN)] = draw.choice([one for one in range(EXPERTS) if one not in ids])
    return out


def differing(a, b):
    """The positions that differ: {(row, position): the lowest layer}, by plain loops."""
    places = {}
    for layer in reversed(range(LAYERS)):
        for row in range(len(a[layer])):
            for position in range(len(a[layer][row])):
                if sorted(a[layer][row][position]) != sorted(b[layer][row][position]):
                    places[row, position] = layer
    return places


class RoutesTest(cli_test.CommandTest):
    def compared(self, batch, routes_a, routes_b, status=0, b=None, layers=(None, None)):
        """(what is said of two scores of a batch, or of one and `b`; the finding); the status must be this one."""
        a = batch.score(NOISY)
        b = b or batch.score(NOISY)
        folder = os.path.join(self.scratch, self.id().rsplit(".", 1)[-1])
        os.makedirs(folder, exist_ok=True)
        paths = [os.path.join(folder, f"{name}.safetensors") for name in "ab"]
        for path, values, routes, numbers in zip(paths, (a, b), (routes_a, routes_b), layers):
            write_file(path, batch.tensors(values, NOISY))
            if routes is not None:
                write_routes(path.replace(".safetensors", ".routes.safetensors"), routes, numbers)
        findings = os.path.join(folder, "findings.json")
        done = self.run_to_end("logprobs", *paths, "--json", findings, "--force", status=status)
        return (done.stderr, None) if status == 2 else (done.stdout, json.loads(self.read(findings))[0])

    def draws(self, count):
        return [random.Random(1000 * SEED + i) for i in range(count)]

    def one_draw(self, **options):
        """A draw, a batch and its routes."""
        draw = self.draws(1)[0]
        batch = Batch(draw, **options)
        return draw, batch, drawn(draw, batch)

    def places(self, draw, batch, share):
        return [(b, t) for b in range(batch.rows) for t in range(1, batch.lengths[b] - 1) if draw.random() < share]

    def test_noise_with_equal_routes(self):
        for draw in self.draws(4):
            batch = Batch(draw, padded=True, packed=draw.random() < 0.5)
            routes = drawn(draw, batch)
            again = [[[draw.sample(token, CHOSEN) for token in row] for row in layer] for layer in routes]
            text, finding = self.compared(batch, routes, again)
            self.assertIn(f"all {sum(batch.lengths)} positions have equal routes in {LAYERS} layers", text)
            self.assertEqual(finding["routes"]["elsewhere"], 0)
            self.assertNotIn("split", finding["routes"])

    def test_positions_that_do_not_count(self):
        """Padding is routed anywhere."""
        draw, batch, routes = self.one_draw(padded=True)
        others = copied(routes)
        for each in (routes, others):
            for layer in each:
                for row, length in zip(layer, batch.lengths):
                    row[length:] = [draw.sample(range(EXPERTS), CHOSEN) for _ in row[length:]]
        self.assertLess(min(batch.lengths), batch.length)
        _, finding = self.compared(batch, routes, others)
        self.assertEqual((finding["routes"]["positions"], finding["routes"]["elsewhere"]), (sum(batch.lengths), 0))

    def test_other_routes_with_noise_alone_are_no_claim(self):
        for draw in self.draws(6):
            batch = Batch(draw)
            routes = drawn(draw, batch)
            others = flipped(draw, routes, self.places(draw, batch, draw.choice([0.02, 0.3])))
            _, finding = self.compared(batch, routes, others)
            self.assertEqual((finding["verdict"], finding["causes"]), ("noise", []))
            self.assertEqual(finding["routes"]["elsewhere"], len(differing(routes, others)))

    def test_tokens_that_were_routed_elsewhere(self):
        """The tokens scored from these positions have other logits, and no other tokens."""
        for draw in self.draws(6):
            batch = Batch(draw, padded=draw.random() < 0.5)
            routes = drawn(draw, batch)
            others = flipped(draw, routes, self.places(draw, batch, draw.choice([0.05, 0.3])))
            places = differing(routes, others)
            b = batch.score(NOISY, change=lambda row, t: 1.0 if (row, t - 1) in places else 0)
            text, finding = self.compared(batch, routes, others, 1, b)
            self.assertEqual(finding["causes"][0]["cause"], "routes", text)
            (row, position), layer = min(places.items())
            first = finding["routes"]["first"]
            self.assertEqual((first["row"], first["position"], first["layer"]), (row, position, layer))
            self.assertEqual((first["a"], first["b"]),
                             (sorted(routes[layer][row][position]), sorted(others[layer][row][position])))
            self.assertIn(f"{len(places)} of {sum(batch.lengths)} positions were routed elsewhere", text)
            split = finding["routes"]["split"]
            self.assertEqual(split["elsewhere"]["tokens"],
                             sum((row, t - 1) in places for row in range(batch.rows) for t in range(1, batch.lengths[row])))
            self.assertEqual(sum(one["tokens"] for one in split.values()), finding["tokens"])
            self.assertGreater(split["elsewhere"]["mean"], 4 * split["equal"]["mean"])

    def test_all_later_tokens_of_a_sequence(self):
        """A route that differs moves what attention reads of it, so that the later tokens of its segment differ."""
        for draw in self.draws(4):
            batch = Batch(draw, packed=draw.random() < 0.5)
            routes = drawn(draw, batch)
            starts = {}
            for row in range(0, batch.rows, 2):
                starts[row, draw.randrange(1, batch.length // 2)] = True
            others = flipped(draw, routes, starts)

            def is_behind(row, t):
                return any(row == r and p < t and batch.segments[row][p] == batch.segments[row][t] for r, p in starts)
            b = batch.score(NOISY, change=lambda row, t: 1.0 if is_behind(row, t) else 0)
            text, finding = self.compared(batch, routes, others, 1, b)
            self.assertIn("routes", [one["cause"] for one in finding["causes"]], text)
            split = finding["routes"]["split"]
            self.assertEqual(split["elsewhere"]["tokens"] + split["behind"]["tokens"],
                             sum(is_behind(row, t) for row in range(batch.rows) for t in range(batch.length)
                                 if not batch.begins(row, t)))
            self.assertTrue(split["equal"]["is_noise"])

    def test_other_weights_are_not_the_routes(self):
        """All tokens differ, and few were routed elsewhere."""
        for draw in self.draws(4):
            batch = Batch(draw)
            routes = drawn(draw, batch)
            others = flipped(draw, routes, self.places(draw, batch, 0.05))
            b = batch.score(NOISY, change=lambda row, t: 0.8)
            text, finding = self.compared(batch, routes, others, 1, b)
            self.assertEqual(finding["causes"], [], text)
            self.assertNotIn("other routes alone", text)
            self.assertFalse(finding["routes"]["split"]["equal"]["is_noise"])

    def test_replays_that_are_off(self):
        _, batch, routes = self.one_draw()
        rows, length = batch.rows, batch.length
        turned = [[[layer[t * rows + b] for t in range(length)] for b in range(rows)] for layer in
                  [[row[t] for row in layer for t in range(length)] for layer in routes]]
        for other, rule in (([[row[1:] + row[:1] for row in layer] for layer in routes], "B at position t has A's routes of t + 1"),
                            (routes[1:] + routes[:1], "each router of B has the routes of A's router 1 after it"),
                            (turned, "sequence first")):
            _, finding = self.compared(batch, routes, other)
            self.assertIn(rule, finding["routes"]["rule"])

    def test_numbers_of_layers(self):
        _, batch, routes = self.one_draw()
        others = copied(routes)
        others[1][2][5] = [(one + 1) % EXPERTS for one in others[1][2][5]]
        text, finding = self.compared(batch, routes, others, layers=("3,4,7", "3,4,7"))
        self.assertEqual((finding["routes"]["in_layers"], finding["routes"]["first"]["layer"]), ([4], 4))
        self.assertIn("in 1 of 3 layers (4)", text)

    def test_a_side_without_routes(self):
        _, batch, routes = self.one_draw()
        text, _ = self.compared(batch, routes, None)
        self.assertIn("A alone has routes", text)

    def test_bad_routes(self):
        _, batch, routes = self.one_draw()
        for others, layers, message in (
                ([layer[1:] for layer in routes], None, "routes has the shape"),
                (routes[1:], None, "record the routes of the same layers"),
                (routes, "1,2", "metadata layers is '1,2', and routes has 3 layers"),
                (routes, "1,1,2", "metadata layers is '1,1,2'"),
                (routes, "1,2,x", "metadata layers is '1,2,x'"),
                (routes, "1,2,3", "record the routes of the same layers")):
            text, _ = self.compared(batch, routes, others, 2, layers=(None, layers))
            self.assertIn(message, text)
        for chosen, message in (([0, -2], "have the expert -2"), ([3, 3], "have the expert 3 twice")):
            others = copied(routes)
            others[2][1][5][:2] = chosen
            text, _ = self.compared(batch, routes, others, 2)
            self.assertIn("routes of layer 2, row 1, position 5 " + message, text)
        path = os.path.join(self.scratch, "test_bad_routes", "b.routes.safetensors")
        write_routes(path, [[[[0.5] * CHOSEN] * batch.length] * batch.rows] * LAYERS, code="F32")
        done = self.run_to_end("logprobs", path.replace("b.routes", "a"), path.replace(".routes", ""), status=2)
        self.assertIn("routes is float32", done.stderr)

    def test_folders(self):
        _, batch, routes = self.one_draw()
        for name in "ab":
            os.makedirs(os.path.join(self.scratch, "folders", name), exist_ok=True)
            write_file(os.path.join(self.scratch, "folders", name, "x.safetensors"), batch.tensors(batch.score(NOISY), NOISY))
            write_routes(os.path.join(self.scratch, "folders", name, "x.routes.safetensors"), routes)
        done = self.run_to_end("logprobs", *(os.path.join(self.scratch, "folders", name) for name in "ab"), status=0)
        self.assertEqual(done.stdout.count("NOISE"), 1)
        self.assertIn("have equal routes", done.stdout)


if __name__ == "__main__":
    cli_test.main()
