#!/usr/bin/env python3
"""Values and gradients of the tensor-parallel layers from plain PyTorch: one device, float64.

    python3 golden/witness/make.py            # writes layers.safetensors anew
    python3 golden/witness/make.py --check    # compares with what is stored

An answer to the same question from outside: torch.nn.functional and autograd in Python, with none of
our code. tests/unit/parallel/tp/witness_test.cpp runs our layers on 1 to 4 ranks and compares them with
this file to 1e-12. Needs torch only (the files are stored with torch 2.11.0); not needed to build,
run or test shardproof.

    <layer>.<input>         x, weight, bias, ids; grad: the gradient that enters at y
    <layer>.y               its value
    <layer>.grad_<input>    its gradients
"""
import argparse
import json
import pathlib
import struct
import sys

import torch
import torch.nn.functional as F

HERE = pathlib.Path(__file__).resolve().parent
FILE = HERE / "layers.safetensors"
S, B, E, W = 12, 3, 5, 24  # sequence, batch, a width that nothing divides, one that 1 to 4 divide
VOCAB = 36


def draw(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def leaves(tensors):
    return {name: value.clone().requires_grad_(value.is_floating_point()) for name, value in tensors.items()}


def answer(layer, inputs, grad, function):
    """All tensors of one layer: inputs, the entering gradient, the value and the gradients."""
    own = leaves(inputs)
    y = function(**own)
    y.backward(grad)
    tensors = {f"{layer}.{name}": value for name, value in inputs.items()}
    tensors |= {f"{layer}.grad": grad, f"{layer}.y": y.detach()}
    tensors |= {f"{layer}.grad_{name}": value.grad for name, value in own.items() if value.grad is not None}
    return tensors


def linear(generator, layer, width_in, width_out):
    inputs = {"x": draw(generator, S, B, width_in), "weight": draw(generator, width_out, width_in),
              "bias": draw(generator, width_out)}
    return answer(layer, inputs, draw(generator, S, B, width_out), lambda x, weight, bias: F.linear(x, weight, bias))


def embedding(generator):
    ids = torch.randint(VOCAB, (B, S), generator=generator)
    ids[0, :6] = torch.tensor([0, 17, 18, 35, 11, 12])  # first and last ids of ranks
    inputs = {"ids": ids, "weight": draw(generator, VOCAB, E)}
    return answer("embedding", inputs, draw(generator, B, S, E), lambda ids, weight: F.embedding(ids, weight))


def mlp(generator):
    """Fused gate and up, silu(gate) * up, down: what stride and the row-parallel layer are for."""
    inputs = {"x": draw(generator, S, B, E), "gate_up": draw(generator, 2 * W, E) / 2, "down": draw(generator, E, W) / 4}

    def run(x, gate_up, down):
        gate, up = F.linear(x, gate_up).chunk(2, dim=-1)
        return F.linear(F.silu(gate) * up, down)

    return answer("mlp", inputs, draw(generator, S, B, E), run)


def tied(generator):
    """One weight as embedding and as output layer, over three microbatches of different scale."""
    weight = draw(generator, VOCAB, E)
    ids, grad = torch.randint(VOCAB, (3, B, S), generator=generator), draw(generator, 3, B, S, VOCAB)
    leaf = weight.clone().requires_grad_()
    for microbatch in range(3):
        logits = F.linear(torch.tanh(F.embedding(ids[microbatch], leaf)), leaf)
        logits.backward(grad[microbatch] * (microbatch + 1))
    return {"tied.ids": ids, "tied.weight": weight, "tied.grad": grad, "tied.grad_weight": leaf.grad}


def all_answers():
    generator = torch.Generator().manual_seed(20)
    return (linear(generator, "column", E, W) | linear(generator, "row", W, E) | embedding(generator)
            | mlp(generator) | tied(generator))


def write(path, tensors):
    """safetensors: the header's length, the header, the data without holes."""
    header, data = {}, b""
    for name, value in sorted(tensors.items()):
        raw = value.contiguous().numpy().tobytes()
        dtype = {torch.float64: "F64", torch.float32: "F32", torch.int64: "I64"}[value.dtype]
        header[name] = {"dtype": dtype, "shape": list(value.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def read(path):
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header, data = json.loads(raw[8:8 + length]), raw[8 + length:]
    types = {"F64": torch.float64, "I64": torch.int64}
    return {name: torch.frombuffer(bytearray(data[slice(*entry["data_offsets"])]), dtype=types[entry["dtype"]]).view(entry["shape"])
            for name, entry in header.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with what is stored, write nothing")
    answers = all_answers()
    if not parser.parse_args().check:
        write(FILE, answers)
        return 0
    stored = read(FILE)
    wrong = [name for name in answers if name not in stored or
             not torch.allclose(answers[name].double(), stored[name].double(), rtol=0, atol=1e-12)]
    wrong += [name for name in stored if name not in answers]
    print("\n".join(f"differs: {name}" for name in wrong) or f"{len(stored)} tensors are as stored")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
