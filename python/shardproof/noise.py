"""Repeats of a one-rank run whose roundings differ: how far they scatter is how far a correct sharded run may be off.

A repeat computes in the run's own precision. The output of each module, its gradient, and each parameter's gradient
move by at most half a gap between neighboring numbers (Monte Carlo arithmetic: Parker, UCLA CSD-970002). For the
optimizer, elements of a gradient that are smaller than its error also move by that error, because Adam follows their
sign. golden/perturbation.h does the same with the cases of the C++ program.
"""

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from . import names, run_folder, safetensors_file
from .error import Error
from .piece import Piece
from .sources.dtensor import local_of

MOST = 1024
ENOUGH = 16  # the judge demands as many (sim/case/record/magnitude.h)


class Noise:
    """Moves the values of the repeat with the number `repeat`. `golden` is the folder of the run that it repeats."""

    def __init__(self, models: Sequence[torch.nn.Module], repeat: int, golden: Path):
        self._draws = torch.Generator().manual_seed(repeat)
        self._gradients = Gradients(golden)
        self._handles = [module.register_forward_hook(self._on_output) for module in modules_of(models)]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def move(self, tensor: torch.Tensor) -> None:
        """Moves each element of a local tensor by a rounding, in place; 0 stays 0."""
        with torch.no_grad():
            factor = self._uniform(tensor).mul_(torch.finfo(tensor.dtype).eps / 2).add_(1)
            tensor.copy_(factor.mul_(tensor))

    def doubt(self, name: str, step: int, piece: Piece) -> None:
        """Moves the elements of a gradient that are smaller than its distance from the golden's, by up to that."""
        golden = self._gradients.find(name, step, piece)
        if golden is None or golden.shape != piece.tensor.shape or not golden.numel():
            return
        with torch.no_grad():
            own = piece.tensor.detach().double()
            error = (own - golden.to(own)).abs().max()
            if error.isfinite():
                own += torch.where(own.abs() < error, self._uniform(own).mul_(error), 0.0)
                piece.tensor.copy_(own)

    def moved(self, value: torch.Tensor) -> torch.Tensor:
        moved = value.clone()
        self.move(local_of(moved))
        return moved

    def _uniform(self, like: torch.Tensor) -> torch.Tensor:
        drawn = torch.empty(like.shape, dtype=torch.float64).uniform_(-1, 1, generator=self._draws)
        return drawn.to(like.device)

    def _on_output(self, _, inputs, output):
        if isinstance(output, torch.Tensor):
            return self._moved_output(inputs, output)
        if isinstance(output, dict):
            return self._moved_dict(inputs, output)
        if type(output) not in (tuple, list):
            return None
        moved = [self._moved_output(inputs, one) if isinstance(one, torch.Tensor) else one for one in output]
        return type(output)(moved)

    def _moved_dict(self, inputs, output: dict) -> dict | None:
        """A copy, as the module may keep its own; of the same class, as those of transformers are. None: it stays."""
        moved = copy.copy(output)
        try:
            for key, one in output.items():
                if isinstance(one, torch.Tensor):
                    moved[key] = self._moved_output(inputs, one)
        except TypeError:  # it cannot be changed
            return None
        return moved

    def _moved_output(self, inputs, output: torch.Tensor) -> torch.Tensor:
        """A module that hands on its input, or the output of a module inside, rounds nothing itself."""
        handed_on = hasattr(output, "_shardproof_moved") or any(one is output for one in inputs)
        if handed_on or not output.is_floating_point():
            return output
        moved = Moved.apply(output, self)
        moved._shardproof_moved = True
        return moved


class Moved(torch.autograd.Function):
    """Moves a value, and its gradient by other roundings."""

    @staticmethod
    def forward(ctx, value, noise):
        ctx.noise = noise
        return noise.moved(value)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.noise.moved(gradient), None


class Gradients:
    """The gradients of a recorded one-rank run."""

    def __init__(self, folder: Path):
        self._reader = safetensors_file.Reader(folder / "rank0.safetensors")
        self._keys = {place_of(line["name"], line["step"], line): line["key"]
                      for line in run_folder.read_lines(folder, 0) if line["kind"] == "grad"}

    def find(self, name: str, step: int, piece: Piece) -> torch.Tensor | None:
        key = self._keys.get(place_of(name, step, {"offset": piece.offset, "flat": piece.flat}))
        return None if key is None else self._reader.tensor(key)


def place_of(name: str, step: int, place) -> tuple:
    return name, step, tuple(place.get("offset") or ()), tuple(place.get("flat") or ())


def modules_of(models: Sequence[torch.nn.Module]) -> Iterator[torch.nn.Module]:
    return (module for one in models for _, module in names.named_modules(one))


def folder_of(golden: Path, repeat: int) -> Path:
    return golden / f"noise{repeat}"


def check(models: Sequence[torch.nn.Module], repeat: int, golden: Path, world_size: int) -> None:
    if type(repeat) is not int or not 1 <= repeat <= MOST:
        raise Error(f"noise is {repeat!r}, and repeats have numbers from 1 to {MOST}",
                    f"Record {ENOUGH} repeats with noise=1 to noise={ENOUGH}")
    if world_size > 1:
        raise Error(f"noise={repeat} is given on {world_size} ranks", "Repeat the run of one rank")
    if not (golden / "run.json").is_file():
        raise Error(f'The folder "{golden}" has no run.json, so noise={repeat} has no run to repeat',
                    "Record the run of one rank into this folder first, without noise=")
    if any(type(module).__name__ == "OptimizedModule" for one in models for module in one.modules()):
        raise Error(f"noise={repeat} is given to a compiled model, whose modules' outputs cannot be moved",
                    "Repeat the run without torch.compile")
