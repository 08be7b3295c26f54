"""Reads a recorded run without the code under test, and puts global tensors together from the ranks' pieces."""

import json
import struct
from pathlib import Path

import torch

DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "I64": torch.int64}


def tensors(path):
    """All tensors of a safetensors file."""
    data = Path(path).read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    found = {}
    for key, entry in json.loads(data[8:8 + length]).items():
        begin, end = entry["data_offsets"]
        part = bytearray(data[8 + length + begin:8 + length + end])
        empty = torch.empty(entry["shape"], dtype=DTYPES[entry["dtype"]])
        found[key] = torch.frombuffer(part, dtype=empty.dtype).reshape(entry["shape"]) if part else empty
    return found


def lines(folder, rank=0):
    text = (Path(folder) / f"rank{rank}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def rank_pieces(folder, rank):
    """(line, tensor) of each piece of a rank that has values, in the order recorded."""
    *there, end = lines(folder, rank)
    assert end == {"end": len(there)}
    held = tensors(Path(folder) / f"rank{rank}.safetensors")
    return [(line, held[line["key"]]) for line in there if "key" in line]


def header(folder):
    return json.loads((Path(folder) / "run.json").read_text())


def pieces(folder, **wanted):
    """(rank, line, tensor) of the pieces of all ranks whose lines hold the wanted values."""
    return [(rank, line, tensor) for rank in range(header(folder)["world_size"])
            for line, tensor in rank_pieces(folder, rank)
            if all(line.get(name) == value for name, value in wanted.items())]


def names(folder, **wanted):
    return sorted({line["name"] for _, line, _ in pieces(folder, **wanted)})


def whole(folder, **wanted):
    """The global tensor of one (kind, name, step). Fails if an element is missing, or if replicas differ."""
    found = pieces(folder, **wanted)
    assert found, f"no piece of {wanted}"
    shape = found[0][1]["global_shape"]
    full = torch.zeros(shape, dtype=found[0][2].dtype)
    seen = torch.zeros(shape, dtype=torch.bool)
    for rank, line, tensor in found:
        assert line["global_shape"] == shape and line["shape"] == list(tensor.shape)
        values, marks = part(full, line), part(seen, line)
        old = values[marks]
        assert torch.equal(old, tensor[marks]), f"rank {rank} holds another replica of {line}"
        values.copy_(tensor)
        marks.fill_(True)
    assert seen.all(), f"{int((~seen).sum())} elements of {wanted} are on no rank"
    return full


def part(full, line):
    """The elements of a global tensor that a line says to hold."""
    if "flat" in line:
        return full.view(-1)[line["flat"][0]:line["flat"][1]]
    return full[tuple(slice(start, start + size) for start, size in zip(line["offset"], line["shape"]))]
