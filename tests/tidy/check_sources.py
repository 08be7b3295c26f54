#!/usr/bin/env python3
"""Reads the sources and holds the rules of include_table.py. Exit status 1 with a line per violation.

  check_sources.py [ROOT]
"""

import graphlib
import os
import re
import sys
from pathlib import Path

import include_table as table

TYPE = re.compile(r"^\s*(?:template\s*<[^{;]*>\s*)?(?:class|struct|union|enum(?:\s+class|\s+struct)?)\s+(?:\[\[\w+\]\]\s*)?"
                  r"([A-Za-z_]\w*)\s*(?:final\s*)?(?::[^:;{][^;{]*)?\Z|^\s*using\s+([A-Za-z_]\w*)\s*=")
NAMESPACE = re.compile(r"^\s*(?:inline\s+)?namespace\s*([\w:]*)\s*\Z")
SOURCE_FOLDERS = ("src", "sim", "golden", "examples", "tests", "bench", "cmake")
# A member that is a named enum (src/base/enum_names.h) on one side of == or !=, a text literal on the other.
ENUM = (r"\b(?:verdict|precision|workload|backend|device|compute|side|normalization|algorithm|data_parallel"
        r"|context_layout|context_rotation|activation_checkpointing|discarded_outputs|grad_norm_counts"
        r"|(?:call|line|known|made|told)(?:\.|->)(?:op|reduce)"
        r"|(?:ending|result|found|outcome|why|stage|fault|how|loss|optimizer|scheduler|batching)(?:\.|->)kind)\b")
ENUM_AS_TEXT = re.compile(rf'{ENUM}\s*[!=]=\s*"|"\w*"\s*[!=]=\s*[\w.>()\[\]-]*{ENUM}')
# A reference to, or the sizes of, a part of an object that Type::open(..) or *function(..) gives, which is gone by the end of
# the line, or before the loop; and std::minmax of two values, which gives references to them, unless they stand in braces.
GONE = re.compile(r"& \w+ = [A-Z]\w*::\w+\(.*\)\.\w+\(.*\);|= [A-Z]\w*::\w+\(.*\)\.\w+\(.*\)\.(?:sizes|strides)\(\);"
                  r"|for \(.*[^:]: \*\w+\(|auto&? \[\w+, \w+\] = std::minmax\((?!\{).*\(")
# A family is known by the traits of its row alone (src/base/families.h). The exceptions: the default; names of transformers
# that differ from ours; a relation between two families by name.
FAMILIES = "src/base/families.cpp"
FAMILY_NAME = re.compile(r'\{\.name = "(\w+)"')
MAY_NAME = {("src/model/config.h", "llama"), ("sim/case/model_keys.cpp", "llama"), ("sim/uses/proofs/built_in_rows.cpp", "llama"),
            ("sim/case/scenario/build_case.cpp", "gemma3"), ("sim/uses/relations/config_relations.cpp", "qwen2"),
            ("sim/uses/relations/config_relations.cpp", "llama")}
# The kind of an observation says what it shows (src/observe/observation_kind.h), not the begin of its name.
KINDS = "src/observe/observation_kind.h"
KIND_PREFIX = re.compile(r'\{ObservationKind::\w+, "([\w.]+)"\}')
# A function that a head declares; one that code calls, of no library; one that code declares itself, or a lambda or parameter.
FUNCTION = re.compile(r"[\w>&*\]]\s+[&*]*(?!decltype)([a-z]\w*)\s*\([^;{]*\)\s*(?:const|noexcept)?\s*\Z", re.DOTALL)
CONSTANT = re.compile(r"\bconstexpr\b[^=({]*?\b(k[A-Z]\w*)(?:\[\w*\])?\s*(?:=|\{|$)")
OWN_CONSTANT = re.compile(r"\b(?:constexpr|const)\b[^=;({]*?\b(k[A-Z]\w*)(?:\[\w*\])?\s*(?:=|\{|;)")
USED_CONSTANT = re.compile(r"(?<![\w:.])(k[A-Z]\w*)\b")
CALLED = re.compile(r"(?<![\w.>:])(?:(?:shardproof|sim|judge|world|report|run|cli|[a-z]+_[a-z]+)::)*([a-z]\w+)\s*\(")
DECLARED = re.compile(r"(?!(?:return|else|throw|case|and|or|not)\b)(?:\b\w+[&*]*|(?<=[\w)>*&])>[&*]*)\s+[&*]*(?:\w+::)?([a-z]\w+)\s*[({=;,)]")
ATTRIBUTE = re.compile(r"__attribute__\s*\(\(.*?\)\)\)?", re.DOTALL)
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')


