"""Records a training run: start parameters, then per optimizer step gradients, parameters and optimizer state."""

import functools
import math
import platform
import sys
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch

from . import __version__, given, lift, micro_batches, names, optimizers, run_folder
from .clipping import Clipping
from .error import Error
from .global_batch import Rows, current
from .matrices import Muon
from .matrices import fields as fields_of_matrices
from .mesh import STAGE_AXES
from .micro_batches import Pass
from .noise import Noise, folder_of
from .noise import check as check_repeat
from .order import ComputationOrder
from .piece import BY_ROWS, Partial, Piece, of_first_rows, whole
from .program_state import Buffers, random_states
from .sources.declared import DeclaredSlot, is_of_output, layout_of_output
from .sources.dtensor import DTensorBoxes, is_dtensor, local_of
from .sources.find import find_mesh, find_slots, models_of
from .sources.slot import held_gradient

# From the widest to the narrowest.
PRECISIONS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
KINDS = ("act", "act_grad", "scalar", "logprobs")
CLIP_EPSILON = 1e-6  # torch divides max_norm by (norm + 1e-6)


def record(model, optimizer=None, *, out, steps: int | None = None, only: str | Sequence[str] | None = None,
           rows: int | None = None, max_bytes: int | None = None, activations: str | Sequence[str] = (), hashes: str | Sequence[str] = (),
           noise: int | None = None, mesh=None, layouts: Mapping | None = None,
           buffers: str | Sequence[str] = "*", from_step: int = 0,
           matrices: Mapping[str, Muon] | None = None) -> "Recorder":
    """Records the training that follows into the folder `out`, until the with-block or close() ends it.

    model        the module, or the list of a pipeline's chunks
    optimizer    what steps, or a list; without one, call rec.gradients() before each step and rec.stepped() after it
    steps        how many optimizer steps to record; all when None
    only         patterns of names ("*.mlp.*") to which parameters, gradients, states and activations are limited
    rows         how many of the first rows of each parameter, gradient and state to record; all when None
    max_bytes    the most that a rank may record
    activations  patterns of modules whose outputs are recorded too ("*" for all)
    hashes       patterns of modules of whose outputs digests are recorded
    noise        1, 2, ..: this run repeats the one-rank run in `out` with other roundings; judging below float64 needs 16
    mesh         the axes of the ranks, outer to inner: {"dp": 2, "tp": 2}; found without help for DTensor and Megatron
    layouts      layouts of hand-written shards: {"*.up_proj.weight": shardproof.Shard(0, "tp")}, and of what modules give
                 on a rank: {"*.output": shardproof.Shard(1, "cp")}, by patterns that end with .output
                 (mesh and layouts that shardproof.load was given for this model need not be given again)
    buffers      patterns of persistent buffers to record; () for none
    from_step    how many steps came before, of a program that has loaded what another run saved: states are recorded at the
                 start, too, and judged beside those of a golden that was not interrupted
    matrices     how matrix optimizers move parameters: {"*.qkv.weight": shardproof.Muon(blocks=(64, 32, 32))};
                 torch.optim.Muon is known, and needs blocks alone
    """
    return Recorder(model, optimizer, Path(out), steps, patterns_of("only", only), rows, max_bytes,
                    patterns_of("activations", activations) or [], patterns_of("hashes", hashes) or [], noise, mesh, layouts,
                    patterns_of("buffers", buffers) or [], from_step, matrices)


def patterns_of(option: str, patterns) -> list[str] | None:
    return None if patterns is None else given.texts(option, patterns, given.PATTERNS)


def check_patterns(models, slots, buffers, only, of_modules, of_buffers, layouts, matrices) -> None:
    """Refuses patterns that fit no name. One rank has all names; others may hold a stage without those that are meant."""
    modules = [name for one in models for name, _ in names.named_modules(one)]
    weights = [slot.name for slot in slots]
    names.check_patterns("only", only or (), weights + modules)
    names.check_patterns("activations and hashes", of_modules, modules)
    of_weights = [pattern for pattern in layouts or () if not is_of_output(pattern)]
    names.check_patterns("layouts", of_weights, [*weights, *buffers])
    names.check_patterns("buffers", [one for one in of_buffers if one != "*"], buffers)
    names.check_patterns("matrices", matrices or (), weights)


