"""Reads YAML of the plainest kind, so that no package is needed.

Lists of mappings and mappings in blocks; values are plain, in quotes, literal blocks (`|`), or lists as [a, b].
What YAML reads in another way is refused, not guessed at.
"""

import json
import re

_KEY = re.compile(r"(\w+):(?: +(.*))?$")


class BadYaml(Exception):
    pass


class _Lines:
    def __init__(self, text, where):
        self._where, self._lines, self._next = where, text.splitlines(), 0

    def fail(self, what):
        raise BadYaml(f"{self._where}:{self._next}: {what}")

    def peek(self):
        """(indent, text) of the next line that says something; indent -1: there is none."""
        while self._next < len(self._lines):
            line = self._lines[self._next].rstrip()
            if line and not line.lstrip().startswith("#"):
                return len(line) - len(line.lstrip()), line.lstrip()
            self._next += 1
        return -1, ""

    def take(self):
        found = self.peek()
        self._next += 1
        return found

    def put_back(self, indent, text):
        """The rest of a line, as a line of its own."""
        self._next -= 1
        self._lines[self._next] = " " * indent + text

    def block(self, indent):
        """The lines of a literal block below a key at `indent`, each with its end."""
        lines = []
        while self._next < len(self._lines):
            line = self._lines[self._next]
            if line.strip() and len(line) - len(line.lstrip()) <= indent:
                break
            lines.append(line)
            self._next += 1
        while lines and not lines[-1].strip():
            lines.pop()
        margin = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
        if lines and len(lines[0]) - len(lines[0].lstrip()) != margin:
            self.fail("the first line of a block has the least indent")
        return "".join(line[margin:].rstrip() + "\n" for line in lines)


def _scalar(text, lines):
    if text.startswith("["):
        if not text.endswith("]"):
            lines.fail("a list ends on its own line")
        return [_scalar(item.strip(), lines) for item in text[1:-1].split(",") if item.strip()]
    if text[:1] in ("'", '"'):
        if len(text) < 2 or text[-1] != text[0]:
            lines.fail("the quote is not closed")
        if text[0] == "'":
            if re.search(r"(?<!')'(?:'')*(?!')", text[1:-1]):
                lines.fail("a single quote in single quotes is written twice")
            return text[1:-1].replace("''", "'")
        try:
            return json.loads(text)
        except ValueError:
            lines.fail("these double quotes are not closed where they should be")
    if re.search(r": | #|:$", text) or text[:1] in tuple("&*!|>%@`{}],") or re.match(r"[-?:]( |$)", text):
        lines.fail(f"the value needs single quotes: {text}")
    if text in ("true", "false"):
        return text == "true"
    return int(text) if re.fullmatch(r"-?\d+", text) else text


def _mapping(lines, indent):
    values = {}
    while lines.peek()[0] == indent:
        match = _KEY.match(lines.take()[1])
        if not match:
            lines.fail("not `key: value`")
        key, text = match.groups()
        if key in values:
            lines.fail(f"'{key}' a second time")
        if text == "|":
            values[key] = lines.block(indent)
        elif text:
            values[key] = _scalar(text, lines)
        elif lines.peek()[0] > indent:
            values[key] = _node(lines, lines.peek()[0])
        else:
            lines.fail(f"'{key}' has no value")
    return values


def _sequence(lines, indent):
    items = []
    while lines.peek()[0] == indent and lines.peek()[1].startswith("- "):
        text = lines.take()[1]
        inner = indent + len(text) - len(text[2:].lstrip())
        lines.put_back(inner, text[2:].lstrip())
        items.append(_mapping(lines, inner))
    return items


def _node(lines, indent):
    return _sequence(lines, indent) if lines.peek()[1].startswith("- ") else _mapping(lines, indent)


def read_yaml(text, where):
    """The lists and mappings that `text` says; `where` names it in errors."""
    lines = _Lines(text, where)
    indent, _ = lines.peek()
    found = _node(lines, indent) if indent >= 0 else []
    if lines.peek()[0] >= 0:
        lines.take()
        lines.fail("an indent that fits nothing before it")
    return found
