"""The tokens of a C++ text, and the functions and classes that it defines.

A preprocessor line is one token. Comments and white space are none. This is no compiler: `definitions` matches
braces and reads what stands before them, which holds for the sources here.
"""

import re
from typing import NamedTuple

_SPACE = r"\s+|\\\n|//(?:\\\n|[^\n])*|/\*.*?\*/"
_TOKEN = re.compile(rf"""
    (?P<space> {_SPACE} )
  | (?P<raw> (?:u8|[uUL])? R"(?P<mark>[^()\\\s]{{0,16}})\( .*? \)(?P=mark)" )
  | (?P<text> (?:u8|[uUL])? (?: "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' ) )
  | (?P<number> \.?\d (?: [eEpP][+-] | '?\w | \. )* )
  | (?P<word> (?! (?:u8|[uUL])? R" ) [A-Za-z_]\w* )
  | (?P<sign> <=>|<<=|>>=|->\*|\.\.\.|::|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|\.\* | (?!/\*)[^\w\s"'] )
""", re.VERBOSE | re.DOTALL)
_DIRECTIVE = re.compile(r"#(?:/\*.*?\*/|\\\n|[^\n])*", re.DOTALL)
_MACRO = re.compile(r"[A-Z][A-Z0-9]*_[A-Z0-9_]*")  # one that declares something
_PAIRS = {")": "(", "]": "[", "}": "{"}
_NOT_A_NAME = {"__attribute__", "alignas", "decltype", "explicit", "noexcept", "requires", "sizeof"}


class BadText(Exception):
    pass


class Token(NamedTuple):
    text: str
    start: int
    end: int


class Definition(NamedTuple):
    """Tokens `first` up to `end` are the whole of it: template, return type, arguments, initializers, body."""

    name: str  # with its namespaces and classes
    first: int
    end: int


def _line(text, position):
    return text.count("\n", 0, position) + 1


def _directive(text):
    """One spelling of a preprocessor line, whatever its white space and comments."""
    try:
        return "# " + " ".join(token.text for token in tokens_of(text[1:]))
    except BadText:  # such as `#error don't`
        return " ".join(text.split())


def tokens_of(text):
    tokens, position, line_is_fresh = [], 0, True
    while position < len(text):
        match = _TOKEN.match(text, position)
        if not match:
            raise BadText(f"line {_line(text, position)}: a text or comment that does not end")
        if match["space"]:
            line_is_fresh = line_is_fresh or ("\n" in match.group() and match.group().isspace())
            position = match.end()
            continue
        end, spelling = match.end(), match.group()
        if spelling == "#" and line_is_fresh:
            end = _DIRECTIVE.match(text, position).end()
            spelling = _directive(text[position:end])
        tokens.append(Token(spelling, position, end))
        position, line_is_fresh = end, False
    return tokens


def spelling_of(text):
    """The texts of the tokens: what makes two C++ texts the same."""
    return [token.text for token in tokens_of(text)]


def _partners(text, tokens):
    """Of each opening bracket the index of the closing one."""
    partners, opened = {}, []
    for index, token in enumerate(tokens):
        if token.text in _PAIRS.values():
            opened.append(index)
        elif token.text in _PAIRS:
            if not opened or tokens[opened[-1]].text != _PAIRS[token.text]:
                raise BadText(f"line {_line(text, token.start)}: '{token.text}' closes nothing")
            partners[opened.pop()] = index
    if opened:
        raise BadText(f"line {_line(text, tokens[opened[-1]].start)}: '{tokens[opened[-1]].text}' is not closed")
    return partners