def source_files(root):
    for top in SOURCE_FOLDERS:
        for folder, subfolders, names in os.walk(root / top):
            subfolders[:] = sorted(name for name in subfolders if name != "__pycache__")
            for name in sorted(names):
                if name.endswith((".h", ".cpp")):
                    yield (Path(folder) / name).relative_to(root).as_posix()


def folder_of(path):
    """The longest row of the table that holds this file, or None. A library's row holds no folders below it."""
    rows = [row for row in table.FOLDERS if path == row or path.startswith(row + "/")]
    row = max(rows, key=len) if rows else None
    return row if row is None or table.ANY in table.FOLDERS[row] or "/" not in path[len(row) + 1:] else None


def library_of(header):
    for name, prefixes in table.LIBRARIES.items():
        if header.startswith(prefixes):
            return name
    return None


def resolve(root, path, header):
    """The file of ours that a quoted include names, or None."""
    for base in ("src", "."):
        if (root / base / header).is_file():
            return os.path.normpath(os.path.join(base, header))
    beside = os.path.join(os.path.dirname(path), header)
    return os.path.normpath(beside) if (root / beside).is_file() else None


def may_include(row, target):
    allowed = table.FOLDERS[row]
    return table.ANY in allowed or target in allowed or folder_of(target) in [row, *allowed]


def includes(lines):
    for number, line in enumerate(lines, 1):
        found = INCLUDE.match(line)
        if found:
            yield number, found.group(1) or found.group(2), found.group(1) is not None


def check_include(root, path, row, header, quoted):
    """What is wrong with one include of one file: a sentence, or None."""
    if header in table.BANNED_HEADERS:
        return f"<{header}> is banned; {table.BANNED_HEADERS[header]}"
    if header in table.MUTEX_HEADERS and path.startswith(("src/", "sim/", "golden/")) and path not in table.MUTEX_FILES:
        return f'<{header}> has no attributes that clang checks; include "base/mutex.h"'
    library = library_of(header)
    target = resolve(root, path, header) if quoted else None
    if target:
        if not may_include(row, target):
            return f"{row} may not include {target}"
    elif quoted:
        return f'"{header}" is no file of ours; <{header}> if it is a library\'s'
    elif library and library not in table.FOLDERS[row] and table.ANY not in table.FOLDERS[row]:
        return f"{row} may not use {library}: <{header}>"
    elif (library == "torch" and path.endswith(".h") and path.startswith(("src", "sim", "golden"))
          and header not in table.LIGHT_TORCH_HEADERS):
        return f"a heavy LibTorch header in a header: <{header}>; move it to the .cpp file"
    return None


def says_its_concept(root, path):
    """A .cpp beside its header leaves the sentence to the header; a test's names are sentences."""
    return not path.endswith("_test.cpp") and not (
        path.endswith(".cpp") and (root / path).with_suffix(".h").is_file())


def check_file(root, path):
    """Yields (line, sentence) for every rule that this file breaks."""
    lines = (root / path).read_text(encoding="utf-8").splitlines()
    row = folder_of(path)
    if row is None:
        yield 1, "its folder has no row in tests/tidy/include_table.py; add one"
        return
    for number, header, quoted in includes(lines):
        problem = check_include(root, path, row, header, quoted)
        if problem:
            yield number, problem
    for number, line in enumerate(lines, 1):
        if len(line) > table.MAX_COLUMNS:
            yield number, f"{len(line)} columns; at most {table.MAX_COLUMNS}"
        if path.startswith(("src/", "sim/", "golden/")) and ENUM_AS_TEXT.search(line):
            yield number, "an enum is compared with a text; name its value: Verdict::kMatch"
        if GONE.search(line):
            yield number, "it refers into an object that is gone; give that object a name"
    if len(lines) > table.MAX_LINES and path not in table.LONGER_FILES:
        yield len(lines), f"{len(lines)} lines; at most {table.MAX_LINES}: split it by concept"
    if says_its_concept(root, path) and not (lines and lines[0].startswith("//")):
        yield 1, "the first line says the file's one concept, as a // comment"
    yield from check_namespace(path, lines)
    if path.endswith(".h") and "#pragma once" not in lines:
        yield 1, "a header without #pragma once"
    words = set(re.split(r"[_.]", os.path.basename(path)))
    for word in sorted(words & table.BANNED_FILE_WORDS):
        yield 1, f"'{word}' in a file's name says nothing; name it by its noun or verb"


