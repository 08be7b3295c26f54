#!/usr/bin/env python3
"""Holds the pages to the tree: every relative link leads to a file, and every `path` that begins with a folder of the
tree names one, with or without its ending. A script that a line of a code block runs by its path has its run bit. Each
row of a table is one line. Of a list of files on a way, the count above it is right, and each file has its function. A
count in a table of README.md stands on a page that its row links. No flow mapping of an example in YAML is torn over lines."""

import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "CONTRIBUTING.md", "SKILL.md", "docs/*.md", "docs/adding/*.md", "scenarios/README.md", "tests/*/README.md",
         "bench/README.md", "reports/README.md", "python/README.md", "examples/*/README.md"]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)(?:#[^)]*)?\)")
PATH = re.compile(r"`((?:src|sim|golden|tests|scenarios|docs|cmake|bench|examples|reports)/[\w./-]*\w)`")
BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
# What a formatter of C++ makes of {kind: nll} in a page.
TORN = re.compile(r"^```yaml$(?:(?!^```).)*?\{ *$|(?<!`)`[^`\n]*\{\n[^`]*`", re.MULTILINE | re.DOTALL)
BROKEN_ROW = re.compile(r"^\|.*[^|\s]\s*$", re.MULTILINE)
COUNT = re.compile(r"^\|.*\| *(\d+ of \d+) *\|$", re.MULTILINE)
COMMAND = re.compile(r"^(?:\$ )?(?:\w+=\S* )*([\w./-]+)", re.MULTILINE)  # after its variables
ENDINGS = ("", ".h", ".cpp", ".yaml", ".py")
WAY = re.compile(r"\*\*(\d+) files\*\*[^|]*\| \| File \| Function \|[^\n]*\n\|[-|]+\n((?:\|[^\n]*\n)+)")
STATION = re.compile(r"^\| (\d+) \| `([\w/.]+)` \| `(\w+)` \|")
WAYS = {"docs/architecture.md": 2}


def problems(root, page):
    text = page.read_text()
    for target in LINK.findall(text):
        if not (page.parent / target).exists():
            yield f"the link to {target} leads nowhere"
    for path in PATH.findall(text):
        if not any((root / (path + ending)).exists() for ending in ENDINGS):
            yield f"there is no {path}"
    for torn in TORN.findall(text):
        yield f"an example in YAML is torn over lines: {torn.splitlines()[-1]}"
    for row in BROKEN_ROW.findall(BLOCK.sub("", text)):
        yield f"a row of a table goes on in the next line: {row}"
    for path in sorted({path for block in BLOCK.findall(text) for path in COMMAND.findall(block)}):
        for script in (root / path, page.parent / path):
            if script.is_file() and script.read_bytes().startswith(b"#!") and not os.access(script, os.X_OK):
                yield f"{path} has no run bit, and a command runs it by its path"
                break


def problems_of_ways(root, page):
    """Of the tables of files on a way, each with its function, under the count of its rows."""
    ways = WAY.findall(page.read_text())
    if len(ways) != WAYS.get(page.relative_to(root).as_posix(), 0):
        yield f"it has {len(ways)} tables of files on a way"
    for count, table in ways:
        rows = table.splitlines()
        if len(rows) != int(count):
            yield f"{len(rows)} files are on a way whose text counts {count}"
        for number, row in enumerate(rows, 1):
            station = STATION.match(row)
            if not station or int(station[1]) != number:
                yield f"row {number} of a way is not a number, a file and a function: {row}"
                continue
            file = root / station[2]
            if not file.is_file():
                yield f"there is no {station[2]}"
            elif not re.search(rf"^(?!.*;$)(?:  )?[\w[].*\b{station[3]}\(", file.read_text(), re.MULTILINE):
                yield f"{station[2]} has no function {station[3]}"


def lone_counts(page):
    """The counts of a page's tables that no page linked in their row has."""
    for row in COUNT.finditer(page.read_text()):
        linked = [page.parent / target for target in LINK.findall(row[0])]
        linked = [one / "README.md" if one.is_dir() else one for one in linked]
        if not any(row[1] in one.read_text() for one in linked if one.is_file()):
            yield f"{row[1]} stands on no page that its row links: {row[0][:80]}"


def main():
    pages = sorted(page for pattern in PAGES for page in ROOT.glob(pattern))
    found = [f"{page.relative_to(ROOT)}: {problem}" for page in pages
             for problem in [*problems(ROOT, page), *problems_of_ways(ROOT, page)]]
    found += [f"README.md: {problem}" for problem in lone_counts(ROOT / "README.md")]
    print("\n".join(found) or f"{len(pages)} pages, every link and path leads somewhere")
    return 1 if found or not pages else 0


if __name__ == "__main__":
    sys.exit(main())
