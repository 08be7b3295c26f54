"""Finds the slots of a model, and the mesh of the run, from whatever framework the model uses."""

from collections.abc import Mapping, Sequence

import torch

from .. import mesh as meshes
from .. import names
from ..error import Error
from ..global_batch import current
from ..mesh import Mesh
from . import deepspeed, fsdp1, megatron
from .declared import DeclaredSlot, layout_of
from .dtensor import DTensorBoxes, DTensorSlot, is_dtensor
from .slot import Slot

Models = Sequence[torch.nn.Module]


def models_of(model) -> list[torch.nn.Module]:
    """The model, or the chunks of a pipeline, as a list of modules."""
    found = list(model) if isinstance(model, (list, tuple)) else [model]
    for one in found:
        if not isinstance(one, torch.nn.Module):
            raise Error(f"The model is a {type(one).__name__}, whose parameters are not visible",
                        "Give shardproof the torch.nn.Module, or a list of them; compile the module, not a function")
    return found


def find_mesh(models: Models, mesh=None) -> Mesh:
    """The mesh that the user named, or that of the DTensors, of Megatron, of what started the ranks, or one axis "dp"."""
    rank, world_size = meshes.world()
    parameters = [parameter for one in models for parameter in one.parameters()]
    single = name_of_single_axis(models, parameters)
    if mesh is not None:
        return meshes.from_user(mesh, rank, world_size, single)
    if any(megatron.has_layouts(one) for one in models):
        found = megatron.mesh(rank, world_size)
        if found is not None:
            return found
    found = meshes.of_tensors(parameters, rank, world_size, single)
    if found is None:
        partly = [one.device_mesh for one in parameters if is_dtensor(one) and one.device_mesh.size() > 1]
        if partly and not current.axes and not is_fully_sharded(models):
            raise Error(f"The DTensors of the model lie on {partly[0].size()} of the {world_size} ranks, and nothing says "
                        "what the others are", 'Name the axes with mesh=, outer to inner, such as mesh={"dp": 2, "tp": 2}')
        return Mesh(current.axes or [("dp", world_size)], rank)
    meshes.add_parts_of_tensors(found, parameters)
    return found


def name_of_single_axis(models: Models, parameters: Sequence[torch.nn.Parameter]) -> str:
    """The name of the only axis of a device mesh without names: that of the layout which started the ranks, or "dp" where
    no DTensors are but those of FSDP. Others may be of tensor parallelism."""
    cutting = [name for name, size in current.axes or () if size > 1]
    if len(cutting) == 1:
        return cutting[0]
    return "dp" if is_fully_sharded(models) or not any(map(is_dtensor, parameters)) else "axis0"


def is_fully_sharded(models: Models) -> bool:
    """Whether FSDP2 made DTensors of parameters, by the class that it gives to modules."""
    return any(kind.__name__ == "FSDPModule" for one in models for module in one.modules() for kind in type(module).__mro__)


def find_slots(models: Models, mesh: Mesh, layouts: Mapping | None, boxes: DTensorBoxes) -> list[Slot]:
    found = [slot for one in models for slot in slots_of(one, mesh, layouts, boxes)]
    if not found:
        raise Error("The model has no parameters on this rank", "Give shardproof the model itself")
    by_name: dict[str, Slot] = {}
    for slot in found:
        if by_name.setdefault(slot.name, slot).parameter is not slot.parameter:
            raise Error(f'Two parameters have the name "{slot.name}"',
                        'Give shardproof one module that holds both models, as ModuleDict({"actor": a, "critic": b})')
        if slot.parameter.is_meta:
            raise Error(f'The parameter "{slot.name}" is on the meta device and has no values',
                        "Materialize the model (to_empty, then its initial values) before shardproof.record")
    return found


def slots_of(model: torch.nn.Module, mesh: Mesh, layouts: Mapping | None, boxes: DTensorBoxes) -> list[Slot]:
    if megatron.has_layouts(model) and layouts is None:
        return megatron.slots(model, mesh)
    if deepspeed.has_layouts(model):
        return deepspeed.slots(model, mesh)
    flat = fsdp1.slots(model, mesh)
    in_flat = {id(handle.flat_param) for handle in fsdp1.handles(model)}
    in_flat |= {id(one) for handle in fsdp1.handles(model) for one in handle.flat_param._params or ()}
    return flat + [slot_of(name, parameter, mesh, layouts, boxes)
                   for name, parameter in names.named_parameters(model) if id(parameter) not in in_flat]


def slot_of(name: str, parameter: torch.Tensor, mesh: Mesh, layouts: Mapping | None, boxes: DTensorBoxes) -> Slot:
    if is_dtensor(parameter):
        return DTensorSlot(name, parameter, mesh, boxes)
    placements = layout_of(name, layouts)
    if placements is not None:
        return DeclaredSlot(name, parameter, mesh, placements)
    return Slot(name, parameter, mesh.world_size)
