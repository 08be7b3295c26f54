#!/usr/bin/env python3
"""Refuses words that comments and pages used with private meanings, and numbers of sources ("seed 004").

It reads comments of C++, messages and other texts of the program, and Markdown pages; in them text in backticks or double
quotes may use any word. Of the names in src, sim and golden it reads the parts: `came` of `came_from`, `asked` of `kAsked`.

  words.py [ROOT]
"""

import re
import sys
from pathlib import Path

CODE = ("src", "sim", "golden", "tests", "bench", "examples", "cmake")
OPTIONS = ("sim/case/case_rows.cpp", "sim/case/parallel_rows.cpp", "sim/case/run_rows.cpp",
           "sim/case/world_rows.cpp", "sim/case/model_keys.cpp")
PAGES = ("*.md", "docs/*.md", "docs/adding/*.md", "scenarios/README.md", "tests/*/README.md", "bench/README.md",
         "reports/README.md", "examples/*/README.md")

# {words: what to write instead}. A part of a name (draw_alike, run.lives, kAlike) is not a word.
WORDS = {
    r"told|untold": "reported, passed",
    r"asked": "requested, configured",
    r"lives": "exists, is in",
    r"(?:come|comes|came|coming) home": "return",
    r"beyond": "more than, outside of, after",
    r"where (?:it|they) stands?": "the position",
    r"by (?:itself|themselves)": "alone, separately",
    r"at first": "in the first step, before",
    r"alike": "equally, the same",
    r"put right": "corrected",
    r"seeds? 00\d": "the name of the repository (docs/sources.md)",
    r"(?<!there\s)(?<!there\s\s)(?:is|are) no(?! longer| more| such| other| further| less| better| launcher but)": "is not a",
}
# An option's text is printed without its neighbors.
WORDS_OF_OPTIONS = WORDS | {
    r"without it": "the default",
    r"^(?:the same|by this)": "the name of the key or the value",
}
# Parts of names, which are no sentences: most of the words above are good ones there.
WORDS_OF_NAMES = {
    "asked": "requested, read, wanted",
    "came": "received, previous, got",
    "said": "reported, known, message",
    "told": "reported, announced, declared",
    "untold": "unreported",
}
OF_NAMES = ("src/", "sim/", "golden/")
PART_OF_NAME = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")

QUOTED = re.compile(r'`[^`\n]*(?:\n[^`\n]+)*`|"(?:\\.|[^"\\\n])*(?:\n(?:\\.|[^"\\\n])+)*"')
BLOCK_OF_CODE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
# Comments, and literals, which may contain "//".
TOKEN = re.compile(r'R"(\w*)\((?:.|\n)*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|//[^\n]*|/\*(?:.|\n)*?\*/')
LITERALS = re.compile(r'"(?:\\.|[^"\\\n])*"(?:\s*"(?:\\.|[^"\\\n])*")*')


def blank(found):
    """As many spaces, with the same line breaks."""
    return re.sub(r"[^\n]", " ", found[0])


def comments(text):
    """(line, text) of each comment; those of consecutive lines are one, since a phrase may span two lines."""
    start, lines, last = 0, [], -1
    for found in TOKEN.finditer(text):
        if not found[0].startswith(("//", "/*")):
            continue
        line = text.count("\n", 0, found.start()) + 1
        if line != last + 1 and lines:
            yield start, "\n".join(lines)
        if line != last + 1:
            start, lines = line, []
        lines.append(found[0].lstrip("/*"))
        last = line + found[0].count("\n")
    if lines:
        yield start, "\n".join(lines)


def texts_of_program(text):
    """(line, text) of each literal with a space, adjacent ones joined."""
    code = TOKEN.sub(lambda found: found[0] if found[0][0] == '"' else blank(found), text)
    for found in LITERALS.finditer(code):
        words = "".join(re.findall(r'"((?:\\.|[^"\\\n])*)"', found[0]))
        if " " in words:
            yield text.count("\n", 0, found.start()) + 1, words


def found_in(text, words):
    """(line within `text` from 0, what was found, what to write instead)"""
    for word, instead in words.items():
        pattern = r"(?<![\w.-])(?:" + word.replace(" ", r"\s+") + r")(?![\w-]|\.\w)"
        for found in re.finditer(pattern, text, re.IGNORECASE):
            yield text.count("\n", 0, found.start()), " ".join(found[0].split()), instead


def found_in_names(path, text):
    """(line, name, what to write instead) of each name of the code, and of the file's, with such a part."""
    code = TOKEN.sub(blank, text)
    names = [(0, path.rpartition("/")[2])] + [(found.start(), found[0]) for found in re.finditer(r"[A-Za-z_]\w*", code)]
    for place, name in names:
        for part in PART_OF_NAME.findall(name):
            if part.lower() in WORDS_OF_NAMES:
                yield text.count("\n", 0, place) + 1, name, WORDS_OF_NAMES[part.lower()]


def files_of_code(root):
    for folder in CODE:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".h", ".cpp", ".cu"):
                yield path


def findings(root):
    """(path, line, what was found, what to write instead)"""
    for file in files_of_code(root):
        path, text = file.relative_to(root).as_posix(), file.read_text(encoding="utf-8")
        for start, comment in comments(text):
            for line, word, instead in found_in(QUOTED.sub(blank, comment), WORDS):
                yield path, start + line, word, instead
        if path.startswith(OF_NAMES):
            yield from ((path, *found) for found in found_in_names(path, text))
        if not path.startswith("tests/"):
            for start, words in texts_of_program(text):
                for _, word, instead in found_in(words, WORDS_OF_OPTIONS if path in OPTIONS else WORDS):
                    yield path, start, word, instead
    for page in sorted(page for pattern in PAGES for page in root.glob(pattern)):
        text = QUOTED.sub(blank, BLOCK_OF_CODE.sub(blank, page.read_text(encoding="utf-8")))
        for line, word, instead in found_in(text, WORDS):
            yield page.relative_to(root).as_posix(), line + 1, word, instead


def problems(root):
    return [f"{path}:{line}: '{word}'; write {instead}" for path, line, word, instead in findings(root)]


def main():
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2]
    found, files = problems(root), len(list(files_of_code(root)))
    print("\n".join(found) or f"{files} files of code, and the pages")
    return 1 if found or not files else 0


if __name__ == "__main__":
    sys.exit(main())
