"""The planted bugs as rows: the files of tests/mutants/rows, one for each prefix."""

from dataclasses import dataclass, field
from pathlib import Path

from cpp_tokens import BadText, spelling_of
from plain_yaml import BadYaml, read_yaml

FOLDER = Path(__file__).parent / "rows"
KEYS = {"id", "source", "what", "scenario", "backend", "control", "survives", "expect", "plant", "edits",
        "relations"}
BACKENDS = ("emulated", "gloo")
EXPECT_KEYS = {"tensor", "ranks", "pattern", "verdict", "kind", "message"}
EDIT_KEYS = {"file", "function", "nth", "from", "to"}


class BadRow(Exception):
    pass


@dataclass
class Edit:
    """Tokens that are replaced by others."""

    file: str  # where the function was when the row was written; empty: the only file that defines it
    old: str
    new: str
    function: str = ""  # or class; empty: anywhere in the file
    nth: int = 0  # which of several places, from 1 on; 0: there is one


@dataclass
class Row:
    id: str
    source: str
    what: str
    edits: list
    scenario: str = ""  # where it shows: the gate begins there
    backend: str = "emulated"  # of that scenario; gloo: only processes run the changed code
    relations: bool = False  # golden and ranks share the code: the gate is `run --relations` of the scenario alone
    control: bool = False  # an equivalent change: nothing may be reported
    survives: str = ""  # the known reason why the gate cannot see it
    expect: dict = field(default_factory=dict)


def _check_keys(values, known, needed, where):
    for key in values:
        if key not in known:
            raise BadRow(f"{where}: unknown key '{key}'; known are {', '.join(sorted(known))}")
    missing = needed - values.keys()
    if missing:
        raise BadRow(f"{where}: there is no {', '.join(sorted(missing))}")


def _edit(values, where):
    _check_keys(values, EDIT_KEYS, {"from", "to"}, where)
    if not ("file" in values or "function" in values):
        raise BadRow(f"{where}: there is neither file nor function")
    for key in ("file", "function", "from", "to"):
        if not isinstance(values.get(key, ""), str):
            raise BadRow(f"{where}: '{key}' is a text: put it in quotes")
    if not isinstance(values.get("nth", 1), int) or values.get("nth", 1) < 1:
        raise BadRow(f"{where}: 'nth' is a number from 1 on")
    try:
        old, new = spelling_of(values["from"]), spelling_of(values["to"])
    except BadText as error:
        raise BadRow(f"{where}: {error}") from None
    if not old:
        raise BadRow(f"{where}: 'from' has no tokens")
    if old == new:
        raise BadRow(f"{where}: the edit changes nothing")
    return Edit(values.get("file", ""), values["from"], values["to"], values.get("function", ""), values.get("nth", 0))


def _row(values, file):
    where = f"{file}: {values.get('id', 'a row without id')}"
    _check_keys(values, KEYS, {"id", "source", "what"}, where)
    values = dict(values)
    if ("plant" in values) == ("edits" in values):
        raise BadRow(f"{where}: a row has either 'plant', or 'edits' with a list of the same")
    edits = [values.pop("plant")] if "plant" in values else values.pop("edits")
    if not isinstance(edits, list) or not all(isinstance(each, dict) for each in edits):
        raise BadRow(f"{where}: 'plant' has the keys of an edit, 'edits' a list of those")
    row = Row(**values, edits=[_edit(each, where) for each in edits])
    if row.backend not in BACKENDS:
        raise BadRow(f"{where}: 'backend' is {row.backend}; known are {', '.join(BACKENDS)}")
    if row.relations and not row.scenario:
        raise BadRow(f"{where}: relations are of a scenario, which the row does not name")
    if row.relations:
        row.expect = row.expect or {"verdict": "mismatch", "kind": "relation"}
    if row.control == bool(row.expect):
        raise BadRow(f"{where}: a bug says what to expect, a control nothing")
    if not isinstance(row.expect, dict):
        raise BadRow(f"{where}: 'expect' has keys of its own")
    _check_keys(row.expect, EXPECT_KEYS, set(), where)
    return row


def read_file(path):
    try:
        values = read_yaml(path.read_text(), path)
    except BadYaml as error:
        raise BadRow(str(error)) from None
    if not isinstance(values, list):
        raise BadRow(f"{path}: a list of rows, each with `- id:`")
    return [_row(each, path) for each in values]


def read_rows(folder=FOLDER):
    """All rows, in the order of their names."""
    rows = [row for path in sorted(folder.glob("*.yaml")) for row in read_file(path)]
    names = [row.id for row in rows]
    for name in names:
        if names.count(name) > 1:
            raise BadRow(f"{folder}: two rows are named {name}")
    return sorted(rows, key=lambda row: row.id)
