"""Names of parameters and modules without what wrappers add, so that a wrapped model and a plain one agree."""

import difflib
import fnmatch
from collections.abc import Iterable, Iterator

import torch

from .error import Error

WRAPPERS = {
    "OptimizedModule": "_orig_mod",                     # torch.compile
    "DistributedDataParallel": "module",                # torch and Megatron
    "DataParallel": "module",
    "Float16Module": "module",                          # Megatron
    "DeepSpeedEngine": "module",
    "PipelineEngine": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",  # FSDP1 and Megatron's
    "CheckpointWrapper": "_checkpoint_wrapped_module",
}


def wrapped(module: torch.nn.Module) -> str | None:
    """The attribute under which a wrapper keeps its module, or None if this module is not a wrapper."""
    for kind in type(module).__mro__:
        attribute = WRAPPERS.get(kind.__name__)
        if attribute and attribute in module._modules:
            return attribute
    return None


def named_modules(module: torch.nn.Module, prefix: str = "") -> Iterator[tuple[str, torch.nn.Module]]:
    """Each module below `module`, itself first, with its clean name."""
    yield prefix, module
    inner = wrapped(module)
    for name, child in module._modules.items():
        if child is not None:
            yield from named_modules(child, prefix if name == inner else join(prefix, name))


def named_parameters(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Each parameter once, with the clean name under which it is first found."""
    seen = set()
    for prefix, owner in named_modules(module):
        for name, parameter in owner._parameters.items():
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                yield join(prefix, name), parameter


def is_any(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def check_patterns(option: str, patterns: Iterable[str], known: Iterable[str]) -> None:
    """Refuses patterns that fit no name."""
    known = [name for name in known if name]
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in known):
            near = difflib.get_close_matches(pattern, known, 1, 0)
            raise Error(f'{option}: none of the {len(known)} names of the model fits "{pattern}"',
                        f'Use * for any characters; the nearest name is "{near[0]}"' if near else "Leave it out")


def join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name
