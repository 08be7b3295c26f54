"""The folder of a recorded run: rank<r>.safetensors and rank<r>.jsonl of every rank, and run.json of rank 0."""

import contextlib
import dataclasses
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from . import safetensors_file
from .digest import digest
from .error import AGAIN, Error, reading
from .piece import Partial, Piece

FORMAT, VERSION, READ = "shardproof-run", 3, (1, 2, 3)
OURS = re.compile(r"(run\.json|rank(\d+)\.(safetensors|jsonl))(\.new)?|noise\d+")
CLAIM_SECONDS = timedelta(seconds=60)  # that the first rank may take to remove an earlier run
claims: dict[str, int] = {}            # how often this process has claimed a folder


def claim(folder: Path, rank: int, world_size: int) -> None:
    """Makes a folder ready for a run: removes an earlier run, and refuses foreign files."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:  # a file of this name, a disk that is full or read alone
        raise Error(f'"{folder}" cannot be a folder of a run: {error.strerror}', "Name another one with out=") from error
    foreign = sorted(path.name for path in folder.iterdir() if not OURS.fullmatch(path.name))
    if foreign:
        raise Error(f'The folder "{folder}" holds {len(foreign)} files that are not part of a run, such as '
                    f'"{foreign[0]}"', "Give record an out= folder that is empty or holds an earlier run")
    with first_claim(folder) as is_first:
        for path in sorted(folder.iterdir()):
            number = OURS.fullmatch(path.name)[2]
            owner = 0 if number is None or int(number) >= world_size else int(number)
            if owner == rank or is_first:
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


@contextlib.contextmanager
def first_claim(folder: Path) -> Iterator[bool]:
    """Whether this rank is the first of the run that claims the folder, and so removes the files of all ranks: else those of
    an earlier run would stand for a rank that does not record. The others wait until it has. They agree by the store of
    the process group, so that nobody waits for a rank that comes later or never. Without a store each has its own files."""
    key = f"shardproof/claim/{folder.resolve()}"
    claims[key] = claims.get(key, 0) + 1  # a program may record into one folder again
    key += f"/{claims[key]}"
    is_first, store = False, None
    if dist.is_available() and dist.is_initialized():
        with contextlib.suppress(Exception):  # a backend without a store, or with one that keeps nothing
            store = dist.distributed_c10d._get_default_store()
            is_first = store.add(key, 1) == 1
            if not is_first:
                store.wait([key + "/removed"], CLAIM_SECONDS)
    try:
        yield is_first
    finally:
        if is_first:
            store.set(key + "/removed", "")


def read_header(folder: Path) -> dict:
    """run.json of a whole run."""
    path = folder / "run.json"
    if not path.is_file():
        raise Error(f'The folder "{folder}" has no run.json, so it holds no whole run', AGAIN)
    with reading(path):
        header = json.loads(path.read_text())
    header = header if isinstance(header, dict) else {}
    if header.get("format") != FORMAT or header.get("version") not in READ:
        raise Error(f'"{path}" has the format {header.get("format")!r} of version {header.get("version")!r}, '
                    f"but this package reads {FORMAT!r} of versions {READ[0]} to {READ[-1]}", "Record the run with this package")
    return header


def read_lines(folder: Path, rank: int) -> list[dict]:
    """The lines of a rank's pieces."""
    path = folder / f"rank{rank}.jsonl"
    with reading(path):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
    if lines[-1:] != [{"end": len(lines) - 1}]:
        raise Error(f'"{path}" has {len(lines)} lines and no end', AGAIN)
    return lines[:-1]


