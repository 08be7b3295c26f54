"""How two sets of weights differ, and whether one is the other in another order."""

from collections.abc import Mapping

import torch


def difference(golden: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor]) -> dict | None:
    """The first weights that differ, how many do, and what the difference looks like; None if none differs."""
    wrong = [name for name in golden if name not in found or not torch.equal(golden[name], found[name])]
    if not wrong:
        return None
    first = wrong[0]
    return {"tensor": first, "count": len(wrong), "of": len(golden),
            "pattern": pattern(golden[first].detach(), found[first].detach()) if first in found else "it is missing"}


def pattern(golden: torch.Tensor, found: torch.Tensor) -> str:
    if golden.shape != found.shape:
        return f"its shape is {list(found.shape)} and not {list(golden.shape)}"
    count = int((golden != found).sum())
    text = f"{count} of its {golden.numel()} elements differ"
    if not torch.equal(golden.flatten().sort().values, found.flatten().sort().values):
        return text
    for dim in range(golden.ndim):
        order = order_along(golden, found, dim)
        if order is not None:
            return f"{text}; the slices of dim {dim} are in the order {shortened(order)}"
    return f"{text}; it has the same elements in another order"


def order_along(golden: torch.Tensor, found: torch.Tensor, dim: int) -> list[int] | None:
    """The slices of golden that found has along a dim, if all of them are slices of golden."""
    rows, others = (one.movedim(dim, 0).flatten(1) for one in (golden, found))
    places = {tuple(row.tolist()): index for index, row in enumerate(rows)}
    order = [places.get(tuple(row.tolist())) for row in others]
    return None if None in order else order


def shortened(order: list[int]) -> str:
    """[0, 1, 8, 9, 2, ..] as runs: 0-1, 8-9, 2-.."""
    runs: list[list[int]] = []
    for index in order:
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    words = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    return ", ".join(words[:8] + ["..."] * (len(words) > 8))
