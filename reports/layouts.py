"""From a layout's text to who holds which indices. The same rules as src/mesh/cut.cpp, written again."""

import math
import re
from dataclasses import dataclass

CUT = re.compile(r"(?P<kind>S|B|Zs|Z|H)\((?P<dim>-?\d+)\)(?P<axis>[\w+]+(?:(?:%|//)\d+)?)(?::(?P<extra>\S+))?$")


@dataclass(frozen=True)
class Cut:
    kind: str
    dim: int
    axis: str
    extra: str = ""


@dataclass(frozen=True)
class Mesh:
    """Axes [(name, size)], outer to inner, and parts [(name, stride, size)], which are other views of the same ranks."""
    axes: tuple
    parts: tuple = ()

    def size(self):
        return math.prod(size for _, size in self.axes)

    def knows(self, cuts):
        """Whether it has the axes of all cuts, and blocks that divide them."""
        names = {name for name, *_ in (*self.axes, *self.parts)}
        return all(set(joint) <= names and (not sign or block > 0 and self.place("+".join(joint), 0)[0] % block == 0)
                   for joint, sign, block in (_axis(cut.axis) for cut in cuts))

    def place(self, axis, rank):
        """(size, coordinate of the rank) of an axis or part, of several as one ("dp+cp"), or of blocks of those: "dp%2" is
        the place within its block, "dp//2" the number of the block."""
        names, sign, block = _axis(axis)
        digits = self._digits(names)
        count = math.prod(size for _, size in digits)
        at = 0
        for stride, size in reversed(digits):
            at = at * size + rank // stride % size
        return {"": (count, at), "%": (block, at % block), "//": (count // block, at // block)}[sign]

    def peers(self, axes, rank):
        """The ranks that differ from this one along these axes alone."""
        digits = self._digits([name for axis in axes for name in _axis(axis)[0]])
        rest = lambda one: one - sum(one // stride % size * stride for stride, size in digits)
        return {one for one in range(self.size()) if rest(one) == rest(rank)}

    def _digits(self, names):
        """[(stride, size)] of these axes and parts, inner to outer."""
        digits, stride = [], 1
        for name, size in reversed(self.axes):
            if name in names:
                digits.append((stride, size))
            stride *= size
        return digits + [(stride, size) for name, stride, size in self.parts if name in names]


def _axis(text):
    """The names, sign and size of the block of "dp+cp%2"; without a block "" and 1."""
    joint, sign, block = re.fullmatch(r"([^%/]+)(?:(%|//)(\d+))?", text).groups()
    return joint.split("+"), sign or "", int(block or 1)


def mesh_of(case):
    """The mesh of a case of results.json."""
    mesh = case.get("mesh", {})
    return Mesh(tuple((one["name"], one["size"]) for one in mesh.get("axes", [])),
                tuple((one["name"], one["stride"], one["size"]) for one in mesh.get("parts", [])))


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


def indices(cuts, dim, dim_count, global_size, mesh, rank):
    """Global indices along `dim` that `rank` holds, padding left out."""
    kept = list(range(global_size))
    for cut in cuts:
        if cut.dim % dim_count == dim:
            kept = _apply(cut, kept, *mesh.place(cut.axis, rank))
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


def holders(cuts, shape, mesh):
    """[(ranks, runs per dim)]: each distinct piece of a tensor with the ranks that hold it; empty where a cut names an
    axis that the mesh has not."""
    pieces = {}
    if not mesh.knows(cuts):
        return []
    for rank in range(mesh.size()):
        piece = tuple(tuple(runs(indices(cuts, dim, len(shape), size, mesh, rank)))
                      for dim, size in enumerate(shape))
        pieces.setdefault(piece, []).append(rank)
    return [(ranks, piece) for piece, ranks in pieces.items()]
