"""A small right case folder, and edits that make it wrong: every hostile case is the right one but for
one thing. Standard library only."""
import json
import math
import os
import struct

SIZES = dict(vocab=11, hidden=8, mlp=12, layers=1, heads=4, kv_heads=2, head_dim=2)
BATCH, SEQ = 3, 5
WIDTH = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "U8": 1, "BOOL": 1}


def config():
    s = SIZES
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": s["vocab"],
            "hidden_size": s["hidden"], "intermediate_size": s["mlp"], "num_hidden_layers": s["layers"],
            "num_attention_heads": s["heads"], "num_key_value_heads": s["kv_heads"],
            "head_dim": s["head_dim"], "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
            "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False,
            "hidden_act": "silu"}


def drawn(count, start):
    """Different everywhere, never 0."""
    return [0.3 * math.sin(1.7 * (i + start)) + 0.01 for i in range(count)]


def floats(shape, start=1):
    count = math.prod(shape)
    return ("F64", list(shape), struct.pack(f"<{count}d", *drawn(count, start)))


def integers(shape, values):
    return ("I64", list(shape), struct.pack(f"<{len(values)}q", *values))


def model():
    s = SIZES
    q, kv = s["heads"] * s["head_dim"], s["kv_heads"] * s["head_dim"]
    shapes = {"model.embed_tokens.weight": (s["vocab"], s["hidden"]),
              "model.norm.weight": (s["hidden"],), "lm_head.weight": (s["vocab"], s["hidden"])}
    layer = {"input_layernorm": (s["hidden"],), "post_attention_layernorm": (s["hidden"],),
             "self_attn.q_proj": (q, s["hidden"]), "self_attn.k_proj": (kv, s["hidden"]),
             "self_attn.v_proj": (kv, s["hidden"]), "self_attn.o_proj": (s["hidden"], q),
             "mlp.gate_proj": (s["mlp"], s["hidden"]), "mlp.up_proj": (s["mlp"], s["hidden"]),
             "mlp.down_proj": (s["hidden"], s["mlp"])}
    for name, shape in layer.items():
        shapes[f"model.layers.0.{name}.weight"] = shape
    return {name: floats(shape, 10 * i) for i, (name, shape) in enumerate(sorted(shapes.items()))}


def batch():
    rows = (BATCH, SEQ)
    ids = [(3 * i + 1) % SIZES["vocab"] for i in range(BATCH * SEQ)]
    mask = [float(i % 4 != 3) for i in range(BATCH * SEQ)]
    return {"input_ids": integers(rows, ids), "input_lengths": integers((BATCH,), [5, 2, 4]),
            "token_mask": ("F64", list(rows), struct.pack(f"<{len(mask)}d", *mask)),
            "sample_mask": ("F64", [BATCH], struct.pack("<3d", 1, 1, 1)),
            "prev_logprobs": floats(rows, 100), "reference_logprobs": floats(rows, 200),
            "advantages": floats(rows, 300)}


def safetensors(tensors, header_edits=None, metadata=None):
    """The bytes of a file of {name: (dtype, shape, raw)}."""
    header, data = {"__metadata__": metadata} if metadata else {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    for name, fields in (header_edits or {}).items():
        header[name].update(fields)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def number(text):
    return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}.get(text, text)


class Edits:
    """The edits of one hostile case. Each names a file, or a tensor of a safetensors file."""

    def __init__(self):
        self.tensors = {"model.safetensors": model(), "batch.safetensors": batch()}
        self.headers = {}
        self.jsons = {"config.json": config(),
                      "case.json": {"loss": {"kind": "nll"}, "optimizer": {"kind": "AdamW", "steps": 1}}}

    def apply_to_content(self, edit):
        file = edit["file"]
        if "drop" in edit:
            del self.tensors[file][edit["drop"]]
        if "add" in edit:
            self.tensors.setdefault(file, {})[edit["add"]] = floats(edit["shape"])
        if "add_integers" in edit:
            self.tensors.setdefault(file, {})[edit["add_integers"]] = integers(edit["shape"], edit["values"])
        if "element" in edit:
            self.set_element(self.tensors[file], *edit["element"])
        if "header" in edit:
            self.headers.setdefault(file, {}).update(edit["header"])
        if "set" in edit:
            self.jsons[file].update(edit["set"])
        for key in edit.get("remove", []):
            del self.jsons[file][key]

    @staticmethod
    def set_element(tensors, name, index, value):
        dtype, shape, raw = tensors[name]
        code = "d" if dtype == "F64" else "q"
        packed = struct.pack("<" + code, number(value))
        tensors[name] = (dtype, shape, raw[:8 * index] + packed + raw[8 * index + 8:])

    def write(self, folder):
        for file, tensors in self.tensors.items():
            with open(os.path.join(folder, file), "wb") as out:
                out.write(safetensors(tensors, self.headers.get(file)))
        for file, content in self.jsons.items():
            with open(os.path.join(folder, file), "w") as out:
                json.dump(content, out)

    @staticmethod
    def apply_to_bytes(folder, edit):
        path = os.path.join(folder, edit["file"])
        if "delete" in edit:
            os.remove(path)
        if "make_folder" in edit:
            os.makedirs(path)
        if "text" in edit or "hex" in edit or "repeat" in edit:
            content = edit.get("text", "").encode() + bytes.fromhex(edit.get("hex", ""))
            for piece, count in edit.get("repeat", []):
                content += piece.encode() * count
            with open(path, "wb") as out:
                out.write(content)
        if "truncate" in edit:
            os.truncate(path, os.path.getsize(path) + min(0, edit["truncate"]) if edit["truncate"] < 0
                        else edit["truncate"])
        if "patch" in edit:  # [offset, hex]
            offset, raw = edit["patch"]
            with open(path, "r+b") as out:
                out.seek(offset)
                out.write(bytes.fromhex(raw))


def make_case(folder, edits):
    """Writes the right case into `folder`, changed by `edits`."""
    content = Edits()
    of_bytes = ("delete", "make_folder", "text", "hex", "repeat", "truncate", "patch")
    for edit in edits:
        if not any(key in edit for key in of_bytes):
            content.apply_to_content(edit)
    content.write(folder)
    for edit in edits:
        if any(key in edit for key in of_bytes):
            content.apply_to_bytes(folder, edit)