class _Reader:
    def __init__(self, text, tokens):
        self.words = [token.text for token in tokens]
        self.partners = _partners(text, tokens)
        self.found = []

    def scope(self, index, end, prefix):
        """Reads the declarations of a file, namespace or class."""
        head = index
        while index < end:
            word = self.words[index]
            if word in ("(", "["):
                index = self.partners[index]
            elif word == ";" or (word[0] == "#" and len(word) > 1):
                head = index + 1
            elif word == ":" and self.words[index - 1] in ("public", "protected", "private"):
                head = index + 1
            elif word == "{":
                index, head = self._block(head, index, prefix)
            index += 1

    def _block(self, head, brace, prefix):
        """What a '{' opens; the index of its '}' and where the next declaration begins."""
        close = self.partners[brace]
        kind, name = self._kind(self._top_level(head, brace))
        full = "::".join(part for part in (prefix, name) if part)
        if kind == "other":
            return close, head
        if kind in ("class", "enum", "function"):
            self.found.append(Definition(full, head, close + 1))
        if kind in ("class", "namespace"):
            self.scope(brace + 1, close, full)
        return close, close + 1

    def _top_level(self, head, end):
        """The words of a declaration without what stands in brackets; template arguments count as brackets."""
        words, index = [], head
        while index < end:
            word = self.words[index]
            operator = bool(words) and words[-1] == "operator"
            if operator and word == "(" and self.words[index + 1] == ")":
                words[-1] = "operator()"
                index += 2
                continue
            if operator and word == "[":
                words[-1] = "operator[]"
                index += 2
                continue
            if word == "<" and not operator:
                after = self._after_angles(index, end)
                if after:
                    words.append("<>")
                    index = after
                    continue
            words.append(word)
            if word in ("(", "[", "{"):
                index = self.partners[index]
                words[-1] += self.words[index]
            index += 1
        return words

    def _after_angles(self, index, end):
        depth = 0
        while index < end:
            word = self.words[index]
            if word in ("(", "[", "{"):
                index = self.partners[index]
            depth += {"<": 1, ">": -1, ">>": -2}.get(word, 0)
            index += 1
            if depth <= 0:
                return index
        return None

    @staticmethod
    def _kind(words):
        """(namespace | class | enum | function | other, name) of a declaration that stops at a '{'."""
        while words[1:2] == ["()"] and _MACRO.fullmatch(words[0]) and re.match(r"\w", "".join(words[2:3])):
            words = words[2:]
        if words[:1] == ["inline"] and words[1:2] == ["namespace"]:
            words = words[1:]
        if words[:1] == ["namespace"]:
            return "namespace", "".join(word for word in words[1:] if word != "[]")
        if words[:1] == ["extern"] and len(words) == 2:  # extern "C" {
            return "namespace", ""
        for index, word in enumerate(words):
            if word == "=" and words[index - 1:index] != ["operator"]:
                return "other", ""
            if word in ("class", "struct", "union", "enum"):
                kind = "enum" if word == "enum" else "class"
                rest = [each for each in words[index + 1:]
                        if each not in ("class", "struct", "[]", "()", "alignas", "<>")]
                stop = next((i for i, each in enumerate(rest) if each in (":", "final")), len(rest))
                return kind, "".join(rest[:stop])
            if word == "()" and index > 0 and words[index - 1] not in _NOT_A_NAME:
                name = _name_before(words, index)
                initializer = ":" in words[index:] and re.fullmatch(r"\w+|<>", words[-1])
                return ("function", name) if name and not initializer else ("other", "")
        return "other", ""


def _name_before(words, index):
    """The qualified name that ends before `index`: A::B<>::~f, operator==."""
    if "operator" in words[:index]:
        begin = words.index("operator")
        name = "operator" + " ".join(words[begin + 1:index])
    else:
        begin = index - 1
        if words[begin] == "<>":
            begin -= 1
        name = words[begin]
        if not re.match(r"[A-Za-z_]", name):
            return ""
        if words[begin - 1:begin] == ["~"]:
            begin, name = begin - 1, "~" + name
    while begin > 1 and words[begin - 1] == "::":
        begin -= 2
        if words[begin] == "<>":
            begin -= 1
        name = f"{words[begin]}::{name}"
    return name


def definitions_of(text, tokens):
    """All functions, classes and enums, those of classes included; not those inside of functions."""
    reader = _Reader(text, tokens)
    reader.scope(0, len(tokens), "")
    return reader.found
