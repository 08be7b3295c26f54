"""Drawn changes of right inputs: text, YAML, JSON, safetensors and command lines. Each function takes a
random.Random first and returns the changed input and a sentence that says what was changed. Standard library only."""
import copy
import json
import math
import struct

WORDS = ["", "x", "true", "null", "~", "-1", "0", "0.5", "1e400", "-1e-400", ".nan", "nan", ".inf", "-.inf",
         "Infinity", "0x10", "1_000", "99999999999", "9223372036854775808", "18446744073709551616", "[1, 2]", "{a: 1}",
         "[]", "{}", "'1'", "é", "\u202etxet", "🙂", "!!python/object:os.system x", "*a", "&a 1", "- 1", "a: b", "#",
         "%", "@", "`"]
VALUES = [None, True, False, 0, -1, 1, 0.5, 1e308, -1e-308, 2**31, 2**63, 2**64, 10**30, "", "x", "é", "\u0000", "🙂",
          [], {}, [1, 2], {"a": 1}, [[[[]]]], math.nan, math.inf]
DTYPES = ["F64", "F32", "F16", "BF16", "I64", "I32", "U8", "BOOL", "F8_E4M3", "C64", "f64", "", "X"]


def misspelt(rng, word):
    """One letter is lost, doubled, changed, or swapped with the next one."""
    if len(word) < 2:
        return word + "x"
    i = rng.randrange(len(word) - 1)
    return rng.choice([word[:i] + word[i + 1:], word[:i] + word[i] + word[i:], word[:i] + "q" + word[i + 1:],
                       word[:i] + word[i + 1] + word[i] + word[i + 2:]])


