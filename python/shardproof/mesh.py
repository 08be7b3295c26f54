"""The mesh of a run: named axes, outer to inner, over which the ranks are numbered row-major. A part names other groups of
the same ranks, which the axes do not give: experts that lie over dp and tp, or over an inner half of dp."""

import itertools
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch.distributed as dist

from .error import Error
from .given import whole_number

# Names that programs commonly give to the axes over which the batch is cut.
BATCH_AXES = ("dp", "dp_replicate", "dp_shard", "edp", "ddp", "fsdp", "hsdp", "data", "data_parallel", "batch",
              "replicate", "shard")
STAGE_AXES = ("pp", "pipeline")
# Names of the axes over which it is not cut.
OTHER_AXES = (*STAGE_AXES, "cp", "ep", "etp", "sp", "tp", "ulysses", "context", "expert", "sequence", "tensor")
UNNAMED = re.compile("axis[0-9]")  # of a device mesh without names: nothing tells what they cut
# Names that a script may use although its run has no such axis, because the axis has size 1 there.
COMMON_AXES = (*BATCH_AXES, *OTHER_AXES)


def world() -> tuple[int, int]:
    """This rank and the world size; (0, 1) in a program that uses no torch.distributed."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if launched > 1:
        raise Error(f"WORLD_SIZE is {launched}, but torch.distributed is not initialized",
                    "Call torch.distributed.init_process_group before shardproof")
    return 0, 1


class Part(NamedTuple):
    """A rank's index along it is (rank // stride) % size."""

    name: str
    stride: int
    size: int


