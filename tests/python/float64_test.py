import io
import itertools
import tempfile
import unittest
from pathlib import Path

import ranks  # noqa: F401  (finds the package)
import torch
from torch.utils.checkpoint import checkpoint

import shardproof


class Rounding(torch.nn.Module):
    """A model that asks for float32 as common ones do: a table, a norm, a softmax."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", 1.0 / 10000 ** (torch.arange(0, 4, dtype=torch.float32) / 4))
        self.weight = torch.nn.Parameter(torch.linspace(0.1, 1.3, 4))

    def forward(self, x):
        x = x.float() * torch.rsqrt(x.to(torch.float32).square().mean(-1, keepdim=True) + 1e-6)
        return torch.softmax(x * self.table * self.weight, -1, dtype=torch.float32).to(x.dtype)


class Squared(torch.autograd.Function):
    """A backward function that asks for float32."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    def backward(ctx, gradient):
        return (gradient.float() * 2 * ctx.saved_tensors[0].float()).to(gradient.dtype)


def by_hand(x):
    """The same function in float64 alone."""
    table = 1.0 / 10000 ** (torch.arange(0, 4, dtype=torch.float64) / 4)
    weight = torch.linspace(0.1, 1.3, 4, dtype=torch.float64)
    x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
    return torch.softmax(x * table * weight, -1)


class Float64Test(unittest.TestCase):
    def test_a_model_that_asks_for_float32_computes_in_float64(self):
        x = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4)
        with shardproof.float64() as mode:
            result = Rounding()(x)
        self.assertEqual(result.dtype, torch.float64)
        torch.testing.assert_close(result, by_hand(x), rtol=0, atol=1e-15)
        self.assertLessEqual({"torch.arange", "Tensor.float", "Tensor.to", "torch.softmax"}, set(mode.lifted))
        self.assertGreater(float((Rounding().double()(x) - by_hand(x)).detach().abs().max()), 1e-9)

    def test_other_dtypes_and_views_of_bytes_are_left_alone(self):
        with shardproof.float64():
            self.assertEqual(torch.zeros(2, dtype=torch.bfloat16).dtype, torch.bfloat16)
            self.assertEqual(torch.ones(2, dtype=torch.int32).view(torch.float32).dtype, torch.float32)
            self.assertEqual(torch.frombuffer(bytearray(8), dtype=torch.float32).shape, (2,))
            self.assertEqual(torch.zeros(2, dtype=torch.bfloat16).type(torch.float32).dtype, torch.float64)
            self.assertEqual(torch.zeros(2, dtype=torch.int64).type(torch.int32).dtype, torch.int32)
            self.assertEqual(torch.zeros(2).type(), "torch.DoubleTensor")

    def test_saved_tensors_are_restored_as_they_were(self):
        saved = io.BytesIO()
        torch.save({"x": torch.arange(5, dtype=torch.float32)}, saved)
        saved.seek(0)
        with shardproof.float64():
            restored = torch.load(saved)["x"]
        self.assertEqual((restored.dtype, restored.tolist()), (torch.float32, [0.0, 1.0, 2.0, 3.0, 4.0]))

    def test_a_scaler_keeps_what_its_kernels_take(self):
        with shardproof.float64():
            weight = torch.nn.Parameter(torch.ones(3))
            optimizer = torch.optim.SGD([weight], lr=0.5)
            scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
            scaler.scale(weight.sum()).backward()
            scaler.step(optimizer)
        self.assertEqual(weight.dtype, torch.float64)
        self.assertEqual(weight.tolist(), [0.5] * 3)

    def test_the_default_dtype_returns_to_what_it_was(self):
        with self.assertRaises(ZeroDivisionError), shardproof.float64():
            self.assertEqual(torch.zeros(1).dtype, torch.float64)
            1 / 0
        self.assertEqual(torch.zeros(1).dtype, torch.float32)

    def test_as_a_decorator(self):
        @shardproof.float64()
        def made(size):
            return torch.zeros(size, dtype=torch.float32)

        self.assertEqual((made(2).dtype, made(3).shape), (torch.float64, (3,)))
        self.assertEqual(torch.zeros(1).dtype, torch.float32)

    def test_what_a_backward_pass_calls_computes_in_float64(self):
        """The gradients are those of the same function in float64 alone, to the bit."""
        passes = {"Tensor.backward": lambda y, x: y.backward(),
                  "autograd.backward": lambda y, x: torch.autograd.backward([y]),
                  "autograd.grad": lambda y, x: setattr(x, "grad", *torch.autograd.grad(y, x))}
        calls = {"checkpoint": lambda x: checkpoint(Rounding(), x, use_reentrant=False),
                 "reentrant checkpoint": lambda x: checkpoint(Rounding(), x, use_reentrant=True),
                 "function": Squared.apply}
        for (kind, call), (name, backward) in itertools.product(calls.items(), passes.items()):
            if (kind, name) == ("reentrant checkpoint", "autograd.grad"):
                continue  # torch refuses it
            x, right = (torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4).requires_grad_() for _ in range(2))
            with self.subTest(kind=kind, by=name):
                with shardproof.float64():
                    backward(call(x).square().sum(), x)
                (right.square() if kind == "function" else by_hand(right)).square().sum().backward()
                torch.testing.assert_close(x.grad, right.grad, rtol=0, atol=0)

    def test_the_mode_stays_on_after_a_backward_pass_that_raises(self):
        with shardproof.float64():
            x = torch.ones(2, requires_grad=True)
            x.register_hook(lambda _: 1 / 0)
            for _ in range(2):
                with self.assertRaises(ZeroDivisionError):
                    x.sum().backward()
                self.assertEqual(torch.zeros(1, dtype=torch.float32).dtype, torch.float64)
        self.assertEqual(torch.zeros(1, dtype=torch.float32).dtype, torch.float32)

    def test_a_class_of_tensors_keeps_its_own_backward(self):
        class Own(torch.Tensor):
            seen = []

            @classmethod
            def __torch_function__(cls, function, types, args=(), kwargs=None):
                cls.seen.append(getattr(function, "__name__", ""))
                return super().__torch_function__(function, types, args, kwargs or {})
        with shardproof.float64():
            torch.ones(2, requires_grad=True).as_subclass(Own).sum().backward()
        self.assertIn("backward", Own.seen)

    def test_a_recorded_run_lists_what_was_lifted(self):
        with tempfile.TemporaryDirectory() as folder, shardproof.float64():
            model = Rounding()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            with shardproof.record(model, optimizer, out=folder):
                model(torch.ones(2, 4)).square().sum().backward()
                optimizer.step()
            header = (Path(folder) / "run.json").read_text()
        self.assertIn('"Tensor.float"', header)
        self.assertIn('"precision": "float64"', header)


if __name__ == "__main__":
    unittest.main()
