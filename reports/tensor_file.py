"""Reads tensors/<case>.safetensors of a run's folder: what ranks held of the tensors that failed first."""

import json
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

DTYPES = {"F64": "<f8", "I64": "<i8"}
LARGEST_HEADER = 1 << 24


@dataclass
class Piece:
    """One rank's part of one tensor: flat arrays of equal length."""
    rank: int
    microbatch: int
    golden: np.ndarray
    actual: np.ndarray
    index: np.ndarray  # flat index in the whole tensor, -1 padding


def read(path):
    """{name: array}; empty when the file is not there, or is none of ours."""
    try:
        data = Path(path).read_bytes()
        size = struct.unpack_from("<Q", data)[0]
        if size > LARGEST_HEADER:
            return {}
        header = json.loads(data[8:8 + size])
        arrays = {}
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            array = np.frombuffer(data[begin:end], dtype=DTYPES[entry["dtype"]])
            arrays[name] = array.reshape(entry["shape"])
        return arrays
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error):
        return {}


def pieces_of(arrays, tensor, step):
    """The pieces of one tensor of one step, by rank and microbatch."""
    found = []
    for name, golden in arrays.items():
        if not name.endswith("/golden"):
            continue
        stem = name[:-len("/golden")]
        rank, _, rest = stem.partition("/")
        rest, _, microbatch = rest.partition("#")
        rest, _, at_step = rest.partition("@")
        if rest != tensor or int(at_step or 1) != max(step, 1):
            continue
        parts = [arrays.get(stem + "/actual"), arrays.get(stem + "/index")]
        if any(part is None or part.shape != golden.shape for part in parts):
            continue
        actual, index = parts
        found.append(Piece(int(rank.removeprefix("rank")), int(microbatch or 0), golden.ravel(), actual.ravel(),
                           index.ravel()))
    return sorted(found, key=lambda piece: (piece.rank, piece.microbatch))
