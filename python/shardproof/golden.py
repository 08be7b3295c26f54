"""Starts a model from the start of a one-rank run: each rank copies the elements that it holds."""

import difflib
import math
from collections.abc import Mapping
from pathlib import Path

import torch

from . import given, names, run_folder, safetensors_file
from .global_batch import current
from .error import Error
from .mesh import Mesh
from .piece import Piece
from .sources.declared import is_of_output
from .sources.dtensor import DTensorBoxes
from .sources.find import find_mesh, find_slots, models_of
from .sources.slot import Slot


class StartParameters:
    """The start parameters of a recorded one-rank run, by name."""

    def __init__(self, folder: Path):
        header = run_folder.read_header(folder)
        if header["world_size"] != 1:
            raise Error(f'The run in "{folder}" has {header["world_size"]} ranks',
                        "Load from a run of the same script with one rank")
        if "rows" in header:
            raise Error(f'The run in "{folder}" recorded {header["rows"]} rows of each parameter',
                        "Load the start weights from a checkpoint, or record the golden without rows=")
        self.folder = folder
        self._only = header.get("only")
        self._reader = safetensors_file.Reader(folder / "rank0.safetensors")
        self._lines: dict[str, list[dict]] = {}
        self.buffers: set[str] = set()
        for line in run_folder.read_lines(folder, 0):
            if line["kind"] == "buffer":
                self.buffers.add(line["name"])
            if line["kind"] == "param" and line["step"] == 0:
                self._lines.setdefault(line["name"], []).append(line)

    def names(self) -> list[str]:
        return list(self._lines)

    def tensor(self, name: str) -> torch.Tensor:
        if name not in self._lines and self._only is not None:
            raise Error(f'The golden run in "{self.folder}" was recorded with only={self._only}, so that it lacks the start of '
                        f'"{name}"', "Record both runs without only=, or start both from one checkpoint in place of load")
        if name not in self._lines:
            near = difflib.get_close_matches(name, self._lines, 1, 0)
            raise Error(f'The golden run in "{self.folder}" has {len(self._lines)} start parameters and none of the '
                        f'name "{name}"', f'The nearest name is "{near[0]}"; give both runs the same names. A stage of a pipeline '
                        "that holds a copy of a tied parameter keeps the golden's name for it"
                        if near else "Give both runs the same model")
        lines = self._lines[name]
        full = self._reader.tensor(lines[0]["key"]).new_zeros(lines[0]["global_shape"])
        for line in lines:
            box = Piece(self._reader.tensor(line["key"]), tuple(line["global_shape"]), line.get("offset"),
                        line.get("flat"))
            box.of(full).copy_(box.tensor)
        return full


def load(model, golden, *, mesh=None, layouts: Mapping | None = None) -> None:
    """Copies the start parameters of the one-rank run in the folder `golden` into a model, each rank its pieces.

    `mesh` and `layouts` are those of shardproof.record, which need not be given them again. Buffers are not copied: the golden
    has them from the end of its first step on. Those that are drawn at random need the same seed on each rank.
    """
    given.by_pattern("layouts", layouts, given.LAYOUTS)
    start = StartParameters(Path(golden))
    models = models_of(model)
    found_mesh = find_mesh(models, mesh)
    current.mesh, current.golden = found_mesh, Path(golden).resolve()
    current.remember(models, mesh, layouts)
    of_weights = [pattern for pattern in layouts or {} if not is_of_output(pattern)]
    names.check_patterns("layouts", of_weights, [*start.names(), *start.buffers])
    with torch.no_grad(), torch._C.DisableTorchFunction():
        for slot in find_slots(models, found_mesh, layouts, DTensorBoxes(found_mesh)):
            full = start.tensor(slot.name)
            for piece in slot.pieces(slot.value()):
                check_fits(slot, piece, full, found_mesh)
            slot.write(full)


def check_fits(slot: Slot, piece: Piece, full: torch.Tensor, mesh: Mesh) -> None:
    if piece.offset is None and piece.flat is None and piece.tensor.shape != full.shape:
        raise Error(f'"{slot.name}" has a local shape of {list(piece.tensor.shape)}, but the golden run\'s is '
                    f"{list(full.shape)}, and nothing says which part this is",
                    'Declare its layout, such as layouts={"' + slot.name + '": shardproof.Shard(0, "tp")}')
    if (piece.offset is not None or piece.flat is not None) and tuple(piece.global_shape) != tuple(full.shape):
        lacking = [axis for axis in slot.axes if axis not in mesh.sizes]
        if lacking:
            raise Error(f'"{slot.name}" has a local shape of {list(piece.tensor.shape)}, but the golden run\'s is '
                        f'{list(full.shape)}. Its layout names the axis "{lacking[0]}", and the mesh {mesh} has no axis '
                        f"{lacking[0]}", f"Pass mesh={mesh_with(lacking[0], slot, piece, full)}")
        raise Error(f'"{slot.name}" has a global shape of {list(piece.global_shape)}, but the golden run\'s is '
                    f"{list(full.shape)}", "Build both models with the same sizes")


def mesh_with(axis: str, slot: Slot, piece: Piece, full: torch.Tensor) -> str:
    """A mesh in which an axis, the only one that cuts this tensor, has the size that a piece lacks to the full tensor."""
    size = full.numel() // max(math.prod(piece.global_shape), 1)
    if slot.axes != (axis,) or size < 1 or slot.world_size % size:
        return f'{{.., "{axis}": ..}}, with each axis and its size, outer to inner'
    return f'{{"dp": {slot.world_size // size}, "{axis}": {size}}}' if size < slot.world_size else f'{{"{axis}": {size}}}'