class RankFiles:
    """Collects the pieces of one rank and writes them at the end."""

    def __init__(self, folder: Path, rank: int, max_bytes: int | None):
        self._folder = folder
        self._rank = rank
        self._max_bytes = max_bytes
        self._lines: list[Line] = []
        self._tensors: list[torch.Tensor | None] = []
        self.bytes = 0
        self.dtypes: set = set()

    def add(self, kind: str, name: str, step: int, piece: Piece, microbatch: int = 0, order: int | None = None) -> "Line":
        """Copies a piece, so that what the program does with the tensor afterwards does not matter. The place of the line
        that it returns may still be changed."""
        tensor = piece.tensor.detach()
        if tensor.dtype not in safetensors_file.CODES:
            raise Error(f'"{name}" has the dtype {tensor.dtype}, which the format does not hold',
                        f"Record it as one of {', '.join(str(one)[6:] for one in safetensors_file.CODES)}")
        self._lines.append(Line(kind, name, step, microbatch, order, tensor.dtype, tensor.shape, piece.global_shape,
                                piece.offset, piece.flat, piece.partial, piece.source, len(self._tensors)))
        self._tensors.append(tensor.to("cpu", copy=True).contiguous())
        self.dtypes.add(tensor.dtype)
        self.bytes += safetensors_file.size_in_bytes(tensor)
        if self._max_bytes is not None and self.bytes > self._max_bytes:
            raise Error(f"Rank {self._rank} has recorded {self.bytes} bytes in step {step}, but max_bytes is "
                        f"{self._max_bytes}", "Record fewer steps=, fewer names with only=, or raise max_bytes")
        return self._lines[-1]

    def drop(self, kind: str, names, step: int) -> None:
        """Forgets what was added of a step under one of these names."""
        begin = len(self._lines)
        while begin > 0 and self._lines[begin - 1].step == step:
            begin -= 1
        self.remove([line for line in self._lines[begin:] if line.kind == kind and line.name in names], begin)

    def remove(self, lines: Sequence["Line"], begin: int = 0) -> None:
        """Forgets these lines with values, of which none is before the place `begin`."""
        gone = set(map(id, lines))
        if not gone:
            return
        self._lines[begin:] = [line for line in self._lines[begin:] if id(line) not in gone]
        for line in lines:
            self.bytes -= safetensors_file.size_in_bytes(self._tensors[line.key])
            self._tensors[line.key] = None

    def add_hash(self, name: str, step: int, piece: Piece, microbatch: int, order: int, rows: int | None,
                 kind: str = "hash") -> None:
        """Adds the digest of a piece, and not its values."""
        tensor = piece.tensor
        self._lines.append(Line(kind, name, step, microbatch, order, tensor.dtype, tensor.shape, piece.global_shape,
                                piece.offset, piece.flat, piece.partial, piece.source, None, rows, digest(tensor)))

    def write(self) -> None:
        stem = self._folder / f"rank{self._rank}"
        tensors = {str(key): tensor for key, tensor in enumerate(self._tensors) if tensor is not None}
        replace(stem.with_suffix(".safetensors"), lambda path: safetensors_file.write(path, tensors))
        lines = [*(line.fields() for line in self._lines), {"end": len(self._lines)}]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        replace(stem.with_suffix(".jsonl"), lambda path: path.write_text(text))
        self._tensors, self._lines = [], []


@dataclasses.dataclass(slots=True)
class Line:
    """What is written of a piece. Its fields are put together at the end, so that a step need not wait for that."""

    kind: str
    name: str
    step: int
    microbatch: int
    order: int | None
    dtype: torch.dtype
    shape: Sequence[int]
    global_shape: Sequence[int]
    offset: Sequence[int] | None
    flat: tuple[int, int] | None
    partial: Partial | None
    source: str
    key: int | None
    rows: int | None = None
    digest: int | torch.Tensor = 0

    def fields(self) -> dict:
        line = {} if self.key is None else {"key": str(self.key)}
        line |= {"kind": self.kind, "name": self.name, "step": self.step, "microbatch": self.microbatch}
        if self.order is not None:
            line["order"] = self.order
        line |= {"dtype": str(self.dtype)[6:], "shape": list(self.shape), "global_shape": list(self.global_shape)}
        if self.flat is not None:
            line["flat"] = list(self.flat)
        else:
            line["offset"] = None if self.offset is None else list(self.offset)
        if self.partial is not None:
            line["partial"] = {"axes": list(self.partial.axes), "op": self.partial.op}
        line["source"] = self.source
        if self.rows is not None:
            line["rows"] = self.rows
        if self.key is None:
            line["digest"] = f"{int(self.digest) % 2**64:016x}"
        return line


def write_header(folder: Path, header: dict) -> None:
    header = {"format": FORMAT, "version": VERSION, **header}
    replace(folder / "run.json", lambda path: path.write_text(json.dumps(header, indent=1) + "\n"))


def replace(path: Path, write) -> None:
    """Writes a file under another name first, so that a file with its name is whole."""
    new = path.with_name(path.name + ".new")
    write(new)
    os.replace(new, path)
