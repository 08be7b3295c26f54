"""Plants a row in the sources: replaces the tokens that it names by others."""

from collections import namedtuple
from difflib import SequenceMatcher

from cpp_tokens import BadText, definitions_of, spelling_of, tokens_of

FOLDERS = ("src", "sim", "golden")
Place = namedtuple("Place", "file start end")  # characters of the file


class CannotPlant(Exception):
    pass


class Sources:
    """The C++ files of FOLDERS, tokenized when they are first asked for."""

    def __init__(self, names, read):
        """`names` are paths below the root; `read` gives the text of one."""
        self.names, self._read, self._files = sorted(names), read, {}

    @classmethod
    def below(cls, root):
        names = [path.relative_to(root).as_posix() for folder in FOLDERS
                 for end in ("cpp", "h") for path in (root / folder).rglob(f"*.{end}")]
        return cls(names, lambda name: (root / name).read_bytes().decode())

    def _file(self, name):
        if name not in self._files:
            text = self._read(name)
            try:
                tokens = tokens_of(text)
                self._files[name] = text, tokens, definitions_of(text, tokens)
            except BadText as error:
                raise CannotPlant(f"{name}: {error}") from None
        return self._files[name]

    def text(self, name):
        return self._file(name)[0]

    def tokens(self, name):
        return self._file(name)[1]

    def ranges(self, name, function):
        """Of each definition of that name, with or without its namespaces, the tokens from `first` up to `end`."""
        if not function:
            return [(0, len(self.tokens(name)))]
        return [(each.first, each.end) for each in self._file(name)[2]
                if f"::{each.name}".endswith(f"::{function}")]

    def find(self, file, function):
        """The file that the function is in: `file`, or the only one that defines it."""
        if file in self.names and self.ranges(file, function):
            return file
        others = [name for name in self.names if function and self.ranges(name, function)]
        if len(others) == 1:
            return others[0]
        if not function:
            raise CannotPlant(f"there is no {file}")
        where = f"in {', '.join(others)}" if others else f"nowhere in {', '.join(FOLDERS)}"
        raise CannotPlant(f"{function} is defined {where}" + (f", not in {file}" if file else ""))

    def spelling(self, edit):
        """The tokens of the function that an edit is in; None where there is none."""
        try:
            file = self.find(edit.file, edit.function)
        except CannotPlant:
            return None
        return [token.text for first, end in self.ranges(file, edit.function)
                for token in self.tokens(file)[first:end]]


def _matches(tokens, ranges, wanted):
    """The indices at which the wanted tokens stand, in the order of the file."""
    found = set()
    for first, end in ranges:
        for index in range(first, end - len(wanted) + 1):
            if tokens[index].text == wanted[0] and [each.text for each in tokens[index:index + len(wanted)]] == wanted:
                found.add(index)
    return sorted(found)


def _nearest(text, tokens, ranges, wanted):
    """What stands where most of the wanted tokens do: the line and its text."""
    best = None
    for first, end in ranges:
        block = SequenceMatcher(None, wanted, [each.text for each in tokens[first:end]],
                                autojunk=False).find_longest_match()
        if block.size and (best is None or block.size > best[0]):
            begin = max(first, first + block.b - block.a)
            best = block.size, begin, min(begin + len(wanted), end)
    if best is None:
        return "none of its tokens is there"
    _, begin, end = best
    line = text.count("\n", 0, tokens[begin].start) + 1
    return f"the nearest is line {line}: {' '.join(text[tokens[begin].start:tokens[end - 1].end].split())}"


def _place(sources, edit):
    file = sources.find(edit.file, edit.function)
    text, tokens, ranges = sources.text(file), sources.tokens(file), sources.ranges(file, edit.function)
    wanted = spelling_of(edit.old)
    found = _matches(tokens, ranges, wanted)
    where = f"{edit.function} of {file}" if edit.function else file
    if not found:
        raise CannotPlant(f"`from` is not in {where}; {_nearest(text, tokens, ranges, wanted)}")
    if edit.nth == 0 and len(found) > 1:
        lines = ", ".join(str(text.count("\n", 0, tokens[index].start) + 1) for index in found)
        raise CannotPlant(f"`from` is {len(found)} times in {where}, in lines {lines}; add tokens, or `nth`")
    if edit.nth > len(found):
        raise CannotPlant(f"`from` is only {len(found)} times in {where}, and `nth` is {edit.nth}")
    first = found[max(edit.nth, 1) - 1]
    return Place(file, tokens[first].start, tokens[first + len(wanted) - 1].end)


def _replaced(sources, file, changes):
    """The file's text with each (place, text) of `changes`; all else stays to the byte."""
    text, tokens = sources.text(file), sources.tokens(file)
    pieces, spelling, at = [], [], 0
    for place, new in sorted(changes):
        if place.start < at:
            raise CannotPlant(f"two edits of {file} overlap")
        pieces += [text[at:place.start], new]
        spelling += [each.text for each in tokens if at <= each.start < place.start] + spelling_of(new)
        at = place.end
    pieces.append(text[at:])
    spelling += [each.text for each in tokens if each.start >= at]
    planted = "".join(pieces)
    if spelling_of(planted) != spelling:
        raise CannotPlant(f"`to` grows together with what stands beside it in {file}")
    return planted


def plant(sources, row):
    """({file: text with the bug}, [what was found elsewhere than the row says])."""
    changes, moved = {}, []
    try:
        for edit in row.edits:
            place = _place(sources, edit)
            if edit.file and place.file != edit.file:
                moved.append(f"{edit.function} is in {place.file} now, not in {edit.file}")
            changes.setdefault(place.file, []).append((place, edit.new.rstrip("\n")))
        return {file: _replaced(sources, file, edits) for file, edits in changes.items()}, moved
    except BadText as error:
        raise CannotPlant(f"`from` or `to`: {error}") from None