class Mesh:
    """Named axes with their sizes, and the position of one rank on them."""

    def __init__(self, axes: Iterable[tuple[str, int]], rank: int, batch_axes: Sequence[str] | None = None,
                 parts: Iterable[Part] = ()):
        self.axes = [(str(name), int(size)) for name, size in axes]
        self.rank = rank
        self.sizes = dict(self.axes)
        self.batch_axes = tuple(batch_axes or (name for name in self.sizes if name in BATCH_AXES))
        self.parts: list[Part] = []
        for part in parts:
            self.add_part(part)

    def add_part(self, part: Part) -> None:
        """Adds a part that says more than the axes do: etp over the same ranks as tp does not."""
        known = [*self.sizes, *(one.name for one in self.parts)]
        says_more = part.size > 1 and part.name not in known and \
            not any(part.name.endswith(name) and self.range_of([name]) == part[1:] for name in self.sizes)
        if says_more and self.world_size % (part.stride * part.size) == 0:
            self.parts.append(part)

    def range_of(self, axes: Sequence[str]) -> tuple[int, int]:
        """The stride and the size of neighboring axes taken together, outer to inner."""
        names = [name for name, size in self.axes if size > 1]
        wanted = [name for name in axes if self.sizes[name] > 1]
        first = names.index(wanted[0]) if wanted else 0
        if names[first:first + len(wanted)] != wanted:
            raise Error(f"The axes {tuple(axes)} are not neighbors, outer to inner, in the mesh {self}",
                        "Name axes that follow each other there")
        inner = math.prod(self.sizes[name] for name in names[first + len(wanted):])
        return inner, math.prod(self.sizes[name] for name in wanted)

    def axes_in(self, name: str) -> tuple[str, ...]:
        """The axes that a part consists of, outer to inner; of an axis that axis."""
        part = next((one for one in self.parts if one.name == name), None)
        if part is None:
            return (name,)
        names = [axis for axis, size in self.axes if size > 1]
        for begin in range(len(names)):
            for end in range(begin + 1, len(names) + 1):
                if self.range_of(names[begin:end]) == part[1:]:
                    return tuple(names[begin:end])
        raise Error(f'"{name}" cuts the axes of the mesh {self} in the middle', "Name finer axes with mesh=")

    @property
    def world_size(self) -> int:
        return math.prod(size for _, size in self.axes)

    def coordinates(self, rank: int | None = None) -> dict[str, int]:
        """The index of a rank along each axis."""
        rest = self.rank if rank is None else rank
        found = {}
        for name, size in reversed(self.axes):
            found[name] = rest % size
            rest //= size
        return found

    def peers(self, axes: Iterable[str]) -> list[int]:
        """The ranks that share this rank's place on all other axes."""
        varied = set(axes)
        mine = self.coordinates()
        return [rank for rank in range(self.world_size)
                if all(name in varied or place == mine[name] for name, place in self.coordinates(rank).items())]

    def axes_of(self, ranks: Iterable[int]) -> tuple[str, ...]:
        """The axes of size above 1 that a group of ranks spans."""
        group = sorted(ranks)
        names = [name for name, size in self.axes if size > 1]
        for count in range(len(names) + 1):
            for subset in itertools.combinations(names, count):
                if self.peers(subset) == group:
                    return subset
        raise Error(f"The ranks {group} form a group that is not a set of axes of the mesh {self}",
                    'Name the axes, outer to inner: shardproof.record(.., mesh={"dp": 2, "tp": 2})')

    def known(self, axes: Iterable[str]) -> tuple[str, ...]:
        """The given axes that have a size above 1 here. A name that no program uses for an axis is an error."""
        parts = [part.name for part in self.parts]
        for name in axes:
            if name not in self.sizes and name not in (*COMMON_AXES, *parts) and self.world_size > 1:
                raise Error(f'The mesh {self} has no axis "{name}"',
                            "Use the names of its axes, or name them with mesh=")
        return tuple(name for name, size in self.axes if name in axes and size > 1)

    def check_batch_axes(self, axes: Iterable[str]) -> None:
        """Refuses the name of a data-parallel axis that is not here, where the batch is cut over one of another name. Where
        no axis cuts it, the name stands for an axis of size 1."""
        given = tuple(axes)
        lacking = [name for name in given if name in BATCH_AXES and name not in self.sizes
                   and name not in (part.name for part in self.parts)]
        cutting = [name for name, size in self.axes if size > 1 and (name in self.batch_axes or UNNAMED.fullmatch(name))]
        if lacking and cutting and not set(cutting) & set(given):
            raise Error(f'The mesh {self} has no axis "{lacking[0]}", and its axis "{cutting[0]}" may cut the batch',
                        "Use the names of its axes, or name them with mesh=")

    def axes_of_batch(self) -> tuple[str, ...]:
        """The axes over which the batch is cut, by their names. A name that does not tell is an error."""
        for name, size in self.axes:
            if size > 1 and UNNAMED.fullmatch(name):
                raise Error(f"The device mesh {self} has no names, which would tell what cuts the batch",
                            'Name its axes: init_device_mesh(.., mesh_dim_names=("tp",)), or mesh={"tp": 2} of load and record')
            if size > 1 and name not in (*self.batch_axes, *COMMON_AXES):
                raise Error(f'The name of the axis "{name}" of the mesh {self} does not tell whether it cuts the batch',
                            'Name the axes that do, or none: shardproof.batch(.., axes=("dp",)) or axes=()')
        return self.batch_axes

    def place_along(self, axes: Iterable[str]) -> tuple[int, int]:
        """This rank's index, and the number of places, along several axes taken together, outer to inner."""
        index, count = 0, 1
        mine = self.coordinates()
        for name, size in self.axes:
            if name in axes:
                index, count = index * size + mine[name], count * size
        return index, count

    def __str__(self) -> str:
        return "{" + ", ".join(f"{name}: {size}" for name, size in self.axes) + "}"


def from_user(mesh, rank: int, world_size: int, single: str = "dp") -> Mesh:
    """The mesh that a user named: a mapping or pairs from axis to size, or a DeviceMesh. Of a part, the mapping has the
    axes that it consists of: {"dp": 2, "tp": 2, "ep": ("dp", "tp")}."""
    if hasattr(mesh, "mesh_dim_names"):
        found = from_device_mesh(mesh, rank, single)
    else:
        named = pairs_of(mesh)
        found = Mesh([(name, size) for name, size in named if not isinstance(size, (tuple, list))], rank)
        for name, axes in named:
            if not isinstance(axes, (tuple, list)):
                continue
            for lacking in (axis for axis in axes if axis not in found.sizes):
                raise Error(f'"{name}" consists of {tuple(axes)}, and the mesh {found} has no axis "{lacking}"',
                            "Name the size of each axis")
            if axes:
                found.add_part(Part(name, *found.range_of(axes)))
    if found.world_size != world_size:
        raise Error(f"The mesh {found} has {found.world_size} ranks, but the run has {world_size}",
                    "Name every axis, outer to inner, so that the product of the sizes is the world size")
    return found