def bytes_changed(rng, raw):
    """Anything may happen to a file on a disk."""
    how = rng.choice(["cut", "byte", "insert", "lose", "twice", "empty"])
    at = rng.randrange(len(raw)) if raw else 0
    if how == "cut":
        return raw[:at], f"cut off after {at} bytes"
    if how == "byte":
        value = rng.randrange(256)
        return raw[:at] + bytes([value]) + raw[at + 1:], f"byte {at} is {value:#04x}"
    if how == "insert":
        piece = rng.choice([b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\x1b[2J", b"\t", b"\r", b"{", b"]", b'"', b"\\",
                            b"\xc3"])
        return raw[:at] + piece + raw[at:], f"{piece!r} is inserted at byte {at}"
    if how == "lose":
        count = rng.randint(1, 9)
        return raw[:at] + raw[at + count:], f"{count} bytes are missing at byte {at}"
    return (raw + raw, "the content is there twice") if how == "twice" else (b"", "the file is empty")


# --- YAML ---------------------------------------------------------------------------------------------------------

def yaml_changed(rng, text):
    """(text, sentence, whether the meaning is as before)."""
    lines = text.strip("\n").split("\n")
    i = rng.randrange(len(lines))
    line = lines[i]
    key, colon, value = line.partition(":")
    how = rng.choice(["delete", "duplicate", "swap", "misspell", "retype", "retype", "number", "number", "indent",
                      "tab", "bytes", "anchor", "merge", "bomb", "document", "colon", "comment", "blank", "brackets",
                      "nest"])
    if how == "bytes":
        raw, said = bytes_changed(rng, text.encode())
        return raw, said, False
    if how == "comment":
        lines.insert(i, " " * (len(line) - len(line.lstrip())) + "# a comment: {[")
    elif how == "blank":
        lines[i] += "   "
        lines.append("\n")
    elif how == "delete":
        del lines[i]
    elif how == "duplicate":
        lines.insert(i, line)
    elif how == "swap":
        j = rng.randrange(len(lines))
        lines[i], lines[j] = lines[j], lines[i]
    elif how == "misspell":
        stem = key.strip(" -{")
        lines[i] = line.replace(stem, misspelt(rng, stem), 1) if stem else line + " x"
    elif how == "retype":
        lines[i] = f"{key}: {rng.choice(WORDS)}"
    elif how == "number":
        digits = [k for k, letter in enumerate(line) if letter.isdigit()]
        if digits:
            k = rng.choice(digits)
            lines[i] = line[:k] + rng.choice(WORDS) + line[k + 1:]
        else:
            lines[i] = key + colon + value + " 1"
    elif how == "indent":
        lines[i] = rng.choice([" ", "  ", "        "]) + line if rng.random() < 0.5 else line[1:]
    elif how == "tab":
        lines[i] = "\t" + line
    elif how == "anchor":
        lines[i] = f"{key}: &a{value}"
        lines.append(rng.choice(["seed: *a", "tags: [*a, *a]", "seed: *b"]))
    elif how == "merge":
        lines.append("<<: {seed: 3}")
    elif how == "bomb":
        lines = [f"a0: &a0 [{', '.join(['x'] * 9)}]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]"
                                                         for n in range(1, 12)] + lines
    elif how == "document":
        lines.insert(i, rng.choice(["---", "...", "%YAML 1.3", "---\n---"]))
    elif how == "colon":
        lines[i] = line.replace(":", "", 1)
    elif how == "brackets":
        lines[i] = line + rng.choice("]}[{'\"")
    else:
        lines[i] = f"{key}: " + rng.choice("[{") * rng.choice([3, 500, 20000])
    return "\n".join(lines).encode() + b"\n", f"{how} at line {i + 1}: {line[:60]!r}", how in ("comment", "blank")


# --- JSON ---------------------------------------------------------------------------------------------------------

def places(value, path=()):
    """Every key and item below `value`."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        yield (*path, key)
        yield from places(inner, (*path, key))


def object_changed(rng, value, below=()):
    """A changed copy of a JSON value; `below` is where the change is made."""
    value = copy.deepcopy(value)
    root = value
    for key in below:
        root = root[key]
    path = rng.choice(list(places(root)))
    holder = root
    for key in path[:-1]:
        holder = holder[key]
    key = path[-1]
    shown = ".".join(str(part) for part in (*below, *path))
    how = rng.choice(["delete", "rename", "retype", "retype", "scale", "scale", "add", "move"])
    if how == "delete":
        del holder[key]
    elif how == "rename" and isinstance(holder, dict):
        name = misspelt(rng, key)
        holder[name] = holder.pop(key)
        return value, f"{shown} is called {name!r}"
    elif how == "add" and isinstance(holder, dict):
        name = rng.choice(["x", "", "comment", "é", "$ref", "__proto__"])
        holder[name] = rng.choice(VALUES)
        return value, f"{name!r}: {holder[name]!r} is added beside {shown}"
    elif how == "move":
        other = rng.choice(list(places(root)))
        inner = root
        for part in other:
            inner = inner[part]
        holder[key] = copy.deepcopy(inner)
        return value, f"{shown} has the value of {'.'.join(map(str, other))}"
    elif how == "scale" and isinstance(holder[key], (int, float)) and not isinstance(holder[key], bool):
        old = holder[key]
        holder[key] = rng.choice([old * 2, old + 1, -old - 1, old / 2, old * 10**9])
        return value, f"{shown} is {holder[key]!r} instead of {old!r}"
    else:
        holder[key] = rng.choice(VALUES)
        return value, f"{shown} is {holder[key]!r}"
    return value, f"{shown} is left out"


def json_changed(rng, value):
    """The bytes of a changed JSON text."""
    how = rng.random()
    if how < 0.12:
        return json.dumps(value, indent=rng.choice([1, 8, "\t"]), sort_keys=rng.random() < 0.5).encode() + b"\n\n", \
            "written in another layout"
    if how < 0.3:
        raw, said = bytes_changed(rng, json.dumps(value).encode())
        return raw, said
    if how < 0.36:
        return key_twice(rng, value)
    changed, said = object_changed(rng, value)
    return json.dumps(changed, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass"), said


def key_twice(rng, value):
    """One of the objects has one of its keys twice."""
    value = copy.deepcopy(value)
    holder = rng.choice(list(objects(value)))
    key = rng.choice(list(holder))
    holder["twice"] = rng.choice(VALUES)
    assert key != "twice"
    return json.dumps(value).replace('"twice": ', json.dumps(key) + ": ", 1).encode(), f"{key} is there twice"


def objects(value):
    """Every object in `value` that is not empty."""
    if isinstance(value, dict) and value:
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from objects(inner)


def parsed_json(raw):
    """The value, or ValueError where a strict reader refuses it: repeated keys, NaN, broken UTF-8."""
    def pairs(items):
        if len({key for key, _ in items}) < len(items):
            raise ValueError("a repeated key")
        return dict(items)

    def constant(word):
        raise ValueError(word)
    return json.loads(raw.decode("utf-8-sig"), object_pairs_hook=pairs, parse_constant=constant)


def same(a, b):
    """Equal, where true is not 1."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return isinstance(a, bool) == isinstance(b, bool) and a == b


# --- safetensors --------------------------------------------------------------------------------------------------

def split(raw):
    size = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8:8 + size]), raw[8 + size:]


