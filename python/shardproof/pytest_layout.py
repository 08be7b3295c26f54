"""A layout of the marker `layouts`, such as "dp2 tp2 sp": the axes of the ranks with their sizes, and flags."""

import math
import re
from pathlib import Path

from .error import Error

AXIS = re.compile(r"([a-z_]+)([1-9][0-9]*)")
FLAG = re.compile(r"[a-z_]+")
AXES = {"dp", "tp", "cp", "pp", "data", "tensor", "context", "pipeline"}  # words that name sizes alone, and no way to cut
GIVEN = {"noise": "Leave it to the marker, which repeats the golden: @pytest.mark.layouts(.., noise=16)",  # by layout.record
         "out": "Leave it out: each run has a folder of its own, layout.out, below pytest's --basetemp"}
CHUNKS = "vpp"  # parts of the model on each rank of pp: a number that is no axis of the ranks


class Sizes(dict):
    """The size of each axis, outer to inner. An axis that the layout does not name has size 1."""

    def __missing__(self, axis: str) -> int:
        return 1


class Layout:
    """What a test builds its model from: the sizes of the axes, the flags, and this rank's place among the ranks.

    The fixture `layout` gives it to the test on each rank. The golden, "1", has one rank, no axes and no flags.
    """

    def __init__(self, text: str):
        if not isinstance(text, str):
            raise Error(f"The layout {text!r} is of the type {type(text).__name__}, and a layout is a text",
                        'Write each as a text of its own, such as layouts("dp2", "dp4"), or a list with a star, layouts(*texts)')
        self.text = text
        self.sizes = Sizes()
        self.flags: set[str] = set()
        self.rank = 0
        self._recorders: list = []
        self.out: Path | None = None     # where this run is recorded
        self.golden: Path | None = None  # the golden's run; None while the golden itself runs
        self.noise: int | None = None    # the number of a repeat of the golden with other roundings
        if not text.split():
            raise Error(f'The layout "{text}" names no axis', 'Write "1" for one rank, or axes such as "dp2 tp2"')
        for word in text.split() if text != "1" else ():
            self._add(word)
        self._check_flags()

    def _add(self, word: str) -> None:
        axis = AXIS.fullmatch(word)
        if axis and axis[1] not in self.sizes:
            self.sizes[axis[1]] = int(axis[2])
        elif FLAG.fullmatch(word) and word not in self.flags:
            self.flags.add(word)
        else:
            raise Error(f'The layout "{self.text}" has the word "{word}"',
                        'Write each axis once with its size, and each flag once, such as "dp2 tp2 sp"')

    def _check_flags(self) -> None:
        """A word without a number is a flag, so that a size that was forgotten would leave one rank."""
        forgotten = sorted(self.flags & AXES)
        if forgotten:
            raise Error(f'The layout "{self.text}" has the axis "{forgotten[0]}" without its size',
                        f'Write it as in "{forgotten[0]}2", or give a flag another name')
        if self.flags and not self.sizes:
            raise Error(f'The layout "{self.text}" has flags alone, so that it has one rank, as the golden has',
                        'Write axes with sizes, such as "dp2 tp2 sp"; "dp1 sp" is one rank with a flag')

    @property
    def world_size(self) -> int:
        return math.prod(self.mesh.values())

    @property
    def mesh(self) -> dict[str, int]:
        """The axes of the ranks, as load and record take them."""
        return {axis: size for axis, size in self.sizes.items() if axis != CHUNKS}

    def load(self, model, **options) -> None:
        """Starts the model from the golden's start, by shardproof.load. The golden itself keeps its own."""
        from .golden import load
        if self.golden is not None:
            load(model, self.golden, **options)

    def record(self, model, optimizer=None, **options):
        """Records what follows, as shardproof.record does, for the comparison with the golden."""
        from .recorder import record
        if self._recorders:
            raise Error("The test calls layout.record a second time, which would remove the first run unseen",
                        "Give each model a test of its own, or one layout.record the list of models")
        for name, advice in GIVEN.items():
            if name in options:
                raise Error(f"layout.record was given {name}=", advice)
        self._recorders.append(record(model, optimizer, out=self.out, noise=self.noise, **options))
        return self._recorders[-1]

    def check_closed(self) -> None:
        """Called when the test has ended, so that no run is lost without a word."""
        if any(one.is_open for one in self._recorders):
            raise Error("The test called layout.record, and the recorder was not closed, so that nothing would be compared",
                        "Write `with layout.record(..):`, or call close() at the end")
        for error in (one.error for one in self._recorders if one.error is not None):
            raise Error(f"{type(error).__name__} was raised within layout.record and caught outside of it, so that nothing "
                        "would be compared", "Catch it within the block, or record what comes before and after it")

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f'Layout("{self.text}")'
