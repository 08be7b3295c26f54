"""Layouts that a user declares for hand-written sharding: layouts={"*.up_proj.weight": Shard(0, "tp")}."""

import dataclasses
from collections.abc import Sequence

from .error import Error
from .given import whole_number, whole_numbers


@dataclasses.dataclass(frozen=True)
class Shard:
    """`dim` of the tensor is cut evenly over `axis` of the mesh.

    `blocks` are the sizes, along `dim`, of the local parts of a fused tensor, each of which is cut separately:
    Shard(0, "tp", blocks=(64, 32, 32)) for a fused q, k, v.
    """

    dim: int
    axis: str
    blocks: Sequence[int] = ()

    def __post_init__(self):
        found, dim = whole_numbers(self.blocks or ()), whole_number(self.dim)
        if found is None or dim is None or min(found, default=0) < 0:
            raise Error(f"A layout is {self}", 'Give the number of a dim, and as blocks the sizes of local parts, such as '
                                               'Shard(0, "tp", blocks=(64, 32, 32))')
        object.__setattr__(self, "dim", dim)
        object.__setattr__(self, "blocks", found)


@dataclasses.dataclass(frozen=True)
class Replicate:
    """Every rank holds the whole tensor."""


@dataclasses.dataclass(frozen=True)
class Partial:
    """The ranks of `axis` hold addends ("sum") or terms of a mean ("mean") of the gradient."""

    axis: str
    op: str = "sum"
