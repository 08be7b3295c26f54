"""Names that two files of one folder both give to something of their own: a unity build merges the files, so
there they are one name for two things. Reads well-formatted sources; it is no parser of C++."""

import re

MERGED = ("src/", "sim/", "golden/", "tests/unit/", "tests/support/", "tests/multirank/", "tests/fuzz/")
NOISE = re.compile(r'R"(\w*)\((?:.|\n)*?\)\1"|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|^[ \t]*#[^\n]*(?:\\\n[^\n]*)*',
                   re.MULTILINE)
NAMESPACE = re.compile(r"^(?:inline )?namespace ?([\w:]*)$")
TYPE = re.compile(r"^(?:template ?<.*> ?)?(?:struct|class|enum class|enum|union) (\w+)")


def _without_noise(text):
    """The same lines without comments, texts and directives."""
    return NOISE.sub(lambda found: ('""' if found[0][0] in 'R"' else "' '" if found[0][0] == "'" else "")
                     + "\n" * found[0].count("\n"), text)


def _split(text):
    """At the commas outside of brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([{<") - (letter in ")]}>")
        if letter == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def _function(head):
    """(name, types of its parameters), or None where this is no function."""
    found = re.match(r"^[^=(]*?\b(\w+) ?\((.*)\)[\w ]*$", head)
    if not found or found[1].isupper():  # a macro: TEST_CASE
        return None
    types = (re.sub(r" ?=.*", "", each) for each in _split(found[2]))
    return found[1], tuple(re.sub(r"(?<=[\w>&*\]]) ?\b\w+$", "", each) for each in types)


def _names(statement):
    """{(name, what tells it from others of that name)} of one declaration; what it says besides is dropped."""
    head = re.sub(r"\s+", " ", statement).strip().replace(" ,", ",")
    if not head or head.startswith(("static_assert", "namespace", "friend")):
        return set()
    if head.startswith("using"):
        name, _, what = head[len("using"):].partition("=")
        return {(name.strip(), what.strip())} if what else set()
    if TYPE.match(head):
        return {(TYPE.match(head)[1], None)}
    if _function(head):
        return {_function(head)}
    if "(" in head.split("=")[0]:
        return set()
    declared = (re.search(r"([A-Za-z_]\w*)(?: ?\[\w*\])*$", each.split("=")[0].strip()) for each in _split(head))
    return {(found[1], None) for found in declared if found}


def own_names(text):
    """{(namespace, name, what tells it apart): line} of what stands in this file's unnamed namespaces."""
    found, scopes, statement, line, start = {}, [], "", 1, 1

    def open_bracket():
        return statement.count("(") > statement.count(")")

    def keep():
        if None not in scopes and "" in scopes and not open_bracket():
            for name, what in _names(statement):
                found.setdefault(("::".join(scope for scope in scopes if scope), name, what), start)

    for letter in _without_noise(text):
        line += letter == "\n"
        if not statement.strip():
            start = line
        if letter == "{":
            space = NAMESPACE.match(statement.strip())
            if space and None not in scopes:
                scopes.append(space[1])
            else:
                keep()
                scopes.append(None)  # a body
            statement = "" if None not in scopes or scopes.count(None) > 1 else statement + "{}"
        elif letter == "}":
            if scopes:
                scopes.pop()
            if None not in scopes and not statement.endswith("{}"):
                statement = ""
        elif None in scopes:
            continue
        elif letter == ";":
            keep()
            statement = ""
        else:
            if statement.endswith("{}") and not open_bracket():
                if letter.isspace():
                    continue
                if letter != ",":  # a function's or a type's body, not one of several values
                    statement, start = "", line
            statement += letter
    return found


def clashes(files):
    """Yields (path, line, sentence); `files` are (path, text) in order."""
    first = {}
    for path, text in files:
        if not path.startswith(MERGED) or not path.endswith(".cpp"):
            continue
        folder = path.rpartition("/")[0]
        for key, line in own_names(text).items():
            other = first.setdefault((folder, *key[:2]), {})
            for what, where in other.items():
                alias = isinstance(what, str) and what == key[2]  # may be said twice
                overload = isinstance(what, tuple) and isinstance(key[2], tuple) and what != key[2]
                if where != path and not alias and not overload:
                    yield path, line, (f"{where.rpartition('/')[2]} has a {key[1]} of its own too, and a unity build "
                                       "merges them: another name, or a namespace named after the file")
                    break
            other.setdefault(key[2], path)