def joined(header, data):
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def safetensors_changed(rng, raw):
    header, data = split(raw)
    names = [name for name in header if name != "__metadata__"]
    name = rng.choice(names)
    how = rng.choice(["header", "header", "dtype", "shape", "offsets", "drop", "rename", "element", "element",
                      "element", "swap", "bytes", "size", "more", "order", "metadata", "padding"])
    if how == "bytes":
        return bytes_changed(rng, raw)
    if how == "element":
        return element_changed(rng, header, data, name)
    if how == "header":
        header, said = object_changed(rng, header)
        return joined(header, data), "header: " + said
    if how == "dtype":
        header[name]["dtype"] = rng.choice(DTYPES)
    elif how == "shape":
        shape = header[name]["shape"]
        header[name]["shape"] = rng.choice([shape[::-1], [*shape, 1], shape[1:], [math.prod(shape)], [-1], [0],
                                            [2**40, 2**40], [2**63], [1.5], ["3"]])
    elif how == "offsets":
        begin, end = header[name]["data_offsets"]
        header[name]["data_offsets"] = rng.choice([[begin, end + 8], [begin + 8, end], [end, begin], [0, 2**64],
                                                   [-8, end], [begin], header[rng.choice(names)]["data_offsets"]])
    elif how == "drop":
        return without(header, data, name), f"{name} is left out"
    elif how == "rename":
        new = misspelt(rng, name)
        header = {new if key == name else key: entry for key, entry in header.items()}
        return joined(header, data), f"{name} is called {new}"
    elif how == "swap":
        other = rng.choice(names)
        header[name], header[other] = header[other], header[name]
        return joined(header, data), f"{name} and {other} change places"
    elif how == "size":
        size = rng.choice([0, 1, 7, 2**31, 2**63, 2**64 - 1, len(raw), len(raw) - 8])
        return struct.pack("<Q", size) + raw[8:], f"the header's size is {size}"
    elif how == "more":
        return raw + bytes(rng.randint(1, 16)), "more bytes follow"
    elif how == "order":
        return joined(dict(sorted(header.items(), reverse=True)), data), "the header has another order"
    elif how == "metadata":
        header["__metadata__"] = rng.choice([{"a": "b"}, {"a": 1}, 3, None, {"a": {"b": "c"}}])
        return joined(header, data), f"metadata: {header['__metadata__']!r}"
    else:
        text = json.dumps(header).encode() + b" " * 64
        return struct.pack("<Q", len(text)) + text + data, "spaces follow the header"
    return joined(header, data), f"{name}: {how} is {header[name]}"


def without(header, data, name):
    """The file without this tensor, and without a hole."""
    begin, end = header.pop(name)["data_offsets"]
    for entry in header.values():
        if "data_offsets" in entry and entry["data_offsets"][0] >= end:
            entry["data_offsets"] = [offset - (end - begin) for offset in entry["data_offsets"]]
    return joined(header, data[:begin] + data[end:])


def element_changed(rng, header, data, name):
    dtype = header[name]["dtype"]
    begin, end = header[name]["data_offsets"]
    code = {"F64": "d", "F32": "f", "I64": "q"}.get(dtype)
    if code is None or begin == end:
        return joined(header, data), "nothing is changed"
    width = struct.calcsize(code)
    at = begin + width * rng.randrange((end - begin) // width)
    old = struct.unpack_from(f"<{code}", data, at)[0]
    new = rng.choice([-1, 0, old + 1, old * 2, 2**40] if code == "q" else
                     [math.nan, math.inf, -math.inf, 0.0, -0.0, 1e30, 1e-300, old + 1e-3, old * 2, -old, old])
    return joined(header, data[:at] + struct.pack(f"<{code}", new) + data[at + width:]), \
        f"an element of {name} is {new!r} instead of {old!r}"


def tensors(raw):
    """{name: (dtype, shape, values)} of a well-formed file; ValueError for every other."""
    try:
        return read_tensors(raw)
    except (TypeError, KeyError, AttributeError, OverflowError, MemoryError, struct.error) as error:
        raise ValueError(str(error)) from error


def read_tensors(raw):
    if len(raw) < 8:
        raise ValueError("too short")
    size = struct.unpack("<Q", raw[:8])[0]
    if size > len(raw) - 8:
        raise ValueError("the header is too long")
    header, data = parsed_json(raw[8:8 + size]), raw[8 + size:]
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("metadata")
    found, parts = {}, []
    for name, entry in header.items():
        code = {"F64": "d", "F32": "f", "I64": "q", "F16": "e", "I32": "i", "U8": "B", "BOOL": "?"}.get(entry["dtype"])
        begin, end = entry["data_offsets"]
        if code is None or set(entry) != {"dtype", "shape", "data_offsets"}:
            raise ValueError(f"{name}: an unknown dtype or field")
        if end - begin != math.prod(entry["shape"]) * struct.calcsize(code):
            raise ValueError(f"{name}: shape and offsets differ")
        values = struct.unpack(f"<{math.prod(entry['shape'])}{code}", data[begin:end])
        found[name] = (entry["dtype"], entry["shape"], values)
        parts.append((begin, end))
    place = 0
    for begin, end in sorted(parts):
        if begin != place:
            raise ValueError("a hole or an overlap")
        place = end
    if place != len(data):
        raise ValueError("more bytes follow")
    return found


def differs(one, other):
    """Whether two tensors of tensors() differ by more than any allowance of float64."""
    (dtype, shape, values), (other_dtype, other_shape, others) = one, other
    if len(values) != len(others) or (shape != other_shape and len(values) != 1) or dtype != other_dtype:
        return True
    scale = max((abs(value) for value in values if math.isfinite(value)), default=0)
    return any(not abs(a - b) <= 1e-6 * scale and not a == b for a, b in zip(values, others))
