"""The folder of a recorded run: rank<r>.safetensors and rank<r>.jsonl of every rank, and run.json of rank 0."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

from . import safetensors_file
from .digest import digest
from .error import Error
from .piece import Piece

FORMAT, VERSION, READ = "shardproof-run", 2, (1, 2)
OURS = re.compile(r"(run\.json|rank(\d+)\.(safetensors|jsonl))(\.new)?|noise\d+")


def claim(folder: Path, rank: int, world_size: int) -> None:
    """Makes a folder ready for a run: removes this rank's files of an earlier run, and refuses foreign ones."""
    folder.mkdir(parents=True, exist_ok=True)
    foreign = sorted(path.name for path in folder.iterdir() if not OURS.fullmatch(path.name))
    if foreign:
        raise Error(f'The folder "{folder}" holds {len(foreign)} files that are no part of a run, such as '
                    f'"{foreign[0]}"', "Give record an out= folder that is empty or holds an earlier run")
    for path in sorted(folder.iterdir()):
        number = OURS.fullmatch(path.name)[2]
        owner = 0 if number is None or int(number) >= world_size else int(number)
        if owner == rank:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def read_header(folder: Path) -> dict:
    """run.json of a whole run."""
    path = folder / "run.json"
    if not path.is_file():
        raise Error(f'The folder "{folder}" has no run.json, so it holds no whole run',
                    "Record the run again, and let it reach its end")
    header = json.loads(path.read_text())
    if header.get("format") != FORMAT or header.get("version") not in READ:
        raise Error(f'"{path}" has the format {header.get("format")!r} of version {header.get("version")!r}, '
                    f"but this package reads {FORMAT!r} of versions {READ[0]} to {READ[-1]}", "Record the run with this package")
    return header


def read_lines(folder: Path, rank: int) -> list[dict]:
    """The lines of a rank's pieces."""
    path = folder / f"rank{rank}.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    if not lines or lines[-1].get("end") != len(lines) - 1:
        raise Error(f'"{path}" has {len(lines)} lines and no end', "Record the run again, and let it reach its end")
    return lines[:-1]


class RankFiles:
    """Collects the pieces of one rank and writes them at the end."""

    def __init__(self, folder: Path, rank: int, max_bytes: int | None):
        self._folder = folder
        self._rank = rank
        self._max_bytes = max_bytes
        self._lines: list[dict] = []
        self._tensors: dict = {}
        self._digests: list[tuple[dict, object]] = []  # (line, digest) of each hash
        self.bytes = 0
        self.dtypes: set = set()

    def add(self, kind: str, name: str, step: int, piece: Piece, microbatch: int = 0, order: int | None = None) -> None:
        """Copies a piece, so that what the program does with the tensor afterwards does not matter."""
        tensor = piece.tensor.detach()
        if tensor.dtype not in safetensors_file.CODES:
            raise Error(f'"{name}" has the dtype {tensor.dtype}, which the format does not hold',
                        f"Record it as one of {', '.join(str(one)[6:] for one in safetensors_file.CODES)}")
        key = str(len(self._tensors))
        self._tensors[key] = tensor.to("cpu", copy=True).contiguous()
        self.dtypes.add(tensor.dtype)
        self.bytes += safetensors_file.size_in_bytes(tensor)
        if self._max_bytes is not None and self.bytes > self._max_bytes:
            raise Error(f"Rank {self._rank} has recorded {self.bytes} bytes in step {step}, but max_bytes is "
                        f"{self._max_bytes}", "Record fewer steps=, fewer names with only=, or raise max_bytes")
        self._lines.append(line_of(key, kind, name, step, piece, microbatch, order))

    def add_hash(self, name: str, step: int, piece: Piece, microbatch: int, order: int, rows: int | None) -> None:
        """Adds the digest of a piece, and not its values."""
        line = line_of(None, "hash", name, step, piece, microbatch, order)
        if rows is not None:
            line["rows"] = rows
        self._digests.append((line, digest(piece.tensor)))
        self._lines.append(line)

    def write(self) -> None:
        for line, found in self._digests:
            line["digest"] = f"{int(found) % 2**64:016x}"
        self._digests = []
        stem = self._folder / f"rank{self._rank}"
        replace(stem.with_suffix(".safetensors"), lambda path: safetensors_file.write(path, self._tensors))
        lines = [*self._lines, {"end": len(self._lines)}]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        replace(stem.with_suffix(".jsonl"), lambda path: path.write_text(text))


def line_of(key, kind, name, step, piece: Piece, microbatch, order) -> dict:
    line = {} if key is None else {"key": key}
    line |= {"kind": kind, "name": name, "step": step, "microbatch": microbatch}
    if order is not None:
        line["order"] = order
    line |= {"dtype": str(piece.tensor.dtype)[6:], "shape": list(piece.tensor.shape),
             "global_shape": list(piece.global_shape)}
    if piece.flat is not None:
        line["flat"] = list(piece.flat)
    else:
        line["offset"] = None if piece.offset is None else list(piece.offset)
    if piece.partial is not None:
        line["partial"] = {"axes": list(piece.partial.axes), "op": piece.partial.op}
    line["source"] = piece.source
    return line


def write_header(folder: Path, header: dict) -> None:
    header = {"format": FORMAT, "version": VERSION, **header}
    replace(folder / "run.json", lambda path: path.write_text(json.dumps(header, indent=1) + "\n"))


def replace(path: Path, write) -> None:
    """Writes a file under another name first, so that a file with its name is whole."""
    new = path.with_name(path.name + ".new")
    write(new)
    os.replace(new, path)