def code_of(text):
    """The text without comments, literals and lines of the preprocessor, which may hold braces."""
    text = re.sub(r"^\s*#(?:[^\n]*\\\n)*[^\n]*", "", text, flags=re.MULTILINE)
    literal = (r'R"(\w*)\(.*?\)\1"|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|(?<![\w])\'(?:\\.|[^\'\\\n])+\'')
    return re.sub(literal, lambda found: '""' if found.group()[0] in "\"R'" else "", text, flags=re.DOTALL)


def heads_in(text):
    """Yields (namespace, head, end) of each definition or declaration in a named namespace, not in a class or function."""
    inside = []  # of each open brace the namespace; None: something else
    code, start = code_of(text), 0
    for found in re.finditer(r"[{};]", code):
        head, start = code[start:found.start()], found.end()
        if found.group() == "}":
            inside = inside[:-1]
            continue
        if all(inside):
            yield "::".join(inside), head, found.group()
        if found.group() == "{":
            space = NAMESPACE.search(head)
            inside.append(space.group(1) or None if space else None)


def types_in(text):
    for space, head, end in heads_in(text):
        named = TYPE.search(head)
        if named and (end == "{" or named.group(2)):
            yield space, named.group(1) or named.group(2)


def check_types(root):
    """A type that two files define in one namespace: the program links one of them for both."""
    places = {}
    for path in source_files(root):
        if path.startswith(("src/", "sim/", "golden/")):
            for name in types_in((root / path).read_text(encoding="utf-8")):
                places.setdefault(name, []).append(path)
    for (space, name), paths in sorted(places.items()):
        if len(set(paths)) > 1:
            yield sorted(set(paths))[1], f"{space}::{name} is defined in {sorted(set(paths))[0]} too; rename one"


def check_reached(root):
    """Yields (path, sentence) for each function that is called and each constant, whose header the file does not reach: it
    compiles in a unity build alone, beside a file that includes the header."""
    texts = {path: (root / path).read_text(encoding="utf-8") for path in source_files(root)
             if path.startswith(("src/", "sim/", "golden/"))}
    code = {path: ATTRIBUTE.sub("", code_of(text)) for path, text in texts.items()}
    included = {path: {resolve(root, path, header) for _, header, quoted in includes(text.splitlines()) if quoted} - {None}
                for path, text in texts.items()}
    homes = {}
    for path, text in texts.items():
        for _, head, _ in heads_in(text) if path.endswith(".h") else ():
            declared = CONSTANT.search(head) or FUNCTION.search(head)
            if declared and not TYPE.search(head):
                homes.setdefault(declared.group(1), set()).add(path)
    for path in texts:
        if not path.endswith(".cpp"):  # templates of a header may leave it to those who use them
            continue
        reached, left = {path}, [path]
        while left:
            new = included.get(left.pop(), set()) - reached
            reached |= new
            left += new
        own = set(DECLARED.findall(code[path])) | set(OWN_CONSTANT.findall(code[path]))
        used = set(CALLED.findall(code[path])) | set(USED_CONSTANT.findall(code[path]))
        for name in sorted(used & homes.keys() - own):
            seen = any(re.search(rf"\b{name}\b", code.get(header, "")) for header in reached - {path})
            known = folder_of(path) and any(may_include(folder_of(path), home) for home in homes[name])
            if known and not seen:
                what = name if name.startswith("k") and name[1:2].isupper() else f"{name}()"
                yield path, f"{what} is declared in {min(homes[name])}, which this file does not include"


