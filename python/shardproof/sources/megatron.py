"""Megatron-core says by sharded_state_dict() which boxes of which global tensors a rank holds."""

from collections.abc import Iterator

import torch

from .. import names
from ..error import Error
from ..mesh import Mesh, Part
from ..piece import Piece, boxes_of_range
from .slot import Slot


def has_layouts(model: torch.nn.Module) -> bool:
    return hasattr(unwrapped(model), "sharded_state_dict")


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    while names.wrapped(model):
        model = model._modules[names.wrapped(model)]
    return model


def mesh(rank: int, world_size: int) -> Mesh | None:
    """The axes of Megatron's parallel_state, or None where it does not run."""
    import sys
    state = sys.modules.get("megatron.core.parallel_state")
    if state is None or not state.model_parallel_is_initialized():
        return None
    groups = {"pp": state.get_pipeline_model_parallel_group(), "dp": state.get_data_parallel_group(),
              "cp": state.get_context_parallel_group(), "tp": state.get_tensor_model_parallel_group()}
    found = [(step(group), name, group.size()) for name, group in groups.items() if group.size() > 1]
    found = split_experts(found, state.get_expert_model_parallel_group())
    axes = [(name, size) for _, name, size in sorted(found, key=lambda one: -one[0])]
    if Mesh(axes, rank).world_size != world_size or not is_row_major(found):
        raise Error(f"The groups {axes} of Megatron's parallel_state do not number {world_size} ranks row-major",
                    "Name the axes, outer to inner, with mesh=")
    experts = {"edp": state.get_expert_data_parallel_group(), "ep": state.get_expert_model_parallel_group(),
               "etp": state.get_expert_tensor_parallel_group()}
    return Mesh(axes, rank, batch_axes=("dp", "ep"),
                parts=[Part(name, step(group), group.size()) for name, group in experts.items()])


def step(group) -> int:
    """The distance between neighbors of a group."""
    ranks = torch.distributed.get_process_group_ranks(group)
    return ranks[1] - ranks[0] if len(ranks) > 1 else 1


def split_experts(found: list, group) -> list:
    """Experts lie on an inner part of the data-parallel axis: dp becomes dp (outer) and ep (inner)."""
    size = group.size()
    for index, (distance, name, ranks) in enumerate(found):
        if name == "dp" and size > 1 and step(group) == distance and ranks % size == 0:
            outer = [(distance * size, "dp", ranks // size)] if ranks > size else []
            return [*found[:index], *outer, (distance, "ep", size), *found[index + 1:]]
    return found


def is_row_major(found: list) -> bool:
    """Each axis must step over exactly the ranks of the axes inside of it."""
    inner = 1
    for distance, _, size in sorted(found):
        if distance != inner:
            return False
        inner *= size
    return True


def slots(model: torch.nn.Module, mesh_: Mesh) -> list[Slot]:
    """A slot for each parameter that the model's sharded_state_dict() maps."""
    inner = unwrapped(model)
    maps = {memory(one.data): one for one in leaves(inner.sharded_state_dict()) if is_map(one)}
    reduced = reduced_ranges(model)
    found, lost = [], []
    for name, parameter in names.named_parameters(inner):
        sharded = maps.get(memory(parameter))
        if sharded is None:
            lost.append(name)
        else:
            found.append(MegatronSlot(sharded, parameter, mesh_.world_size, reduced.get(id(parameter))))
    if lost:
        raise Error(f"sharded_state_dict() of {type(inner).__name__} maps {len(found)} parameters but not "
                    f'{len(lost)} others, of which the first is "{lost[0]}"',
                    "Add the parameter to its module's sharded_state_dict")
    return found


def is_map(one) -> bool:
    """A ShardedTensor or ShardedTensorFactory of a tensor; not a ShardedObject."""
    return isinstance(getattr(one, "data", None), torch.Tensor) and hasattr(one, "replica_id")


def memory(tensor: torch.Tensor) -> tuple:
    return tensor.data_ptr(), tensor.numel()


def leaves(tree) -> Iterator:
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, (list, tuple)):
        for one in tree:
            yield from leaves(one)
    else:
        yield tree


class MegatronSlot(Slot):
    source = "megatron"

    def __init__(self, sharded, parameter: torch.Tensor, world_size: int, reduced: tuple[int, int] | None):
        super().__init__(sharded.key, parameter, world_size)
        self._sharded = sharded
        self._reduced = reduced

    def pieces(self, tensor: torch.Tensor) -> list[Piece]:
        if not hasattr(self._sharded, "build_fn"):
            return [piece_of(self._sharded, tensor)]
        built = self._sharded.build_fn(self.name, tensor, self._sharded.replica_id, None)
        return [piece_of(one, one.data) for one in leaves(built)]

    def gradient_pieces(self, gradient: torch.Tensor) -> list[Piece]:
        if self._reduced is None:
            return self.pieces(gradient)
        numbers = self.pieces(torch.arange(gradient.numel()).reshape(gradient.shape))
        return [part for piece, of_piece in zip(self.pieces(gradient), numbers)
                for part in parts_within(self._reduced, piece, int(of_piece.tensor.reshape(-1)[0]))]


def parts_within(reduced: tuple[int, int], piece: Piece, first: int) -> list[Piece]:
    """The parts of a piece, whose elements are numbered from `first`, that lie in a range of numbers."""
    start, end = (min(max(one - first, 0), piece.tensor.numel()) for one in reduced)
    return [Piece(piece.tensor[box.slices], piece.global_shape,
                  tuple(map(sum, zip(piece.offset, box.offset))), source=piece.source, leading=piece.leading)
            for box in boxes_of_range(piece.tensor.shape, start, end)]


def reduced_ranges(model: torch.nn.Module) -> dict[int, tuple[int, int]]:
    """With the distributed optimizer, a rank's main_grad is reduced only in the rank's share of each bucket. Returns
    the elements [start, end) of each parameter, by id, that lie in this rank's share."""
    if not getattr(getattr(model, "ddp_config", None), "use_distributed_optimizer", False):
        return {}
    places = {id(parameter): place for buffer in model.buffers + model.expert_parallel_buffers
              for parameter, place in buffer.param_index_map.items()}
    found = {}
    for group in model.bucket_groups + model.expert_parallel_bucket_groups:
        for bucket in group.buckets:
            size = bucket.grad_data.numel() // group.intra_distributed_optimizer_instance_size
            low = bucket.offset + size * group.intra_distributed_optimizer_instance_rank
            for parameter in bucket.params:
                start, end = places[id(parameter)][:2]
                found[id(parameter)] = (max(start, low) - start, max(min(end, low + size), start) - start)
    return found


def piece_of(sharded, tensor: torch.Tensor) -> Piece:
    """The piece of a tensor that is laid out like a ShardedTensor, whose leading axes may be prepended ones."""
    if getattr(sharded, "flattened_range", None) is not None:
        raise Error(f'"{sharded.key}" is flattened by the distributed optimizer',
                    "Give record the model, not the optimizer's shards")
    local = tensor[(None,) * sharded.prepend_axis_num]
    return Piece(local, tuple(sharded.global_shape), tuple(sharded.global_offset), source="megatron",
                 leading=sharded.prepend_axis_num)
