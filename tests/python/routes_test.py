"""shardproof.routes: what routers chose, in the file that `shardproof logprobs` reads beside one of logprobs."""

import tempfile
import unittest
from pathlib import Path

import ranks  # noqa: F401 (finds the package)
import shardproof
import torch
from shardproof.safetensors_file import Reader
from torch import nn
from torch.utils.checkpoint import checkpoint

ROWS, LENGTH, WIDTH, EXPERTS, CHOSEN = 2, 5, 8, 6, 2


class Router(nn.Module):
    """Its output has the form of transformers' or, with a mask, of Megatron-core's routers."""

    def __init__(self, is_mask):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(EXPERTS, WIDTH))
        self.is_mask = is_mask

    def forward(self, x):
        logits = x.reshape(-1, WIDTH) @ self.weight.T
        weights, ids = logits.softmax(-1).topk(CHOSEN)
        self.ids = ids
        if self.is_mask:
            return logits, torch.zeros_like(logits, dtype=torch.bool).scatter(1, ids, True)
        return logits, weights, ids


class Block(nn.Module):
    def __init__(self, is_mask):
        super().__init__()
        self.gate = Router(is_mask)

    def forward(self, x):
        return x + self.gate(x)[0].sum(-1).reshape(*x.shape[:2], 1)


class Model(nn.Module):
    """Layer 0 has no router."""

    def __init__(self, is_mask=False, sequence_first=False, is_checkpointed=False):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH), Block(is_mask), Block(is_mask)])
        self.sequence_first, self.is_checkpointed = sequence_first, is_checkpointed

    def forward(self, x):
        x = x.transpose(0, 1) if self.sequence_first else x
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.is_checkpointed else layer(x)
        return x


class RoutesTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(1)
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def chosen(self, model, x):
        """What the routers chose of each row, sorted, by one forward pass for each row alone."""
        out = torch.empty(2, len(x), LENGTH, CHOSEN, dtype=torch.int32)
        for row in range(len(x)):
            model(x[row:row + 1])
            for layer in (1, 2):
                out[layer - 1, row] = model.layers[layer].gate.ids.sort(-1).values
        return out

    def test_ids_masks_and_the_order_of_the_sequence(self):
        for is_mask in (False, True):
            for sequence_first in (False, True):
                with self.subTest(is_mask=is_mask, sequence_first=sequence_first):
                    model, x = Model(is_mask, sequence_first), torch.randn(ROWS, LENGTH, WIDTH)
                    with shardproof.routes(model, "*.gate", rows=ROWS, sequence_first=sequence_first) as routes:
                        model(x)
                    torch.testing.assert_close(routes.tensor().sort(-1).values, self.chosen(model, x))

    def test_microbatches_are_rows(self):
        model, x = Model(), torch.randn(2 * ROWS, LENGTH, WIDTH)
        with shardproof.routes(model, "*.gate", rows=ROWS) as routes:
            model(x[:ROWS])
            model(x[ROWS:])
        model(x)  # which is not watched
        torch.testing.assert_close(routes.tensor().sort(-1).values, self.chosen(model, x))

    def test_a_recomputation_is_no_forward_pass(self):
        model, x = Model(is_checkpointed=True), torch.randn(ROWS, LENGTH, WIDTH)
        with shardproof.routes(model, "*.gate", rows=ROWS) as routes:
            model(x).sum().backward()
        self.assertEqual(list(routes.tensor().shape), [2, ROWS, LENGTH, CHOSEN])

    def test_tokens_with_fewer_experts(self):
        mask = torch.tensor([[True, False, True, False], [False, False, False, True], [False] * 4])
        from shardproof.expert_routes import ids_in
        self.assertEqual(ids_in((None, mask)).tolist(), [[0, 2], [3, -1], [-1, -1]])

    def test_the_file(self):
        model = Model()
        with shardproof.routes(model, "*.gate", rows=ROWS) as routes:
            model(torch.randn(ROWS, LENGTH, WIDTH))
        path = routes.save(self.folder / "train.safetensors")
        self.assertEqual(path, self.folder / "train.routes.safetensors")
        reader = Reader(path)
        self.assertTrue(torch.equal(reader.tensor("routes"), routes.tensor()))
        self.assertEqual(reader._header["__metadata__"], {"layers": "1,2"})

    def test_what_is_wrong_is_said(self):
        model, x = Model(), torch.randn(ROWS, LENGTH, WIDTH)
        for routers, options, words in (
                ("*.router", {}, 'routers: none of the 6 names of the model fits "\\*.router". Use \\* for any'),
                (["*.gate", "*.router"], {}, 'routers: none of .* fits "\\*.router"'),
                ([], {}, "^No pattern of routers is given"),
                (3, {}, "^routers is 3. Name the routers"),
                ("*.gate", {"rows": 0}, "^rows is 0. Give the number of rows"),
                ("*.gate", {"rows": "2"}, "^rows is '2'")):
            with self.subTest(words), self.assertRaisesRegex(shardproof.Error, words):
                shardproof.routes(model, routers, **{"rows": ROWS, **options})
        with self.assertRaisesRegex(shardproof.Error, "The model is a list"):
            shardproof.routes([model], "*.gate", rows=ROWS)
        for ids, words in ((lambda _: None, "NoneType"), (lambda output: output[2][0], "torch.int64 \\[2\\]"),
                           (lambda output: output[1], "torch.float32 \\[10, 2\\]")):
            with self.assertRaisesRegex(shardproof.Error, f'ids= gives {words} of "layers.1.gate". Let it give a tensor of integers'), \
                    shardproof.routes(model, "*.gate", rows=ROWS, ids=ids):
                model(x)
        with shardproof.routes(model, "*.gate", rows=ROWS) as routes:
            model(x)
        with self.assertRaisesRegex(shardproof.Error, 'There is no folder ".*none" for "train.routes.safetensors"'):
            routes.save(self.folder / "none/train.safetensors")
        with self.assertRaisesRegex(shardproof.Error, "rows=3"), shardproof.routes(model, "*.gate", rows=3):
            model(x)
        with shardproof.routes(model, "*.gate", rows=ROWS) as routes:
            model.layers[0](x)
        with self.assertRaisesRegex(shardproof.Error, 'The router "layers.1.gate" was not called'):
            routes.tensor()
        with self.assertRaisesRegex(shardproof.Error, "no tensor of integers"), \
                shardproof.routes(model, "layers.0", rows=ROWS):
            model(x)


if __name__ == "__main__":
    unittest.main()
