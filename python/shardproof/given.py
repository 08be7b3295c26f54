"""What a program gives to this package is refused where it is given, before it does harm elsewhere."""

import math
from collections.abc import Iterable, Mapping, Sequence

import torch

from .error import Error

PATTERNS = "Give a pattern of names, such as \"*.mlp.*\", or a list of patterns"
LAYOUTS = 'Give a dictionary from patterns of names to layouts: layouts={"*.up_proj.weight": shardproof.Shard(0, "tp")}'
LONGEST_NAME = 1000  # of what a script records
AXES = "Give the name of an axis, or a tuple of names"


def whole_number(value) -> int | None:
    """The value as an int, if it is one: 2, 2.0 and NumPy's 2, but not 1.5, "2" and True."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None
    return number if number == value and not isinstance(value, bool) else None


def whole_numbers(value) -> tuple[int, ...] | None:
    """A sequence of whole numbers, or None."""
    found = tuple(map(whole_number, value)) if isinstance(value, Iterable) else (None,)
    return None if None in found else found


def real_number(value) -> float | None:
    """The value as a float, if it is a finite number: 0.9 and NumPy's, but not "0.9", True and NaN."""
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None
    return found if math.isfinite(found) and not isinstance(value, (bool, str)) else None


def number(option: str, value, least: int, fix: str) -> int:
    """The value of an option that is a whole number, `least` or more."""
    found = whole_number(value)
    if found is None or found < least:
        raise Error(f"{option} is {value!r}", fix)
    return found


def number_or_none(option: str, value, fix: str) -> int | None:
    """The value of an option that is a whole number, 1 or more, or None."""
    return None if value is None else number(option, value, 1, fix)


def bytes_or_none(option: str, value, fix: str) -> int | None:
    """The value of an option that is a number of bytes, 0.3 * 2**30 among them; None and infinity: any."""
    if value is None or value == math.inf:
        return None
    return number(option, math.floor(found) if (found := real_number(value)) is not None else value, 1, fix)


def texts(option: str, value, fix: str) -> list[str]:
    """The value of an option that is a text or several."""
    found = [value] if isinstance(value, str) else list(value) if isinstance(value, Iterable) else [None]
    if not all(isinstance(one, str) for one in found):
        raise Error(f"{option} is {value!r}", fix)
    return found


def by_pattern(option: str, value, fix: str) -> None:
    """Refuses what is no dictionary whose keys are patterns; None stands for an empty one."""
    if value is not None and not (isinstance(value, Mapping) and all(isinstance(one, str) for one in value)):
        raise Error(f"{option} is {value!r}", fix)


def tensor(name: str, value) -> torch.Tensor:
    """A tensor whose values can be recorded under a name."""
    if not isinstance(name, str):
        raise Error(f"What is recorded has the name {name!r}", "Give a text")
    if not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        raise Error(f"What is recorded has the name {name[:40]!r} of {len(name)} characters",
                    f"Give one of 1 to {LONGEST_NAME} characters without line ends and other control characters")
    if not isinstance(value, torch.Tensor):
        raise Error(f'"{name}" is a {type(value).__name__} and no tensor',
                    "Give rec.tensor and rec.logprobs a torch.Tensor, rec.scalar a number")
    if value.is_meta or value.layout != torch.strided:
        kind = "is on the meta device" if value.is_meta else f"has the layout {value.layout}"
        raise Error(f'"{name}" {kind}, of which no values are recorded', "Give a dense tensor on another device")
    return value


def place(name: str, shape: Sequence[int], offset, global_shape) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The offset and the global shape of a tensor that lies there."""
    starts, sizes = whole_numbers(offset), whole_numbers(global_shape)
    if starts is None or sizes is None or not len(starts) == len(sizes) == len(shape) or \
            any(not 0 <= start <= size - own for start, own, size in zip(starts, shape, sizes)):
        raise Error(f'"{name}" has the shape {list(shape)}, the offset {offset} and the global shape {global_shape}',
                    "Give both, with one whole number per dim, so that the tensor lies within the global shape")
    return starts, sizes
