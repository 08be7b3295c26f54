"""Records which experts each token was sent to, in the file that `shardproof logprobs` reads beside one of logprobs."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from . import given, names, safetensors_file
from .error import Error
from .sources.find import models_of


def routes(model: torch.nn.Module, routers: str | Sequence[str], *, rows: int, sequence_first: bool = False,
           ids: Callable | None = None) -> "Routes":
    """Watches the forward passes within a with-block; save(path) writes what was chosen.

    routers         patterns of the routers' names: "*.mlp.gate" (transformers), "*.mlp.router" (Megatron-core)
    rows            how many rows of the batch a forward pass has
    sequence_first  the router's tokens are [S, B], as Megatron-core has them, and not [B, S]
    ids             what gives the ids [tokens, K] of a router's output, where it is neither a tensor of integers nor a
                    mask [tokens, experts] in the output
    """
    return Routes(models_of([model])[0], given.texts("routers", routers, 'Name the routers, such as "*.mlp.gate"'),
                  given.number("rows", rows, 1, "Give the number of rows of one forward pass"), sequence_first, ids or ids_in)


def ids_in(output) -> torch.Tensor:
    """The ids [tokens, K] in a router's output: its tensor of integers, or the places of True in its mask."""
    parts = output if isinstance(output, (list, tuple)) else [output]
    tensors = [one for one in parts if isinstance(one, torch.Tensor) and one.ndim >= 2]
    for one in tensors:
        if not one.is_floating_point() and one.dtype != torch.bool:
            return one.reshape(-1, one.shape[-1])
    for one in tensors:
        if one.dtype == torch.bool:
            return of_mask(one.reshape(-1, one.shape[-1]))
    raise Error("A router's output holds no tensor of integers and no mask", "Name its ids with ids=")


def of_mask(mask: torch.Tensor) -> torch.Tensor:
    """The ids of each row of a mask [tokens, experts], ascending; -1 where a token has fewer than others."""
    most = max(int(mask.sum(-1).max()), 1)
    order = torch.arange(mask.shape[-1], device=mask.device).masked_fill(~mask, mask.shape[-1]).sort(-1).values[:, :most]
    return order.masked_fill(order == mask.shape[-1], -1)


class Routes:
    """The chosen experts of each router. Several forward passes, such as microbatches, are put after each other as rows."""

    def __init__(self, model, patterns: list[str], rows: int, sequence_first: bool, ids: Callable):
        self._rows, self._sequence_first, self._ids = rows, sequence_first, ids
        modules = dict(names.named_modules(model))
        if not patterns:
            raise Error("No pattern of routers is given", given.PATTERNS)
        names.check_patterns("routers", patterns, modules)
        self._routers = {name: module for name, module in modules.items() if names.is_any(name, patterns)}
        self._chosen: dict[str, list[torch.Tensor]] = {name: [] for name in self._routers}
        self._handles: list = []

    def __enter__(self) -> "Routes":
        self._handles = [module.register_forward_hook(self._hook(name)) for name, module in self._routers.items()]
        return self

    def __exit__(self, *_) -> None:
        for handle in self._handles:
            handle.remove()

    def _hook(self, name: str):
        def hook(_, inputs, output):
            if torch._C._current_graph_task_id() != -1:
                return  # a forward pass within the backward pass is a recomputation
            chosen = self._ids(output)
            if not isinstance(chosen, torch.Tensor) or chosen.ndim != 2 or chosen.is_floating_point():
                what = f"{chosen.dtype} {list(chosen.shape)}" if isinstance(chosen, torch.Tensor) else type(chosen).__name__
                raise Error(f'ids= gives {what} of "{name}"', "Let it give a tensor of integers [tokens, K]")
            chosen = chosen.detach().cpu().to(torch.int32)
            tokens, count = chosen.shape
            if tokens % self._rows:
                raise Error(f'"{name}" has {tokens} tokens, which are not rows of one length for rows={self._rows}',
                            "Give the number of rows of one forward pass; pad rows to one length")
            if self._sequence_first:
                chosen = chosen.reshape(-1, self._rows, count).transpose(0, 1)
            self._chosen[name].append(chosen.reshape(self._rows, -1, count))
        return hook

    def tensor(self) -> torch.Tensor:
        """[layers, B, S, K], in the order of the model's modules; -1 where a router chose fewer experts."""
        unused = [name for name, passes in self._chosen.items() if not passes]
        if unused:
            raise Error(f'The router "{unused[0]}" was not called', "Run a forward pass within the with-block")
        most = max(one.shape[-1] for passes in self._chosen.values() for one in passes)

        def padded(one):
            return torch.nn.functional.pad(one, (0, most - one.shape[-1]), value=-1)
        layers = [torch.cat([padded(one) for one in passes]) for passes in self._chosen.values()]
        if len({one.shape for one in layers}) > 1:
            raise Error(f"The routers saw {[list(one.shape[:2]) for one in layers]} tokens",
                        "Name routers that are called equally often")
        return torch.stack(layers).contiguous()

    def layers(self) -> list[int]:
        """The number of each router's layer: the first number in its name."""
        numbers = [re.search(r"(?:^|\.)(\d+)(?:\.|$)", name) for name in self._routers]
        if any(one is None for one in numbers):
            return list(range(len(numbers)))
        found = [int(one[1]) for one in numbers]
        return found if found == sorted(set(found)) else list(range(len(found)))

    def save(self, path) -> Path:
        """Writes NAME.routes.safetensors beside `path`, which is the file of logprobs NAME.safetensors."""
        path = Path(path)
        path = path.with_name(path.name.removesuffix(".safetensors").removesuffix(".routes") + ".routes.safetensors")
        if not path.parent.is_dir():
            raise Error(f'There is no folder "{path.parent}" for "{path.name}"', "Make it first, or name another one")
        safetensors_file.write(path, {"routes": self.tensor()}, {"layers": ",".join(map(str, self.layers()))})
        return path