class Recorder:
    """A run that is being recorded. Leave its with-block, or call close(), to write it."""

    def __init__(self, model, optimizer, out: Path, steps, only, rows, max_bytes, activations, hashes, noise, mesh,
                 layouts, buffers, from_step=0, matrices=None):
        models = models_of(model)
        self._steps = given.number_or_none("steps", steps, "Give the number of steps to record, None for all")
        self._rows = given.number_or_none("rows", rows, "Give the number of first rows to record, None for all")
        max_bytes = given.bytes_or_none("max_bytes", max_bytes, "Give the most bytes that a rank may record, None for any")
        self._from_step = given.number("from_step", from_step, 0, "Give the number of steps that came before, 0 for none")
        given.by_pattern("layouts", layouts, given.LAYOUTS)
        given.by_pattern("matrices", matrices, 'Give a dictionary: matrices={"*.qkv.weight": shardproof.Muon(blocks=(64, 32, 32))}')
        loaded_mesh, loaded_layouts = current.given_to_load(models)
        mesh = loaded_mesh if mesh is None else mesh
        if loaded_layouts is not None:
            layouts = dict(layouts or {})
            for pattern, placements in loaded_layouts.items():
                layouts.setdefault(pattern, placements)
        self._layouts = layouts
        self.mesh = find_mesh(models, mesh)
        self._repeat = noise
        if noise is not None:
            check_repeat(models, noise, out, self.mesh.world_size)
            golden, out = out, folder_of(out, noise)
        self._out = out
        self._only = only
        self._optimizers = optimizers.as_list(optimizer)
        self._boxes = DTensorBoxes(self.mesh)
        self._slots = find_slots(models, self.mesh, layouts, self._boxes)
        self._chosen_slots = [slot for slot in self._slots if self._is_chosen(slot.name)]
        self._buffers = Buffers(models, self.mesh, layouts, self._boxes)
        if self.mesh.world_size == 1:
            check_patterns(models, self._slots, self._buffers.names(), only, [*activations, *hashes], buffers, layouts,
                           matrices)
        self._owners = optimizers.owners_of(self._optimizers, self._slots)
        self._slot_of = {id(slot.parameter): slot for slot in self._slots}
        check_is_not_golden(out)
        run_folder.claim(out, self.mesh.rank, self.mesh.world_size)
        self._files = run_folder.RankFiles(out, self.mesh.rank, max_bytes)
        self._settings = optimizers.Settings(self._optimizers, self._slots) if self._optimizers else None
        self._matrices = fields_of_matrices(self._optimizers, self._slots, matrices)
        self._chosen_buffers = buffers
        self._finished = 0            # optimizer steps that have ended
        self._is_stepping = False
        self._in_step = True          # whether the next step has begun
        self._taken: dict[int, tuple] = {}  # by the id of a slot: its gradient at the end of a step, and that one's version
        self._seen: set[int] = set()  # the ids of slots whose gradients of this step are recorded
        self._stepped: set[int] = set()  # positions of the optimizers that have stepped in this step
        self._replaced: set[int] = set()    # of slots whose recorded gradients another backward pass replaced
        self._came_again: set[int] = set()  # of slots that got gradients after their optimizer's step
        self._counts: dict = {}       # how often a name was recorded in this step
        self._placed: dict = {}       # how many rows of a batch were recorded in this step, by batch and name
        self._passes: dict = {}       # of the models whose outputs are recorded, by step and model
        self._outputs: dict = {}      # their lines with the number of the pass, by step, model and name
        self._batch: Rows | None = None  # of the last step
        self._ends: list = []
        self.error: BaseException | None = None  # that ended the with-block
        current.mesh = self.mesh
        if self.mesh.rank == 0:
            optimizers.warn_of_what_is_missing(self._optimizers, self._slots, self._owners)
        self._record_parameters(0)
        try:
            self._noise = None if noise is None else Noise(models, noise, golden)
            self._watch(models, activations, hashes)
            if self._from_step:
                self._record_states(0)
                self._record_program(0)
        except BaseException:
            self._end_watching()
            raise

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, kind, error, trace) -> None:
        if kind is None:
            self.close()
        else:
            self.error = error
            self._end_watching()

    # Calls of the script.

    def scalar(self, name: str, value, *, mean_over: Iterable[str] = (), sum_over: Iterable[str] = ()) -> None:
        """Records a number, such as the loss. With mean_over or sum_over, the ranks of these axes hold terms of it."""
        if not isinstance(value, torch.Tensor):
            # A Python number has 64 bits, even if it was computed from float32.
            try:
                value = torch.tensor(value, dtype=torch.float64 if self._is_float64() else torch.float32)
            except (OverflowError, RuntimeError, TypeError, ValueError) as error:
                raise Error(f'The scalar "{name}" is {value!r}', "Give a number, or a tensor with one element") from error
        if value.numel() != 1:
            raise Error(f'The scalar "{name}" has {value.numel()} elements', "Record it with rec.tensor")
        self.tensor(name, value.detach().reshape(()), kind="scalar", mean_over=mean_over, sum_over=sum_over)

    def logprobs(self, tensor: torch.Tensor) -> None:
        """Records the log-probabilities [B, S] of this rank's rows."""
        self.tensor("logprobs", tensor, kind="logprobs")

    def tensor(self, name: str, tensor: torch.Tensor, *, kind: str = "act", offset: Sequence[int] | None = None,
               global_shape: Sequence[int] | None = None, mean_over: Iterable[str] = (),
               sum_over: Iterable[str] = ()) -> None:
        """Records any tensor. Its place is that of its placements, or `offset` in `global_shape`, or the rows that
        shardproof.batch gave to this rank."""
        if kind not in KINDS:
            raise Error(f'"{name}" is recorded with the kind "{kind}"', f"Use one of {', '.join(KINDS)}")
        given.tensor(name, tensor)
        self._require_open(f'"{name}" is recorded')
        step = self._step()
        if not self._is_recorded(step):
            return
        partial = self._partial_over(mean_over, sum_over)
        for piece in self._pieces_of(name, tensor, kind, offset, global_shape):
            piece.partial = partial or piece.partial
            self._files.add(kind, name, step, piece, self._microbatch(kind, name, piece))

    def gradients(self) -> None:
        """Records all gradients of this step, if they are not recorded yet."""
        self._require_open("rec.gradients() is called")
        self._record_gradients(self._chosen_slots)

    def _record_gradients(self, slots, scale: float = 1) -> None:
        self._begin_step()
        slots = [slot for slot in slots if id(slot) not in self._seen]
        if not slots or not self._is_recorded(self._step()):
            return
        order = self._order.of_gradients()
        for slot in slots:
            gradient = slot.gradient()
            if gradient is None:
                continue
            self._seen.add(id(slot))
            if self._noise:
                self._noise.move(local_of(gradient))
            if scale != 1:
                gradient = gradient / scale
            for piece in self._of_first_rows(slot, slot.gradient_pieces(gradient)):
                self._files.add("grad", slot.name, self._step(), piece, order=order.get(id(slot)))
                if self._noise:
                    self._noise.doubt(slot.name, self._step(), piece)

    def _record_clipped(self, parameters: list | None) -> bool:
        """Records the gradients that a clip is given. Returns whether any are of the recorded models: a program may clip
        others, such as a critic's, before these have got theirs. A clip of gradients that a step has taken begins none."""
        slots = self._chosen_slots
        if parameters is not None:
            given = set(map(id, parameters))
            slots = [slot for slot in slots if not given.isdisjoint(map(id, slot.keys()))]
            if not slots and self._are_copies(parameters):
                slots = self._chosen_slots
            if slots and not self._is_stepping and all(id(slot) in self._came_again for slot in slots):
                self.stepped()  # the other optimizers do not step in each step
        if slots and not self._in_step and all(self._was_taken(slot) for slot in slots):
            return False
        self._record_gradients(slots)
        return bool(slots) or not self._chosen_slots

    def _was_taken(self, slot) -> bool:
        """Whether the gradient of a slot is still the one that it had at the end of the last step, or is gone."""
        gradient = held_gradient(slot.parameter)
        seen, version = self._taken.get(id(slot), (None, None))
        return gradient is None or seen is not None and seen() is gradient and local_of(gradient)._version == version

    def _are_copies(self, parameters: list) -> bool:
        """Whether tensors that a clip is given, none of which the models hold, are wider copies that the program steps:
        those that the optimizers hold, or without optimizers those of equal shapes. Copies may lie in one buffer, or be
        clipped by groups: then all gradients have come, and they are no parameters, as those of another model are."""
        held = {id(one) for optimizer in self._optimizers for inner in optimizers.inner_optimizers(optimizer)
                for group in inner.param_groups for one in group["params"]} - set(self._slot_of)
        if held and len(self._owners) < len(self._slots):  # the optimizers have copies in the place of parameters
            return not held.isdisjoint(map(id, parameters))
        if self._optimizers:
            return False
        shapes = sorted(tuple(one.shape) for one in parameters)
        return shapes == sorted(tuple(slot.parameter.shape) for slot in self._slots) or \
            self._order.saw_all(self._chosen_slots) and not any(isinstance(one, torch.nn.Parameter) for one in parameters)

    def _gradient_came(self, parameter: int) -> None:
        """Forgets what was recorded of a gradient to which another backward pass adds before its optimizer steps, as where
        a scaler skips a step that overflows."""
        slot = self._slot_of.get(parameter) if self._in_step else None  # else those recorded are of the step before
        if slot is not None and not self._is_stepping and self._owners.get(id(slot), -1) in self._stepped:
            self._came_again.add(id(slot))
        if slot is None or id(slot) not in self._seen:
            return
        if self._is_stepping or self._owners.get(id(slot), 0) in self._stepped:
            return  # a closure may be called again: its first gradients count
        self._seen.discard(id(slot))
        self._replaced.add(id(slot))
        step = self._step()
        self._files.drop("grad", {slot.name}, step)
        norms = self._counts.pop("norms", 0)
        self._files.drop("scalar", {name + (f".{count}" if count else "") for count in range(norms)
                                    for name in ("grad_norm", "clip_coefficient")}, step)

    def stepped(self) -> None:
        """Records the parameters and the optimizer's state after a step."""
        self._require_open("rec.stepped() is called")
        self._begin_step()
        if not self._optimizers and self._replaced:  # by another backward pass, which nothing recorded
            self._record_gradients([slot for slot in self._chosen_slots if id(slot) in self._replaced])
        if self._is_recorded(self._step()):
            for index in set(range(len(self._optimizers))) - self._stepped:
                self._settings.add_rates(index)
            self._record_states(self._step())
            self._record_parameters(self._step())
        self._finished += 1
        self._batch = current.rows  # a later one may be of an evaluation
        self._in_step = False
        held = [(id(slot), held_gradient(slot.parameter)) for slot in self._chosen_slots]
        self._taken = {key: (weakref.ref(one), local_of(one)._version) for key, one in held if one is not None}
        self._stepped.clear()
        self._replaced.clear()
        self._came_again.clear()
        self._order.clear()

    def _require_open(self, what: str) -> None:
        """What comes after the end would be dropped without a word."""
        if not self.is_open:
            raise Error(f"{what}, and the recorder has ended", "Call it within the with-block, or before rec.close()")

    @property
    def is_open(self) -> bool:
        """Whether neither close() nor an exception within `with` has ended it."""
        return bool(self._ends)

    def close(self) -> None:
        """Writes the run. Calls after the first do nothing."""
        if not self._ends:
            return
        if self._stepped:  # not all optimizers step in the last step
            self.stepped()
        if not self._in_step:
            self._record_program(self._finished)
        self._end_watching()
        if not self._finished:
            raise Error("No optimizer step was seen", "Give record the optimizer that steps, or call rec.stepped()")
        self._place_micro_batches()
        self._files.write()
        if self.mesh.rank == 0:
            run_folder.write_header(self._out, self._header())

    # Hooks.

    def _watch(self, models, activations: list[str], hashes: list[str]) -> None:
        if self._noise:
            self._ends.append(self._noise.remove)
        self._order = ComputationOrder(models, self._slots, self._begin_step, self._gradient_came)
        self._ends += [self._order.remove, Clipping(self._record_clipped, self._clipped).remove]
        for index, optimizer in enumerate(self._optimizers):
            self._watch_steps(index, optimizer)
        for number, one in enumerate(models):
            if activations:
                self._ends.append(one.register_forward_pre_hook(
                    lambda _, given, named, number=number: self._begin_pass(number, (given, named)),
                    with_kwargs=True).remove)
            add_output = functools.partial(self._add_output, model=number)
            outermost = {}
            for name, module in names.named_modules(one):
                outermost.setdefault(name, module)  # a compiled or checkpointed module has the name of its wrapper
            for name, module in outermost.items():
                for patterns, add in ((activations, add_output), (hashes, self._add_hash)):
                    if name and names.is_any(name, patterns) and self._is_chosen(name):
                        self._ends.append(module.register_forward_hook(self._output_hook(name, add)).remove)

    def _watch_steps(self, index: int, optimizer) -> None:
        """Watches one of the optimizers, which together make a step. Without other optimizers all gradients are its own."""
        others = len(self._optimizers) > 1
        own = [slot for slot in self._chosen_slots if not others or self._owners.get(id(slot), index) == index]

        def makes_states() -> bool:
            """Whether a call is one that torch.distributed.checkpoint makes so that an optimizer has states: no backward
            pass has run, and all rates and gradients are 0."""
            return not self._order.saw_gradients() and optimizers.has_no_rate(optimizer) and \
                not any(gradient is not None and local_of(gradient).any()
                        for gradient in (slot.gradient() for slot in own))

        self._ends += optimizers.watch_steps(
            optimizer, lambda: self._record_gradients(own, optimizers.loss_scale_of(optimizer)),
            lambda: self._before_step(index, optimizer), lambda norm: self._after_step(index, norm),
            lambda: optimizers.overflows(optimizer) or makes_states())

    def _end_watching(self) -> None:
        for end in self._ends:
            end()
        self._ends = []

    def _begin_step(self) -> None:
        if not self._in_step:
            self._record_program(self._finished)  # only now, because scripts update buffers after optimizer.step()
            self._in_step = True
            self._is_stepping = False
            self._seen.clear()
            self._counts.clear()
            self._placed.clear()

    def _step(self) -> int:
        """The number of the step to which what is recorded now belongs. A step lasts until the next forward pass, so
        that what a script reports after optimizer.step() belongs to that step."""
        return self._finished + self._in_step

    def _before_step(self, index: int, optimizer) -> None:
        if index in self._stepped:  # the others do not step in each step
            self.stepped()
        self._begin_step()
        self._is_stepping = True
        if self._is_recorded(self._step()):
            self._settings.add_rates(index, optimizer)

    def _after_step(self, index: int, norm: float | None) -> None:
        self._is_stepping = False
        if norm is not None:
            self.scalar("grad_norm", norm)
        self._stepped.add(index)
        if len(self._stepped) == len(self._optimizers):
            self.stepped()

    def _clipped(self, norm: torch.Tensor, max_norm: float) -> None:
        if is_dtensor(norm):
            norm = norm.full_tensor()  # clipping has just summed it over the same ranks
        norm = norm.detach()
        if self._settings is not None and math.isfinite(max_norm):  # an infinite one measures the norm alone
            self._settings.max_norm = max_norm
        count = self._next("norms")
        suffix = f".{count}" if count else ""
        self.scalar("grad_norm" + suffix, norm)
        self.scalar("clip_coefficient" + suffix, torch.clamp(max_norm / (norm + CLIP_EPSILON), max=1.0))

    def _output_hook(self, name: str, add):
        def hook(_, inputs, output):
            tensor = output if isinstance(output, torch.Tensor) else first_tensor(output)
            if tensor is None or torch._C._current_graph_task_id() != -1:
                return  # a forward pass within the backward pass is a recomputation
            if self._is_recorded(self._step()):
                add(name, tensor)
        # A model that is compiled has imported torch._dynamo, which would trace the recorder too.
        return torch.compiler.disable(hook) if "torch._dynamo" in sys.modules else hook

    def _begin_pass(self, model: int, inputs) -> None:
        """Remembers a forward pass of one of the models."""
        if not self._is_recorded(self._step()) or torch._C._current_graph_task_id() != -1:
            return
        rows, passes = current.rows, self._passes.setdefault((self._step(), model), [])
        if rows is None:
            passes.append(Pass(None, False, torch.is_grad_enabled()))
            return
        expected = sum(one.size or 0 for one in passes if one.has_gradients == torch.is_grad_enabled())
        passes.append(Pass(rows, self._is_cut_into_rows_alone(rows), torch.is_grad_enabled(),
                           *micro_batches.rows_of(inputs, rows, expected)))

    def _add_output(self, name: str, tensor: torch.Tensor, model: int) -> None:
        number = len(self._passes.get((self._step(), model), ())) - 1
        for piece in self._pieces_of(name, tensor, "act", None, None):
            line = self._files.add("act", name, self._step(), piece, self._microbatch("act", name, piece),
                                   self._next("outputs"))
            self._outputs.setdefault((self._step(), model, name), []).append((line, number))

    def _place_micro_batches(self) -> None:
        has_stages = any(size > 1 and name in STAGE_AXES for name, size in self.mesh.axes)
        for (step, model, _), lines in self._outputs.items():
            if all(number >= 0 for _, number in lines):  # else the program calls a part of the model alone
                self._files.remove(micro_batches.place(lines, self._passes[step, model], has_stages))

    def _add_hash(self, name: str, tensor: torch.Tensor) -> None:
        rows = current.rows and current.rows.start
        for piece in self._pieces_of(name, tensor, "act", None, None):
            self._files.add_hash(name, self._step(), piece, self._microbatch("hash", name, piece),
                                 self._next("hashes"), rows)

    # Pieces.

    def _is_recorded(self, step: int) -> bool:
        return bool(self._ends) and (self._steps is None or step <= self._steps)

    def _is_chosen(self, name: str) -> bool:
        return self._only is None or names.is_any(name, self._only)

    def _record_parameters(self, step: int) -> None:
        for slot in self._chosen_slots:
            for piece in self._of_first_rows(slot, slot.pieces(slot.value())):
                self._files.add("param", slot.name, step, piece)

    def _record_states(self, step: int) -> None:
        inner = [one for optimizer in self._optimizers for one in optimizers.inner_optimizers(optimizer)]
        for slot in self._chosen_slots:
            count = slot.steps(inner)
            if count is not None:
                self._files.add("opt", f"step.{slot.name}", step, whole(torch.tensor(count), slot.source))
            for name, state in slot.states(inner).items():
                for piece in self._of_first_rows(slot, slot.pieces(state)):
                    self._files.add("opt", f"{name}.{slot.name}", step, piece)

    def _record_program(self, step: int) -> None:
        """Records buffers and random states as they are at the end of a step."""
        if not self._is_recorded(step):
            return
        for name, piece in self._buffers.pieces():
            if names.is_any(name, self._chosen_buffers) and self._is_chosen(name):
                self._files.add("buffer", name, step, piece)
        for name, piece in random_states():
            self._files.add_hash(name, step, piece, 0, 0, None, kind="random")

    def _of_first_rows(self, slot, pieces: list[Piece]) -> list[Piece]:
        if self._rows is None:
            return pieces
        if any(piece.offset is None and piece.flat is None for piece in pieces):
            raise Error(f'rows={self._rows}, but it is not known where the rows of "{slot.name}" lie on this rank',
                        'Declare its layout, such as layouts={"' + slot.name + '": shardproof.Replicate()}')
        return [part for piece in pieces if (part := of_first_rows(piece, self._rows)) is not None]

    def _pieces_of(self, name, tensor, kind, offset, global_shape) -> list[Piece]:
        """Where the elements lie of a tensor that is not a parameter's."""
        if offset is not None or global_shape is not None:
            offset, global_shape = given.place(name, tensor.shape, offset, global_shape)
            return [Piece(tensor, global_shape, offset, source="declared")]
        if is_dtensor(tensor):
            return [self._in_batch(piece) for piece in self._boxes.pieces(name, tensor)]
        tensor = local_of(tensor)
        placements = layout_of_output(name, self._layouts) if kind in ("act", "act_grad") else None
        if placements is not None:
            slot = DeclaredSlot(name, tensor, self.mesh, placements)
            return [self._in_batch(piece) for piece in slot.gradient_pieces(tensor)]
        rows = current.rows if kind != "scalar" else None
        if rows is not None and (kind == "logprobs" or self._is_whole_in_batch(tensor, rows)):
            return [rows.place(name, tensor, BY_ROWS if kind == "act" else "plain", self._placed)]
        if kind == "scalar" or self.mesh.world_size == 1:
            return [whole(tensor, "plain")]
        return [Piece(tensor, tensor.shape)]

    def _in_batch(self, piece: Piece) -> Piece:
        """Moves a piece of this rank's rows to its place in the global batch."""
        rows = current.rows
        if rows is not None and rows.count < rows.total and piece.global_shape[:1] == (rows.count,):
            piece.global_shape = (rows.total, *piece.global_shape[1:])
            piece.offset = (rows.start + piece.offset[0], *piece.offset[1:])
        return piece

    def _is_whole_in_batch(self, tensor: torch.Tensor, rows: Rows) -> bool:
        """Whether a plain tensor has this rank's rows, on a mesh where no axis could cut its other dims."""
        return self._is_cut_into_rows_alone(rows) and tensor.shape[:1] == (rows.count,)

    def _is_cut_into_rows_alone(self, rows: Rows) -> bool:
        """Whether no axis of the mesh could cut what a module gives but into rows of the batch: stages hold other modules."""
        uncut = (*self.mesh.batch_axes, *rows.axes, *STAGE_AXES)
        return all(size == 1 or name in uncut for name, size in self.mesh.axes)

    def _microbatch(self, kind: str, name: str, piece: Piece) -> int:
        """How many pieces of the same place were recorded of a name in this step."""
        return self._next((kind, name, piece.offset))

    def _next(self, what) -> int:
        """Counts what is recorded in a step."""
        count = self._counts.get(what, 0)
        self._counts[what] = count + 1
        return count

    def _partial_over(self, mean_over: Iterable[str], sum_over: Iterable[str]) -> Partial | None:
        mean_over, sum_over = (given.texts(option, axes, given.AXES)
                               for option, axes in (("mean_over", mean_over), ("sum_over", sum_over)))
        self.mesh.check_batch_axes((*mean_over, *sum_over))
        means, sums = self.mesh.known(mean_over), self.mesh.known(sum_over)
        if means and sums:
            raise Error(f"A tensor is a mean over {means} and a sum over {sums}", "Give one of mean_over and sum_over")
        return Partial(means or sums, "mean" if means else "sum") if means or sums else None

    def _is_float64(self) -> bool:
        """Whether all parameters are float64."""
        return all(slot.parameter.dtype == torch.float64 for slot in self._slots)

    def _header(self) -> dict:
        dtypes = self._files.dtypes or {slot.parameter.dtype for slot in self._slots}
        precisions = [dtype for dtype in PRECISIONS if dtype in dtypes]
        if not precisions:
            raise Error("no parameter and no recorded tensor has floating-point numbers", "Record the parameters that are trained, or outputs")
        header = {"made_by": versions(), "world_size": self.mesh.world_size,
                  "mesh": [{"axis": name, "size": size} for name, size in self.mesh.axes],
                  "precision": str(precisions[-1])[6:], "lifted": sorted(lift.lifted),
                  "steps": self._finished if self._steps is None else min(self._finished, self._steps)}
        if self.mesh.parts:
            header["parts"] = [{"axis": part.name, "stride": part.stride, "size": part.size} for part in self.mesh.parts]
        header["coordinates"] = [list(reversed(self.mesh.coordinates(rank).values()))
                                 for rank in range(self.mesh.world_size)]
        rows = self._batch or current.rows
        if rows is not None:
            header["batch"] = {"rows": rows.total, "parts": rows.total // max(rows.count, 1)}
        if self._settings is not None:
            header["optimizer"] = self._settings.fields()
        if self._matrices:
            header["matrices"] = self._matrices
        if self._from_step:
            header["from_step"] = self._from_step
        if self._repeat is not None:
            header["noise"] = self._repeat
        if self._rows is not None:
            header["rows"] = self._rows
        return header | {"only": self._only}


def first_tensor(output) -> torch.Tensor | None:
    """But no loss, which models of transformers give first."""
    return next((one for one in micro_batches.tensors_in(output) if one.ndim), None)


def check_is_not_golden(out: Path) -> None:
    if current.golden is not None and current.golden == out.resolve():
        raise Error(f'"{out}" holds the golden run from which this run starts', "Record into another folder")


def versions() -> dict[str, str]:
    """The packages that made the run, of those which are imported."""
    found = {"shardproof": __version__, "python": platform.python_version(), "torch": str(torch.__version__)}
    for name in ("transformers", "megatron.core", "deepspeed", "torchtitan", "accelerate"):
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is not None:
            found[name] = str(version)
    return found
