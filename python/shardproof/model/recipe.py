"""How a model is built on one rank, loaded on the ranks of a layout, and saved: of transformers, or of a function."""

import importlib.util
import inspect
import os
import sys
from pathlib import Path

import torch

from .. import golden
from ..error import Error
from . import families, tiny

AXES = ("dp", "fsdp", "tp", "ep")
DROPOUT = ("dropout", "jitter", "layerdrop", "drop_path")


def find(name: str):
    """The recipe of a name: a family, a folder with a config.json, or module:function."""
    return OfFunction(name) if ":" in name and not Path(name).exists() else OfTransformers(name)


class Recipe:
    """What all recipes share: a PreTrainedModel is saved and loaded by its own functions."""

    def __init__(self, name: str):
        self.name = name

    @property
    def is_of_packages(self) -> bool:
        """Whether the versions of the packages say what it builds. The code of a function, or a config.json, may change."""
        return ":" not in self.name and not Path(self.name).exists()

    def load(self, model_class, folder: Path, layout):
        """The model of transformers from a checkpoint, cut for the layout as transformers does it."""
        from transformers.distributed.configuration_utils import DistributedConfig
        sizes = layout.sizes
        options = {"dtype": torch.float64, "attn_implementation": "eager"}
        if layout.world_size == 1 or set(sizes) == {"dp"}:
            model = model_class.from_pretrained(folder, **options)
            return replicated(model) if layout.world_size > 1 else model
        given = DistributedConfig(tp_size=sizes["tp"], fsdp_size=sizes["fsdp"] * sizes["ep"], ep_size=sizes["ep"],
                                  dp_replicate_size=sizes["dp"])
        return model_class.from_pretrained(folder, distributed_config=given, **options)


class OfTransformers(Recipe):
    """A tiny model of a family."""

    def __init__(self, name: str, family: families.Family | None = None):
        super().__init__(name)
        self.family = family or families.find(name)

    def build(self, layout) -> torch.nn.Module:
        config = tiny.config_of(self.family)
        without_dropout(config)
        return tiny.build(self.family, config)

    def start(self, folder: Path, layout, golden_run: Path | None):
        return self.load(self.family.model, folder, layout)


def without_dropout(config) -> None:
    """Turns off what draws random numbers."""
    for name, value in config.to_dict().items():
        if any(word in name for word in DROPOUT) and isinstance(value, float):
            setattr(config, name, 0.0)


class OfFunction(Recipe):
    """What a function returns: a model of transformers, or any module. A function that takes `layout` cuts it itself."""

    def __init__(self, name: str):
        super().__init__(name)
        module, _, function = name.partition(":")
        try:
            self._function = getattr(importlib.import_module(module), function)
            self._cuts_itself = "layout" in inspect.signature(self._function).parameters
        except Exception as error:  # the module is the user's, and may raise anything
            raise Error(f'"{name}" is not a function that can be called: {type(error).__name__}: {error}',
                        "Write module:function, with the module in PYTHONPATH") from None

    def build(self, layout) -> torch.nn.Module:
        torch.manual_seed(0)
        model = self._function(layout) if self._cuts_itself else self._function()
        for module in model.modules():
            if isinstance(module, torch.nn.modules.dropout._DropoutNd):
                module.p = 0.0
        if hasattr(getattr(model, "config", None), "to_dict"):
            without_dropout(model.config)
        return model

    def start(self, folder: Path, layout, golden_run: Path | None):
        if layout.world_size == 1 or self._cuts_itself:
            model = self.build(layout)
        elif is_of_transformers(model := self.build(layout)):
            return self.load(type(model), folder, layout)
        else:
            model = cut(model, layout, self.name)
        if golden_run is not None:
            golden.load(model, golden_run)
        return model


def cut(model: torch.nn.Module, layout, name: str) -> torch.nn.Module:
    """DDP, or FSDP2 of each part of the lists of modules."""
    from torch.distributed.fsdp import fully_shard
    axes = set(layout.sizes)
    if axes == {"dp"}:
        return replicated(model)
    if axes != {"fsdp"}:
        raise Error(f'"{name}" returns a {type(model).__name__}, of which nothing says how "{layout}" cuts it',
                    "Let the function take the argument layout, and cut the model by layout.sizes itself")
    for module in model.modules():
        if isinstance(module, torch.nn.ModuleList):
            for part in module:
                fully_shard(part)
    return fully_shard(model)


def replicated(model: torch.nn.Module) -> torch.nn.Module:
    """As the trainer of transformers does it. Parameters without a gradient would keep buckets from being reduced."""
    return torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)


def is_of_transformers(model) -> bool:
    return hasattr(model, "save_pretrained") and hasattr(model, "config")


def plain(model: torch.nn.Module) -> torch.nn.Module:
    """The model without DistributedDataParallel."""
    return model.module if isinstance(model, torch.nn.parallel.DistributedDataParallel) else model


def patch_transformers(is_needed: bool) -> None:
    """What lets transformers run in float64 and in forks. A loader with threads of its own would hang there."""
    lacking = [name for name in ("transformers", "accelerate", "psutil") if importlib.util.find_spec(name) is None]
    if lacking and is_needed:
        raise Error(f"A model by name needs transformers, accelerate and psutil, and {' and '.join(lacking)} cannot be "
                    f"imported by {sys.executable}", "Install them beside torch, or give module:function")
    if lacking:
        return
    os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"
    import transformers
    from transformers.integrations import moe
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    divide_as_in_float32()
    grouped = moe._can_use_grouped_mm
    moe._can_use_grouped_mm = lambda x, *rest: x.dtype != torch.float64 and grouped(x, *rest)


def divide_as_in_float32() -> None:
    """Lets FSDP2 divide gradients in float64 as it does in float32. In float64 it divides twice on a mesh of one rank, which
    is a defect of its own (examples/upstream/torch_fsdp2_one_rank_factor.py), and users of float32 do not have it."""
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives as collectives
    found = getattr(collectives, "_get_gradient_divide_factors", None)
    if found is None:
        return

    def factors(reduce_scatter_group, all_reduce_group, reduce_dtype, *rest, **options):
        dtype = torch.float32 if reduce_dtype is torch.float64 else reduce_dtype
        return found(reduce_scatter_group, all_reduce_group, dtype, *rest, **options)
    collectives._get_gradient_divide_factors = factors
