#!/usr/bin/env python3
"""Holds docs/scenarios.md to the scenario files: each file with its workload and the first sentence of its head comment.
Of scenarios/found, whose comments begin with the finding, the page has the whole comment.

  scenarios_page.py [--write] [ROOT]    --write writes the page
"""

import re
import sys
from pathlib import Path

HEAD = """# Scenarios
What each file of `scenarios/` shows, as its head comment says. `./shardproof list` names the cases of the files, and
`./shardproof describe FILE` what they do. [scenarios/README.md](../scenarios/README.md) explains the format. This page is
written by `tests/tidy/scenarios_page.py --write`.
"""


def comment_of(text):
    """The comment at the head of a file, in one line."""
    lines = re.match(r"(?:#.*\n)*", text).group(0).splitlines()
    return " ".join(line.lstrip("# ").rstrip() for line in lines if "yaml-language-server" not in line)


def first_sentence(comment):
    """Up to a full stop before a capital letter. "e.g." and versions have none after them."""
    end = re.search(r"\.(?= [A-Z\"`]|$)", comment)
    return comment[:end.end()] if end else comment


def row(path):
    text = path.read_text()
    comment = comment_of(text)
    sentence = comment if path.parent.name == "found" else first_sentence(comment)
    if not sentence:
        sys.exit(f"{path}: has no comment at its head. Say in its first line what the scenario shows")
    workload = re.search(r"^workload: *(\S+)", text, re.MULTILINE)
    named = f"`{workload.group(1)}`" if workload else "several"
    return f"| [{path.stem}](../scenarios/{path.parent.name}/{path.name}) | {named} | {sentence.replace('|', chr(92) + '|')} |"


def page(root):
    parts = [HEAD]
    for folder in sorted(path for path in (root / "scenarios").iterdir() if path.is_dir()):
        rows = [row(path) for path in sorted(folder.glob("*.yaml"))]
        if rows:
            parts.append("\n".join([f"\n## {folder.name}", "| file | workload | what it shows |", "|---|---|---|", *rows, ""]))
    return "".join(parts)


def main():
    arguments = [one for one in sys.argv[1:] if one != "--write"]
    root = Path(arguments[0] if arguments else Path(__file__).parents[2])
    file = root / "docs" / "scenarios.md"
    wanted = page(root)
    if "--write" in sys.argv:
        file.write_text(wanted)
    elif not file.exists() or file.read_text() != wanted:
        sys.exit("docs/scenarios.md is not what the scenario files say. Run tests/tidy/scenarios_page.py --write")


if __name__ == "__main__":
    main()
