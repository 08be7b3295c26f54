"""The planted bugs as rows: what tests/mutants/<id>/ says.

mutant.yaml is YAML of the plainest kind, so that no package is needed to read it: one `key: value` per
line, texts plain or in quotes, lists as [a, b], and one nested block, `expect:`.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).parent
KEYS = {"id", "source", "what", "scenario", "control", "survives", "expect"}
EXPECT_KEYS = {"tensor", "ranks", "pattern", "verdict", "kind", "message"}


class BadRow(Exception):
    pass


@dataclass
class Row:
    id: str
    source: str
    what: str
    patch: Path
    scenario: str = ""  # where it shows: the gate begins there
    control: bool = False  # an equivalent change: nothing may be reported
    survives: str = ""  # the known reason why the gate cannot see it
    expect: dict = field(default_factory=dict)

    def files(self):
        """The files that the patch changes."""
        return re.findall(r"^\+\+\+ b/(\S+)", self.patch.read_text(), re.MULTILINE)


def _value(text, where):
    text = text.strip()
    if text.startswith("["):
        if not text.endswith("]"):
            raise BadRow(f"{where}: a list ends on its own line")
        return [_value(item, where) for item in text[1:-1].split(",") if item.strip()]
    if text[:1] in "'\"" and text:
        if len(text) < 2 or text[-1] != text[0]:
            raise BadRow(f"{where}: the quote is not closed")
        return text[1:-1].replace("''", "'") if text[0] == "'" else text[1:-1]
    if text in ("true", "false"):
        return text == "true"
    return int(text) if re.fullmatch(r"-?\d+", text) else text


def read_mapping(path):
    """The keys of a mutant.yaml, `expect` as a mapping of its own."""
    values, block = {}, None
    for number, line in enumerate(path.read_text().splitlines(), 1):
        where = f"{path}:{number}"
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = re.fullmatch(r"( *)(\w+):(.*)", line)
        if not match:
            raise BadRow(f"{where}: not `key: value`")
        indent, key, text = match.groups()
        known = EXPECT_KEYS if indent else KEYS
        into = block if indent else values
        if into is None or key not in known:
            raise BadRow(f"{where}: unknown key '{key}'; known are {', '.join(sorted(known))}")
        if key in into:
            raise BadRow(f"{where}: '{key}' a second time")
        block = None if not indent else block
        if key == "expect" and not indent:
            block = values["expect"] = {}
            continue
        into[key] = _value(text, where)
    return values


def read_row(folder):
    values = read_mapping(folder / "mutant.yaml")
    missing = {"id", "source", "what"} - values.keys()
    if missing:
        raise BadRow(f"{folder}: mutant.yaml has no {', '.join(sorted(missing))}")
    if values["id"] != folder.name:
        raise BadRow(f"{folder}: the id is '{values['id']}'")
    row = Row(patch=folder / "change.patch", **values)
    if not row.patch.is_file():
        raise BadRow(f"{folder}: there is no change.patch")
    if row.control == bool(row.expect):
        raise BadRow(f"{folder}: a bug says what to expect, a control nothing")
    return row


def read_rows():
    """All rows, in the order of their names."""
    return [read_row(path.parent) for path in sorted(FOLDER.glob("*/mutant.yaml"))]