def pairs_of(mesh) -> list[tuple]:
    """The axes that a user named with their sizes, or, of a part, with the axes that it consists of."""
    try:
        found = [(name, size) for name, size in (mesh.items() if isinstance(mesh, Mapping) else mesh)]
    except (TypeError, ValueError):
        found = [(None, 0)]
    if any(not isinstance(name, str) or not (isinstance(size, (tuple, list)) or (whole_number(size) or 0) > 0)
           for name, size in found) or len(dict(found)) < len(found):
        raise Error(f"mesh is {mesh!r}", 'Give a DeviceMesh, or each axis once with its number of ranks, outer to inner: '
                                         'mesh={"dp": 2, "tp": 2}')
    return found


def from_device_mesh(device_mesh, rank: int, single: str = "dp") -> Mesh:
    """The axes of a DeviceMesh, ordered so that its ranks are row-major over them. `single`: the name of its only axis,
    where it has none."""
    ranks = device_mesh.mesh
    names = device_mesh.mesh_dim_names or ([single] if ranks.ndim == 1 else [f"axis{dim}" for dim in range(ranks.ndim)])
    first = ranks[(0,) * ranks.ndim]
    steps = [int(ranks.select(dim, 1)[(0,) * (ranks.ndim - 1)] - first) if ranks.shape[dim] > 1 else 0
             for dim in range(ranks.ndim)]
    dims = sorted(range(ranks.ndim), key=lambda dim: -steps[dim])
    if ranks.permute(dims).flatten().tolist() != list(range(ranks.numel())):
        raise Error(f"The ranks {ranks.tolist()} of the device mesh are not numbered row-major in any order of its axes",
                    "Build the mesh with init_device_mesh")
    return Mesh([(names[dim], ranks.shape[dim]) for dim in dims], rank)


def root_of(device_mesh):
    """The mesh from which a sub-mesh was cut."""
    if hasattr(device_mesh, "_get_root_mesh"):
        return device_mesh._get_root_mesh()
    from torch.distributed.device_mesh import _mesh_resources
    return _mesh_resources.get_root_mesh(device_mesh)


def of_tensors(tensors, rank: int, world_size: int, single: str = "dp") -> Mesh | None:
    """The mesh of the whole world from which the meshes of these DTensors were cut, if there is one."""
    for tensor in tensors:
        device_mesh = getattr(tensor, "device_mesh", None)
        if device_mesh is not None:
            # torchtitan's meshes are unflattened views of a root with one axis, "world", which says less than "fsdp".
            whole = [one for one in (device_mesh, root_of(device_mesh)) if one.size() == world_size]
            if whole:
                return from_device_mesh(max(whole, key=lambda one: one.ndim), rank, single)
    return None


def add_parts_of_tensors(mesh: Mesh, tensors) -> None:
    """Adds the axes of DTensors that are another view of the ranks, such as the ep of experts beside the fsdp of the rest."""
    for device_mesh in {id(one): one for one in (getattr(tensor, "device_mesh", None) for tensor in tensors)
                        if one is not None}.values():
        for dim, name in enumerate(device_mesh.mesh_dim_names or ()):
            ranks = device_mesh.mesh.movedim(dim, -1).reshape(-1, device_mesh.mesh.shape[dim])[0].tolist()
            if len(ranks) > 1 and ranks == list(range(ranks[0], ranks[-1] + 1, ranks[1] - ranks[0])):
                mesh.add_part(Part(name, ranks[1] - ranks[0], len(ranks)))
