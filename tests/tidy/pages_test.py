#!/usr/bin/env python3
"""Holds the pages to the tree: every relative link leads to a file, and every `path` that begins with a folder of the
tree names one, with or without its ending. A script that a line of a code block runs by its path has its run bit. Each
row of a table is one line."""

import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "CONTRIBUTING.md", "SKILL.md", "docs/*.md", "docs/adding/*.md", "scenarios/README.md", "tests/*/README.md",
         "bench/README.md", "reports/README.md", "examples/*/README.md"]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)(?:#[^)]*)?\)")
PATH = re.compile(r"`((?:src|sim|golden|tests|scenarios|docs|cmake|bench|examples|reports)/[\w./-]*\w)`")
BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
BROKEN_ROW = re.compile(r"^\|.*[^|\s]\s*$", re.MULTILINE)
COMMAND = re.compile(r"^(?:\$ )?(?:\w+=\S* )*([\w./-]+)", re.MULTILINE)  # after its variables
ENDINGS = ("", ".h", ".cpp", ".yaml", ".py")


def problems(root, page):
    text = page.read_text()
    for target in LINK.findall(text):
        if not (page.parent / target).exists():
            yield f"the link to {target} leads nowhere"
    for path in PATH.findall(text):
        if not any((root / (path + ending)).exists() for ending in ENDINGS):
            yield f"there is no {path}"
    for row in BROKEN_ROW.findall(BLOCK.sub("", text)):
        yield f"a row of a table goes on in the next line: {row}"
    for path in sorted({path for block in BLOCK.findall(text) for path in COMMAND.findall(block)}):
        for script in (root / path, page.parent / path):
            if script.is_file() and script.read_bytes().startswith(b"#!") and not os.access(script, os.X_OK):
                yield f"{path} has no run bit, and a command runs it by its path"
                break


def main():
    pages = sorted(page for pattern in PAGES for page in ROOT.glob(pattern))
    found = [f"{page.relative_to(ROOT)}: {problem}" for page in pages for problem in problems(ROOT, page)]
    print("\n".join(found) or f"{len(pages)} pages, every link and path leads somewhere")
    return 1 if found or not pages else 0


if __name__ == "__main__":
    sys.exit(main())
