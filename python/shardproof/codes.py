"""Codes that travel through a program's own save and load: each element says which element of which tensor it was.

    shardproof.coded(model, optimizer)      # before the save, in a model with float64 parameters
    ..                                      # the program saves, and loads at the same or another layout
    shardproof.check_coded(model, optimizer)
"""

import math
import zlib
from collections.abc import Iterator, Mapping

import torch

from . import given, optimizers
from .error import Error
from .piece import Piece
from .sources.dtensor import DTensorBoxes
from .sources.find import find_mesh, find_slots, models_of

INDEX_BITS, NAME_BITS = 32, 21  # float64 holds integers of 53 bits
SHOWN = 3
filled: dict[str, set[str]] = {}  # the states of each parameter that the last coded() of this process or its parent filled


def coded(model, optimizer=None, *, mesh=None, layouts: Mapping | None = None) -> None:
    """Overwrites parameters and the optimizer's states with integers that say tensor and element. Each rank fills its own."""
    slots, inner = slots_of(model, optimizer, mesh, layouts)
    with torch.no_grad(), torch._C.DisableTorchFunction():
        for name, piece in pieces_of(slots, inner):
            piece.tensor.copy_(code(name, piece))
    filled.clear()
    filled.update((slot.name, set(slot.states(inner))) for slot in slots)


def check_coded(model, optimizer=None, *, mesh=None, layouts: Mapping | None = None) -> None:
    """Raises an Error that names what has arrived in place of what, if this rank holds an element that is not its own, or if an
    optimizer lacks a state that coded() has filled in this process or its parent."""
    slots, inner = slots_of(model, optimizer, mesh, layouts)
    lost = lost_states(slots, inner)
    if lost:
        raise Error(f"{lost[0]} is not there{f', nor are {len(lost) - 1} more states' if lost[1:] else ''}; coded() has filled it",
                    "Look for what saves or loads the states of the optimizer")
    found = list(pieces_of(slots, inner))
    names = {id_of(name): (name, piece.global_shape) for name, piece in found}
    wrong = []
    for name, piece in found:
        expected, actual = code(name, piece), piece.tensor.detach().to("cpu", torch.float64)
        places = (expected != actual).nonzero()
        if len(places):
            place = tuple(places[0].tolist())
            wrong.append(f"{name} holds {source_of(float(actual[place]), names)} in place of "
                         f"{source_of(float(expected[place]), names)}; {len(places)} of {actual.numel()} elements are wrong")
    if wrong:
        more = f" and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        raise Error("; ".join(wrong[:SHOWN]) + more, "Look for what saves or loads these tensors")


def pieces_of(slots, inner) -> Iterator[tuple[str, Piece]]:
    """The pieces of parameters and states on this rank. A plain tensor of which nothing is known is taken as whole."""
    states = 0
    for slot in slots:
        for piece in slot.pieces(slot.value()):
            yield f"param.{slot.name}", checked(slot.name, piece)
        for name, state in slot.states(inner).items():
            states += 1
            for piece in slot.pieces(state):
                yield f"{name}.{slot.name}", checked(slot.name, piece)
    if inner and not states:
        raise Error(f"The optimizer has no states of the {len(slots)} parameters",
                    "Let it make a step first, so that there are states to be filled, or leave it out")


def slots_of(model, optimizer, mesh, layouts) -> tuple[list, list]:
    """The parameters on this rank, and the torch optimizers."""
    models = models_of(model)
    given.by_pattern("layouts", layouts, given.LAYOUTS)
    found_mesh = find_mesh(models, mesh)
    slots = find_slots(models, found_mesh, layouts, DTensorBoxes(found_mesh))
    inner = [one for part in optimizers.as_list(optimizer) for one in optimizers.inner_optimizers(part)]
    if optimizers.as_list(optimizer) and not inner:
        raise Error(f"The optimizer is a {type(optimizer).__name__}, of which no parameters are seen",
                    "Give the torch optimizer, or a list of them")
    return slots, inner


def lost_states(slots, inner) -> list[str]:
    """The states that were filled and that an optimizer of this rank lacks of a parameter that it steps."""
    stepped = optimizers.parameters_of(inner)
    return [f"{name}.{slot.name}" for slot in slots if any(id(key) in stepped for key in slot.keys())
            for name in sorted(filled.get(slot.name, set()) - set(slot.states(inner)))]


def checked(name: str, piece: Piece) -> Piece:
    if piece.tensor.dtype != torch.float64:
        raise Error(f'"{name}" has the dtype {piece.tensor.dtype}, which does not hold the codes of all elements',
                    "Build the model in float64: with shardproof.float64(), or model.double()")
    if math.prod(piece.global_shape) > 2 ** INDEX_BITS:
        raise Error(f'"{name}" has {math.prod(piece.global_shape)} elements, and codes have room for 2^{INDEX_BITS}',
                    "Build a smaller model")
    piece.tensor = getattr(piece.tensor, "_local_tensor", piece.tensor)
    return piece


def id_of(name: str) -> int:
    return zlib.crc32(name.encode()) % (2 ** NAME_BITS - 1) + 1


def code(name: str, piece: Piece) -> torch.Tensor:
    """The codes of a piece's elements: its name's number, then the position in the row-major global tensor."""
    full = torch.arange(math.prod(piece.global_shape), dtype=torch.float64).reshape(piece.global_shape)
    return piece.of(full).reshape(piece.tensor.shape) + float(id_of(name) * 2 ** INDEX_BITS)


def source_of(value: float, names: Mapping[int, tuple]) -> str:
    """ "param.head.weight [3, 0]" of an element's code."""
    number = int(value) if math.isfinite(value) and value == int(value) else -1
    found = names.get(number >> INDEX_BITS)
    if number < 0 or found is None:
        is_code = number >= 2 ** INDEX_BITS
        return "an element of a tensor that this rank does not hold" if is_code else f"{value:.6g}, which is not a code"
    name, shape = found
    index, place = number % 2 ** INDEX_BITS, []
    for size in reversed(shape):
        index, rest = divmod(index, size)
        place.insert(0, rest)
    return f"{name} {place}"
