"""What runs in each process of a scored command: notes calls and weights, and plants the fault of this run.

Groups of Gloo with two or more ranks are made by the backend shardproof, which plants faults but checks nothing, and
which the program does not see: dist.get_backend() is still "gloo". Weights are reached by torch's global hooks.
"""

import importlib.abc
import inspect
import json
import os
import sys
import tempfile
from pathlib import Path

FOLDER, TESTS, WEIGHT = "SHARDPROOF_SCORE", "SHARDPROOF_SCORE_TESTS", "SHARDPROOF_WEIGHT_FAULT"
WEIGHT_KINDS = ("corrupt", "shift", "stale")


class Finder(importlib.abc.MetaPathFinder):
    """Calls a function once a module has been imported, before its importer goes on."""

    def __init__(self, then):
        self._then = then

    def find_spec(self, name, path=None, target=None):
        then = self._then.pop(name, None)
        if then is None:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                then(module)
            spec.loader.exec_module = exec_module
        return spec


def watch_imports() -> None:
    if os.environ.get(FOLDER):
        sys.meta_path.insert(0, Finder({"torch.distributed.distributed_c10d": wrap_gloo,
                                        "torch.optim.optimizer": watch_steps,
                                        "torch.nn.modules.module": watch_modules}))


def note_folder() -> Path:
    """A new folder for what one process, or one of its worlds, notes."""
    return Path(tempfile.mkdtemp(dir=os.environ[FOLDER]))


def test_name() -> str:
    return os.environ.get("PYTEST_CURRENT_TEST", "")


# Collectives.

def wrap_gloo(c10d) -> None:
    """Lets _new_process_group_helper make our backend in place of Gloo's."""
    real = getattr(c10d, "ProcessGroupGloo", None)
    if real is None:
        return
    helper = c10d._new_process_group_helper
    signature = inspect.signature(helper)
    groups: list[tuple] = []  # (name, global ranks) of the group that is being made

    def new_helper(*given, **options):
        found = signature.bind(*given, **options).arguments
        groups.append((found["group_name"], list(found["global_ranks_in_group"])))
        try:
            return helper(*given, **options)
        finally:
            groups.clear()

    class Gloo(type):
        def __call__(cls, *given, **options):
            if not groups:
                return real(*given, **options)
            name, ranks = groups.pop()
            store, rank, size = given
            if size == 1:  # no fault is planned in it; a golden of one rank must stay right
                return real(*given, **options)
            from .. import backend
            if c10d._world.default_pg is None:
                os.environ["SHARDPROOF_CALLS"] = str(note_folder())
            return backend.make(store, rank, ranks or list(range(size)), name, options["timeout"], {"cpu": "gloo"})

        def __instancecheck__(cls, value):
            return isinstance(value, real) or type(value).__module__ == "_shardproof_backend"

        def __getattr__(cls, name):
            return getattr(real, name)

    c10d._new_process_group_helper = new_helper
    c10d.ProcessGroupGloo = Gloo("ProcessGroupGloo", (), {})


# Weights.

class Weights:
    """The outermost modules of this process, and the fault of this run."""

    def __init__(self):
        text = os.environ.get(WEIGHT)
        self.fault = json.loads(text) if text else None
        self._test = None
        self._seen: set[int] = set()
        self._kept: list = []            # the modules, so that no other gets their id
        self._counts: dict[str, int] = {}
        self._targets: list = []         # the parameters in which the fault acts
        self._before: list = []
        self._file = None

    def on_forward(self, module, _) -> None:
        if id(module) in self._seen and self._test == test_name():
            return
        import torch
        if not torch.distributed.is_initialized() or torch.distributed.get_world_size() == 1:
            return
        if self._test != test_name():
            self._test = test_name()
            self._seen.clear()
            self._kept.clear()
            self._counts.clear()
            self._targets.clear()
        if id(module) in self._seen:
            return
        parameters = dict(module.named_parameters())
        self._kept.append(module)
        self._seen.update(map(id, module.modules()))
        if not parameters:
            return
        kind = type(module).__name__
        number = self._counts[kind] = self._counts.get(kind, 0) + 1
        for name, parameter in parameters.items():
            if self.fault is None:
                self.note(test=self._test, model=kind, number=number, name=name, shape=list(local(parameter).shape))
            elif (kind, number, name) == tuple(self.fault[key] for key in ("model", "number", "name")):
                self.act(parameter)

    def act(self, parameter) -> None:
        import torch
        if self.fault["rank"] != torch.distributed.get_rank():
            return
        if self.fault["kind"] == "stale":
            self._targets.append(parameter)
            return
        tensor = local(parameter.detach())
        if self.fault["kind"] == "shift":
            spoiled = tensor.roll(1, 0)
        else:
            spoiled = tensor.clone()
            largest = spoiled.abs().flatten().argmax()
            spoiled.view(-1)[largest] *= 2
        if not torch.equal(spoiled, tensor):
            tensor.copy_(spoiled)
            self.note_fault()

    def before_step(self, *_) -> None:
        if self.fault is None and self._file:
            self.note(test=self._test, stepped=True)
        self._before = [local(parameter.detach()).clone() for parameter in self._targets]

    def after_step(self, *_) -> None:
        for parameter, before in zip(self._targets, self._before):
            tensor = local(parameter.detach())
            if not before.equal(tensor):
                tensor.copy_(before)
                self.note_fault()

    def note_fault(self) -> None:
        import torch
        (note_folder() / f"rank{torch.distributed.get_rank()}.faults").write_text("weight\n")

    def note(self, **line) -> None:
        import torch
        rank = torch.distributed.get_rank()
        if self._file is None or self._file.name.rsplit("/", 1)[1] != f"rank{rank}.weights":
            self._file = open(note_folder() / f"rank{rank}.weights", "w", buffering=1)
        self._file.write(json.dumps(line) + "\n")


def local(tensor):
    """The elements of this rank."""
    return getattr(tensor, "_local_tensor", tensor)


weights = Weights()


def watch_modules(module) -> None:
    module.register_module_forward_pre_hook(weights.on_forward)


def watch_steps(module) -> None:
    module.register_optimizer_step_pre_hook(weights.before_step)
    module.register_optimizer_step_post_hook(weights.after_step)