def namespace_of(path):
    """The namespace of a file of sim: that of its first folder. What a case is has no name of its own."""
    folder = path.removeprefix("sim/").removeprefix("uses/").split("/")[0]
    return "shardproof::sim" + ("" if folder == "case" else f"::{folder}")


def check_namespace(path, lines):
    """Yields (line, sentence) where a file of sim opens another namespace of shardproof than its own."""
    if not path.startswith("sim/") or path.count("/") < 2:
        return
    for number, line in enumerate(lines, 1):
        opened = re.match(r"namespace (shardproof::sim[\w:]*) \{", line)
        if opened and opened.group(1) != namespace_of(path) and not line.endswith("}"):
            yield number, f"namespace {opened.group(1)}; this folder's is {namespace_of(path)}"


def check_table(root):
    """Rows and exceptions that no longer say anything true."""
    for path in table.LONGER_FILES:
        file = root / path
        if not file.is_file() or len(file.read_text().splitlines()) <= table.MAX_LINES:
            yield path, "is in LONGER_FILES without need"
    for row, entries in table.FOLDERS.items():
        for entry in entries:
            if entry not in table.LIBRARIES and entry != table.ANY and folder_of(entry) is None:
                yield row, f"may include '{entry}', which is neither a folder nor a library"
        if row.startswith("sim/") and not row.startswith(("sim/uses/", *table.USERS)):
            for entry in entries:
                if entry.startswith("sim/uses/"):
                    yield row, f"may include '{entry}': no organ of sim includes a use"
    for cycle in cycles(table.FOLDERS):
        yield " -> ".join(cycle), "is a circle: a folder, with those below it, stands above what it includes"


def cycles(rows):
    """Circles between folders, and between folders of the first levels taken with all below them."""
    for depth in (1, 2, 3):
        graph = {}
        for row, entries in rows.items():
            cut = "/".join(row.split("/")[:depth])
            below = (folder_of(entry) or entry for entry in entries if entry not in table.LIBRARIES)
            graph.setdefault(cut, set()).update("/".join(name.split("/")[:depth]) for name in below)
        for name in graph:
            graph[name].discard(name)
        try:
            graphlib.TopologicalSorter(graph).prepare()
        except graphlib.CycleError as error:
            yield error.args[1][::-1]


def check_families(root):
    """Yields (path, line, sentence) for every family that is known by its name."""
    if not (root / FAMILIES).is_file():
        return
    families = set(FAMILY_NAME.findall((root / FAMILIES).read_text(encoding="utf-8")))
    for path in source_files(root):
        if not path.startswith(("src/", "sim/", "golden/")) or path.startswith("src/base/families."):
            continue
        for number, line in enumerate((root / path).read_text(encoding="utf-8").splitlines(), 1):
            for name in re.findall(r'"(\w+)"', line):
                if name in families and (path, name) not in MAY_NAME:
                    yield path, number, f"the family {name} is known by its name; ask its row for a trait (src/base/families.h)"


def check_kinds(root):
    """Yields (path, line, sentence) where the begin of an observation's name decides."""
    if not (root / KINDS).is_file():
        return
    prefixes = "|".join(map(re.escape, KIND_PREFIX.findall((root / KINDS).read_text(encoding="utf-8"))))
    by_name = re.compile(rf'(?:starts_with|rfind)\("(?:{prefixes})')
    for path in source_files(root):
        if not path.startswith(("src/", "sim/", "golden/")) or path == KINDS:
            continue
        for number, line in enumerate((root / path).read_text(encoding="utf-8").splitlines(), 1):
            if by_name.search(line):
                yield path, number, f"an observation is known by the begin of its name; ask its kind ({KINDS})"


def violations(root):
    found = [f"{path}:{line}: {what}" for path in source_files(root) for line, what in check_file(root, path)]
    found += [f"{path}:{line}: {what}" for path, line, what in [*check_families(root), *check_kinds(root)]]
    found += [f"{path}:1: {what}" for path, what in [*check_types(root), *check_reached(root)]]
    return found + [f"include_table.py: {what} {why}" for what, why in check_table(root)]


def main():
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[2])
    found = violations(root)
    for line in found:
        print(line)
    count = len(list(source_files(root)))
    print(f"{count} source files, {len(found)} violations")
    sys.exit(1 if found or count == 0 else 0)


if __name__ == "__main__":
    main()
