"""The safetensors format: 8 bytes of header length, a JSON header padded to 8 bytes, then the tensors' bytes."""

import ctypes
import json
import math
import struct
from pathlib import Path

import torch

from .error import reading

DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16,
          "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
          "BOOL": torch.bool}
CODES = {dtype: code for code, dtype in DTYPES.items()}


def size_in_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def write(path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> None:
    """Writes contiguous CPU tensors."""
    header, end = {"__metadata__": metadata} if metadata else {}, 0
    for key, tensor in tensors.items():
        begin, end = end, end + size_in_bytes(tensor)
        header[key] = {"dtype": CODES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            if tensor.numel():
                file.write((ctypes.c_char * size_in_bytes(tensor)).from_address(tensor.data_ptr()))


def _check(key: str, entry: object, bytes_there: int) -> None:
    """Refuses a tensor whose entry in the header is damaged, or whose bytes are not there."""
    try:
        shape, (begin, end) = entry["shape"], entry["data_offsets"]
        size = math.prod(shape) * DTYPES[entry["dtype"]].itemsize
        fits = min([begin, *shape]) >= 0 and end - begin == size
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f'the header says of "{key}": {entry}') from error
    if not fits:
        raise ValueError(f'"{key}" of shape {shape} and dtype {entry["dtype"]} does not have the bytes {begin} to {end}')
    if end > bytes_there:
        raise ValueError(f'it holds {bytes_there} bytes of tensors, and "{key}" ends at byte {end}')


class Reader:
    """Reads single tensors of a file."""

    def __init__(self, path: Path):
        self._path = path
        with reading(path), open(path, "rb") as file:
            length = struct.unpack("<Q", file.read(8))[0]
            size = path.stat().st_size
            if length > size - 8:
                raise ValueError(f"its header has {length} bytes, and it has {size}")
            self._header = json.loads(file.read(length))
            self._start = 8 + length
            if not isinstance(self._header, dict):
                raise ValueError("its header is not a JSON object")
            for key, entry in self._header.items():
                if key != "__metadata__":
                    _check(key, entry, size - self._start)

    def tensor(self, key: str) -> torch.Tensor:
        entry = self._header[key]
        dtype, (begin, end) = DTYPES[entry["dtype"]], entry["data_offsets"]
        if not math.prod(entry["shape"]):
            return torch.empty(entry["shape"], dtype=dtype)
        with open(self._path, "rb") as file:
            file.seek(self._start + begin)
            data = bytearray(file.read(end - begin))
        return torch.frombuffer(data, dtype=dtype).reshape(entry["shape"])
