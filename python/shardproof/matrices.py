"""Matrix optimizers: how Muon moves a parameter, so that a judge can replay its step from what the ranks had."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import torch

from . import given, names
from .error import Error
from .optimizers import inner_optimizers


@dataclasses.dataclass(frozen=True)
class Muon:
    """What Muon computes of a matrix: `update = orthogonal(momentum)`, by iterations of Newton and Schulz.

    blocks        numbers of rows that repeat until the matrix is filled, each of which is made orthogonal for itself, such as
                  (64, 32, 32) for q, k and v in one matrix; () for the whole matrix at once
    momentum      the share of the state before. `average` says that the gradient has the rest, 1 - momentum; otherwise all
                  of the gradient is added
    nesterov      the update is made of the gradient and the new state, not of the state alone
    coefficients  a, b, c of an iteration X = a X + (b X X' + c (X X')^2) X
    iterations    how many there are
    state         the name under which the optimizer keeps the momentum
    """

    blocks: Sequence[int] = ()
    momentum: float = 0.95
    nesterov: bool = True
    average: bool = True
    coefficients: Sequence[float] = (3.4445, -4.7750, 2.0315)
    iterations: int = 5
    state: str = "momentum_buffer"

    def __post_init__(self):
        blocks, iterations = given.whole_numbers(self.blocks or ()), given.whole_number(self.iterations)
        coefficients = tuple(map(given.real_number, self.coefficients)) if isinstance(self.coefficients, Iterable) else ()
        momentum = given.real_number(self.momentum)
        if (blocks is None or iterations is None or iterations < 1 or len(coefficients) != 3 or None in (momentum, *coefficients)
                or not isinstance(self.state, str)):
            raise Error(f"An optimizer is {self}", "Give blocks whole numbers of rows, coefficients three numbers, iterations a whole "
                                                   "number from 1, momentum a number and state a text")
        for name, value in (("blocks", blocks), ("iterations", iterations), ("coefficients", coefficients), ("momentum", momentum)):
            object.__setattr__(self, name, value)


def fields(optimizers: Sequence, slots, declared: Mapping[str, Muon] | None) -> list[dict]:
    """What run.json says of them: each rule with its parameters. Those of torch.optim.Muon need no declaration but for
    blocks."""
    found: dict[str, dict] = {}
    rules = {}
    for one in (one for optimizer in optimizers for one in inner_optimizers(optimizer)):
        if isinstance(one, getattr(torch.optim, "Muon", ())):
            rules |= {id(parameter): rule_of(group) for group in one.param_groups for parameter in group["params"]}
    for slot in slots:
        rule = next((rules[key] for key in map(id, slot.keys()) if key in rules), None)
        for pattern, one in (declared or {}).items():
            if names.is_any(slot.name, [pattern]):
                check(slot, one)
                rule = one if rule is None else dataclasses.replace(rule, blocks=one.blocks)
                break
        if rule is not None:
            line = {name: list(value) if isinstance(value, (list, tuple)) else value
                    for name, value in dataclasses.asdict(rule).items()}
            found.setdefault(repr(line), line | {"parameters": []})["parameters"].append(slot.name)
    return list(found.values())


def rule_of(group: Mapping) -> Muon:
    """That of a group of torch.optim.Muon."""
    return Muon(momentum=float(group["momentum"]), nesterov=bool(group["nesterov"]),
                coefficients=tuple(map(float, group["ns_coefficients"])), iterations=int(group["ns_steps"]))


def check(slot, rule) -> None:
    if not isinstance(rule, Muon):
        raise Error(f'matrices: "{slot.name}" has {rule!r}', "Give a shardproof.Muon for each pattern")
    shape = tuple(slot.pieces(slot.value())[0].global_shape) if rule.blocks else ()
    rows, length = shape[0] if shape else 0, sum(rule.blocks)
    if rule.blocks and (min(rule.blocks) < 1 or rows % length):
        raise Error(f'matrices: "{slot.name}" has {rows} rows, and blocks of {" + ".join(map(str, rule.blocks))} rows '
                    f"make {length}", "Give numbers of rows of the whole matrix, which fill it once or several times")
