"""A call of a rank in words, as the extension says it (csrc/call.h)."""

import os
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

import torch
import typing_extensions

MOST_LISTED, MOST_TEXT = 8, 495
FOLDERS = tuple(f"{folder}/" for folder in (Path(torch.__file__).parent, Path(__file__).parents[1],
                                            sysconfig.get_paths()["stdlib"]))
INSTALLED = ("site-packages/", "dist-packages/")  # the packages of the user lie below the standard library's folder
IN_PLACE, IN_PARTS = ("all_reduce", "broadcast", "reduce"), ("scatter", "reduce_scatter")
REDUCE_OPS = ("sum", "avg", "product", "min", "max", "bit_and", "bit_or", "bit_xor", "premul_sum")


@dataclass
class Call:
    op: str
    tensors: str = ""    # "[4] float32"
    reduce_op: str = ""
    direction: str = ""  # " from rank 0", " to rank 3 (tag 2)"
    key: str | None = None  # what must be equal on all members besides op and reduce op; the tensors
    sends: list = field(default_factory=list)    # all_to_all: what goes to each member
    expects: list = field(default_factory=list)  # and what comes from each
    strides: str = ""    # " with strides [1, 4]", where they count
    odd_strides: str = ""  # "[4, 4] float32 with strides [8, 2]": of a tensor of which Gloo makes wrong values
    site: str = ""
    sequence: int = 0

    def op_text(self) -> str:
        return (f"{self.op}({self.reduce_op})" if self.reduce_op else self.op) + self.direction

    def text(self) -> str:
        site = f" at {self.site}" if self.site else " from C++"
        return self.op_text() + (f" {self.tensors}" if self.tensors else "") + self.strides + site

    def record(self, rank: int) -> dict:
        """What the other members are told."""
        text = self.text()
        return {"rank": rank, "key": f"{self.op_text()}|{self.tensors if self.key is None else self.key}{self.strides}",
                "text": text if len(text) <= MOST_TEXT else text[:MOST_TEXT - 3] + "...",
                "sends": self.sends, "expects": self.expects}


def list_text(values) -> str:
    return "[" + ", ".join(map(str, values)) + "]"


def names(ranks) -> str:
    text = ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks[:MOST_LISTED]))
    return text if len(ranks) <= MOST_LISTED else f"{text} and {len(ranks) - MOST_LISTED} more"


def dtype_text(dtype) -> str:
    return str(dtype).removeprefix("torch.")


def message_key(tensors) -> str:
    """Without dims of size 1: a message of a number into [1] is received as it was sent."""
    return tensors_text([tensor.squeeze() for tensor in tensors])


def tensors_text(tensors) -> str:
    """"[4] float32"; of several "[4] [2, 3] float32"; equal neighbors once: "3 x [4] float32"."""
    words, dtype, start = [], "", 0
    while start < len(tensors):
        first, end = tensors[start], start
        while end < len(tensors) and (tensors[end].shape, tensors[end].dtype) == (first.shape, first.dtype):
            end += 1
        if dtype and dtype != dtype_text(first.dtype):
            words.append(dtype)
        dtype = dtype_text(first.dtype)
        words += [f"{end - start} x"] * (end - start > 1) + [list_text(first.shape)]
        start = end
    return " ".join([*words, dtype]) if words else ""


def strides_of(tensor, cloned: bool) -> list[int]:
    """Those of dims of size 1 mean nothing. `cloned`: of a clone, which has no gaps."""
    strides = (torch.empty_like(tensor, device="meta") if cloned else tensor).stride()
    return [1 if size == 1 else stride for size, stride in zip(tensor.shape, strides)]


def is_dense(tensor) -> bool:
    """Whether the elements lie in memory without gaps and without overlap, in any order of the dims."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True


def note_strides(call: Call, sent, received) -> None:
    """Notes what strides mean to Gloo, as csrc/strides.h does."""
    if call.op not in (*IN_PLACE, *IN_PARTS, "all_to_all_single"):
        return
    read = [*(sent if call.op != "all_to_all_single" else ()), *(received if call.op not in IN_PLACE else ())]
    first = None
    for index, tensor in enumerate(read):
        if tensor.layout != torch.strided:
            continue
        cloned = call.op == "reduce_scatter" and index < len(sent)  # gaps go by that
        dense = tensor.is_contiguous() or is_dense(tensor)
        strides = strides_of(tensor, cloned and not dense)
        first = strides if first is None else first
        text = f" with strides {list_text(strides)}"
        if not (cloned or dense) or strides != first or (call.op == "all_to_all_single" and not tensor.is_contiguous()):
            call.odd_strides = tensors_text([tensor]) + text
            return
        if dense and not tensor.is_contiguous():
            call.strides = text


def reduce_text(op) -> str:
    number = int(getattr(op, "op", op))  # of torch's RedOpType, whose names lie in the same order
    return REDUCE_OPS[number] if number < len(REDUCE_OPS) else "unused"


def call_site() -> str:
    """Where the user's program calls: the nearest frame outside of torch, this package and the standard library, or the
    outermost one."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not is_skipped(file) or (frame.f_back is None and not file.startswith(FOLDERS[1])):
            here = os.getcwd() + "/"
            return f"{file.removeprefix(here)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def is_skipped(file: str) -> bool:
    for folder in FOLDERS:
        if file.startswith(folder) and not file[len(folder):].startswith(INSTALLED):
            return True
    return file == typing_extensions.__file__ or file.startswith("<frozen")


def by_key(records: list[dict], verb: str) -> str:
    """"rank 1 calls all_reduce(max) .., ranks 0, 2 call all_reduce(sum) ..": the fewest first."""
    kinds: dict[str, list[dict]] = {}
    for record in records:
        kinds.setdefault(record["key"], []).append(record)
    order = sorted(kinds.values(), key=lambda kind: (len(kind), -kind[0]["rank"]))
    return ", ".join(f"{names([one['rank'] for one in kind])}{verb}{'s' if len(kind) == 1 else ''} {kind[0]['text']}"
                     for kind in order)
