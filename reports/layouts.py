"""From a layout's text to who holds which indices. The same rules as src/mesh/cut.cpp, written again."""

import re
from dataclasses import dataclass

CUT = re.compile(r"(?P<kind>S|B|Zs|Z|H)\((?P<dim>-?\d+)\)(?P<axis>\w+)(?::(?P<extra>\S+))?$")


@dataclass(frozen=True)
class Cut:
    kind: str
    dim: int
    axis: str
    extra: str = ""


def parse(layout):
    """The cuts of "S(0)tp S(1)dp"; None when the text is not a layout."""
    cuts = []
    for word in layout.split():
        if word == "R":
            continue
        match = CUT.match(word)
        if not match:
            return None
        cuts.append(Cut(match["kind"], int(match["dim"]), match["axis"], match["extra"] or ""))
    return cuts


def coordinates(axes, rank):
    """{axis: coordinate} of a rank; `axes` is [(name, size)], outer to inner."""
    found = {}
    for name, size in reversed(axes):
        found[name] = rank % size
        rank //= size
    return found


def world_size(axes):
    product = 1
    for _, size in axes:
        product *= size
    return product


def _zigzag(indices, size, at):
    if size == 1:
        return indices
    chunk = len(indices) // (2 * size)
    last = 2 * size - 1 - at
    return indices[at * chunk:(at + 1) * chunk] + indices[last * chunk:(last + 1) * chunk]


def _apply(cut, indices, size, at):
    count = len(indices)
    if cut.kind == "Z":
        return _zigzag(indices, size, at)
    if cut.kind == "H":
        return indices if str(at) in cut.extra.split("|") else []
    if cut.kind == "B" and cut.extra:
        kept, begin = [], 0
        for block in map(int, cut.extra.split("|")):
            share = block // size
            kept += indices[begin + at * share:begin + (at + 1) * share]
            begin += block
        return kept
    if cut.extra.startswith("padded"):
        share = int(cut.extra[len("padded"):]) // size
        return indices[at * share:(at + 1) * share]
    if cut.extra.startswith("parts"):
        parts = int(cut.extra[len("parts"):])
        share, part = count // parts, at * parts // size
        return indices[part * share:(part + 1) * share]
    share = -(-count // size)
    return indices[at * share:(at + 1) * share]


def indices(cuts, dim, dim_count, global_size, axes, rank):
    """Global indices along `dim` that `rank` holds, padding left out."""
    where, sizes = coordinates(axes, rank), dict(axes)
    kept = list(range(global_size))
    for cut in cuts:
        if cut.dim % dim_count == dim:
            kept = _apply(cut, kept, sizes.get(cut.axis, 1), where.get(cut.axis, 0))
    return kept


def runs(kept):
    """[(first, count)] of neighboring indices."""
    found = []
    for index in kept:
        if found and index == found[-1][0] + found[-1][1]:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((index, 1))
    return found


def holders(cuts, shape, axes):
    """[(ranks, runs per dim)]: each distinct piece of a tensor with the ranks that hold it."""
    pieces = {}
    for rank in range(world_size(axes)):
        piece = tuple(tuple(runs(indices(cuts, dim, len(shape), size, axes, rank)))
                      for dim, size in enumerate(shape))
        pieces.setdefault(piece, []).append(rank)
    return [(ranks, piece) for piece, ranks in pieces.items()]
