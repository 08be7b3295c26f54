"""The faults that fit what a clean run called and computed: each of one kind, at one place."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .planting import WEIGHT, WEIGHT_KINDS

# In what one rank sends, at each call of a place.
SENT_KINDS = ("drop", "double", "stale", "corrupt")
# In the calls of all ranks, as a program has them that lacks the call, averages, or names another group.
CALL_KINDS = ("skip", "average", "wrong_group")
KINDS = (*SENT_KINDS, *CALL_KINDS, *(f"weight_{kind}" for kind in WEIGHT_KINDS))
OP = re.compile(r"(\w+)(?:\((\w+)\))?(?: (?:from|to) (?:rank (\d+)|any rank))?")


@dataclass
class Place:
    """Calls of one operation in one group at one line of the program."""

    op: str
    reduce_op: str
    group: str
    site: str
    ranks: set = field(default_factory=set)
    roots: set = field(default_factory=set)
    tests: set = field(default_factory=set)
    others: set = field(default_factory=set)  # groups of as many other ranks, in which the caller is too
    is_floating: bool = False
    is_bytes: bool = True
    repeats: bool = False                     # whether a world makes two calls of one shape
    calls: int = 0

    def __str__(self) -> str:
        op = f"{self.op}({self.reduce_op})" if self.reduce_op else self.op
        return f"{op} of {self.group} at {self.site}"


@dataclass
class Weight:
    """Parameters of a model whose names differ in numbers alone; the first of them stands for all."""

    model: str
    number: int  # which model of this class, by their first forward passes in a test
    name: str
    shape: list
    ranks: set = field(default_factory=set)
    tests: set = field(default_factory=set)
    steps: bool = False

    def __str__(self) -> str:
        number = f" {self.number}" if self.number > 1 else ""
        return f"{self.name} of {self.model}{number}"


@dataclass
class Fault:
    kind: str
    rank: int | None  # None: all
    place: Place | Weight

    def environment(self) -> dict[str, str]:
        if isinstance(self.place, Weight):
            return {WEIGHT: json.dumps({"kind": self.kind.removeprefix("weight_"), "rank": self.rank,
                                        "model": self.place.model, "number": self.place.number,
                                        "name": self.place.name})}
        text = f"op={self.place.op},group={self.place.group},site={self.place.site},call=all,kind={self.kind},rank="
        text += "all" if self.rank is None else str(self.rank)
        if self.kind == "wrong_group":
            text += f",to={sorted(self.place.others)[0]}"
        return {"SHARDPROOF_FAULT": text}

    def __str__(self) -> str:
        where = "all ranks" if self.rank is None else f"rank {self.rank}"
        to = f" {sorted(self.place.others)[0]}" if self.kind == "wrong_group" else ""
        return f"{self.kind}{to} on {where}"


def planned(folder: Path, kinds) -> list[Fault]:
    """All faults of these kinds that fit a clean run."""
    found = [fault for place in places(folder) for fault in faults_at(place)]
    found += [fault for weight in weights(folder) for fault in faults_in(weight)]
    return [fault for fault in found if fault.kind in kinds]


def faults_at(place: Place) -> Iterator[Fault]:
    if place.is_bytes or place.op == "barrier":
        return
    # Of a broadcast or a scatter only the root's contribution counts.
    sender = max(place.roots if place.op in ("broadcast", "scatter") and place.roots else place.ranks)
    if place.is_floating and place.op != "recv":
        for kind in SENT_KINDS:
            if kind != "stale" or place.repeats:
                yield Fault(kind, sender, place)
    if place.op in ("send", "recv"):
        return
    yield Fault("skip", None, place)
    if place.is_floating and place.reduce_op == "sum":
        yield Fault("average", None, place)
    if place.others:
        yield Fault("wrong_group", None, place)


def faults_in(weight: Weight) -> Iterator[Fault]:
    for kind in WEIGHT_KINDS:
        if (kind == "shift" and weight.shape[:1] in ([], [1])) or (kind == "stale" and not weight.steps):
            continue
        yield Fault(f"weight_{kind}", max(weight.ranks), weight)


def test_of(text: str) -> str:
    """The test that PYTEST_CURRENT_TEST names, without its phase."""
    return text.rsplit(" (", 1)[0]


def lines(folder: Path, pattern: str) -> Iterator[tuple[int, list[str]]]:
    """(rank, lines) of each file that a process wrote."""
    for path in sorted(folder.glob(f"*/rank*.{pattern}")):
        yield int(re.search(r"rank(\d+)", path.name)[1]), path.read_text().splitlines()


def places(folder: Path) -> list[Place]:
    """Where the program calls, in the order in which its ranks do."""
    found: dict[tuple, Place] = {}
    for rank, calls in lines(folder, "calls"):
        rows = [line.split("\t") for line in calls]
        groups = {row[1] for row in rows}
        seen = set()
        for _, group, op, dtype, shape, site, *test in rows:
            name, members = group.rsplit(" [", 1)
            size = len(members.split(","))
            if size == 1:
                continue
            op, reduce_op, root = OP.fullmatch(op.split(" (tag")[0]).groups()
            place = found.setdefault((op, reduce_op, name, site), Place(op, reduce_op or "", name, site))
            place.calls += 1
            place.ranks.add(rank)
            place.roots.update([int(root)] if root else [])
            place.tests.update(map(test_of, test))
            place.is_floating |= dtype.startswith(("float", "bfloat", "complex"))
            place.is_bytes &= dtype == "uint8"  # a pickled object
            place.repeats |= (place.op, group, site, dtype, shape) in seen
            seen.add((place.op, group, site, dtype, shape))
            others = (one.rsplit(" [", 1) for one in groups)
            place.others.update(one for one, theirs in others
                                if one != name and theirs != members and len(theirs.split(",")) == size)
    return list(found.values())


def weights(folder: Path) -> list[Weight]:
    """The parameters of the program's models; of those whose names differ in numbers alone, the first."""
    found: dict[tuple, Weight] = {}
    for rank, text in lines(folder, "weights"):
        notes = [json.loads(line) for line in text]
        stepped = {note["test"] for note in notes if "stepped" in note}
        for note in notes:
            if "stepped" in note:
                continue
            key = note["model"], note["number"], re.sub(r"\d+", "*", note["name"])
            weight = found.setdefault(key, Weight(note["model"], note["number"], note["name"], note["shape"]))
            weight.ranks.add(rank)
            weight.tests.update(filter(None, [test_of(note["test"])]))
            weight.steps |= note["test"] in stepped
    return list(found.values())
