"""A transformer of 64 tokens in numpy, whose runs differ by the order of their sums, and batches that it drew itself."""
import dataclasses

import numpy as np

VOCAB, WIDTH, HEADS, LAYERS, EXPERTS, CHOSEN = 64, 32, 4, 2, 6, 2


def rounded(x, dtype):
    """Each value to the nearest of the dtype."""
    if dtype == "float64":
        return x
    x = np.asarray(x, np.float32)
    if dtype == "float32":
        return x.astype(np.float64)
    bits = x.view(np.uint32)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return bits.view(np.float32).astype(np.float64)


@dataclasses.dataclass
class Run:
    """How one side computes. `parts`: the ranks over which products are summed, each of which rounds its addend."""
    dtype: str = "bfloat16"
    parts: int = 1
    rotary: str = "halves"
    scale: float = 1.0
    window: int = 0
    last_position: int = 10 ** 6
    theta: float = 100.0
    experts: bool = False


class Model:
    def __init__(self, draw):
        def matrix(rows, columns, size):
            return draw.normal(0, size / np.sqrt(columns), (rows, columns))
        self.embedding = draw.normal(0, 1, (VOCAB, WIDTH))
        self.layers = [{"q": matrix(WIDTH, WIDTH, 1.6), "k": matrix(WIDTH, WIDTH, 1.6), "v": matrix(WIDTH, WIDTH, 1.2),
                        "o": matrix(WIDTH, WIDTH, 1.2), "router": matrix(EXPERTS, WIDTH, 2),
                        "up": [matrix(2 * WIDTH, WIDTH, 1.2) for _ in range(EXPERTS)],
                        "down": [matrix(WIDTH, 2 * WIDTH, 1.2) for _ in range(EXPERTS)]} for _ in range(LAYERS)]
        self.head = matrix(VOCAB, WIDTH, 2.2)

    def moved(self, draw, by):
        """Other weights: those before some updates."""
        other = Model(draw)

        def mixed(mine, others):
            return np.sqrt(1 - by * by) * mine + by * others
        other.embedding = self.embedding
        other.head = mixed(self.head, other.head)
        for mine, theirs in zip(self.layers, other.layers):
            for name in ("q", "k", "v", "o"):
                theirs[name] = mixed(mine[name], theirs[name])
            for name in ("up", "down"):
                theirs[name] = [mixed(a, b) for a, b in zip(mine[name], theirs[name])]
            theirs["router"] = mine["router"]
        return other


def times(x, weight, run):
    parts = zip(np.split(x, run.parts, -1), np.split(weight, run.parts, -1))
    return rounded(sum(rounded(a @ b.T, run.dtype) for a, b in parts), run.dtype)


def normed(x, run):
    return rounded(x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6), run.dtype)


def rotated(x, positions, run):
    """x [B, H, T, C] by the angles of its positions [B, T]."""
    if run.rotary == "none":
        return x
    half = x.shape[-1] // 2
    angles = np.minimum(positions, run.last_position)[:, None, :, None] * run.theta ** (-np.arange(half) / half)
    cos, sin = np.cos(angles), np.sin(angles)
    if run.rotary == "pairs":
        a, b = x[..., ::2], x[..., 1::2]
        return rounded(np.stack([a * cos - b * sin, b * cos + a * sin], -1).reshape(x.shape), run.dtype)
    a, b = x[..., :half], x[..., half:]
    return rounded(np.concatenate([a * cos - b * sin, b * cos + a * sin], -1), run.dtype)


def mlp(layer, x, run, routes):
    if not run.experts:
        h = times(x, layer["up"][0], run)
        return times(rounded(h / (1 + np.exp(-h)), run.dtype), layer["down"][0], run)
    scores = x @ layer["router"].T
    if routes.get("noise") is not None:
        scores = scores + routes["noise"].normal(0, routes["size"], scores.shape)
    chosen = np.sort(np.argsort(-scores, -1)[..., :CHOSEN], -1)
    routes.setdefault("chosen", []).append(chosen)
    out = np.zeros_like(x)
    for expert in range(EXPERTS):
        h = times(x, layer["up"][expert], run)
        h = times(rounded(h / (1 + np.exp(-h)), run.dtype), layer["down"][expert], run)
        out += h * (chosen == expert).any(-1)[..., None] / CHOSEN
    return rounded(out, run.dtype)


def logits_of(model, ids, run, segments=None, positions=None, ignored=None, old=None, routes=None):
    """[B, T, V]. `ignored` [B, T]: keys that nobody sees. `old` (model, prefix by row): whose keys and values the first
    positions have for all later ones."""
    batch, length = ids.shape
    t = np.arange(length)
    seen = (t[:, None] >= t[None, :])[None].repeat(batch, 0)
    if run.window:
        seen &= (t[:, None] - t[None, :] < run.window)[None]
    if segments is not None:
        seen &= segments[:, :, None] == segments[:, None, :]
    if ignored is not None:
        seen &= ~ignored[:, None, :] | np.eye(length, dtype=bool)[None]
    positions = t[None].repeat(batch, 0) if positions is None else positions

    def heads(x):
        return x.reshape(batch, length, HEADS, -1).transpose(0, 2, 1, 3)
    x = model.embedding[ids]
    stale = old and old[0].embedding[ids]
    routes = {} if routes is None else routes
    for index, layer in enumerate(model.layers):
        def attend(x, layer, cache=None):
            h = normed(x, run)
            q, k = (rotated(heads(times(h, layer[name], run)), positions, run) for name in ("q", "k"))
            v = heads(times(h, layer["v"], run))
            pairs = [(k, v, seen)]
            if cache is not None:
                from_cache = (t[None, None, :] < old[1][:, None, None]) & (t[None, :, None] >= old[1][:, None, None])
                pairs = [(k, v, seen & ~from_cache), (*cache, seen & from_cache)]
            scores = [np.where(s[:, None], q @ key.transpose(0, 1, 3, 2) * run.scale / np.sqrt(q.shape[-1]), -np.inf)
                      for key, _, s in pairs]
            most = np.maximum.reduce([score.max(-1, keepdims=True) for score in scores])
            weights = [np.exp(score - most) for score in scores]
            total = sum(w.sum(-1, keepdims=True) for w in weights)
            mixed = sum(rounded(w / total, run.dtype) @ value for w, (_, value, _) in zip(weights, pairs))
            mixed = rounded(mixed, run.dtype).transpose(0, 2, 1, 3).reshape(batch, length, WIDTH)
            x = rounded(x + times(mixed, layer["o"], run), run.dtype)
            return rounded(x + mlp(layer, normed(x, run), run, routes), run.dtype), (k, v)
        if stale is not None:
            stale, cache = attend(stale, old[0].layers[index])
            x, _ = attend(x, layer, cache)
        else:
            x, _ = attend(x, layer)
    return times(normed(x, run), model.head, run)


def log_softmax(logits):
    logits = logits - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def kept_by(logits, top_p=1.0, top_k=VOCAB):
    """Where a token belongs to the likeliest: top_k of them, or as few as have top_p together."""
    order = np.argsort(-logits, -1)
    p = np.exp(np.take_along_axis(log_softmax(logits), order, -1))
    keeps = (np.cumsum(p, -1) - p < top_p) & (np.arange(VOCAB) < top_k)
    kept = np.zeros(logits.shape, bool)
    np.put_along_axis(kept, order, keeps, -1)
    return kept


class Batch:
    """Tokens that the model drew. A row has one or more sequences; what follows its length is padding."""

    def __init__(self, draw, rows=24, length=48, packed=0, padded=False, temperature=1.0, **sampling):
        experts = sampling.pop("experts", False)
        self.draw, self.model, self.rows, self.length = draw, Model(draw), rows, length
        self.runs = [Run(parts=1, experts=experts), Run(parts=2, experts=experts)]
        self.lengths = draw.integers(length // 3, length, rows) if padded else np.full(rows, length)
        if padded:
            self.lengths[::3] = length
        cuts = [np.sort(draw.choice(np.arange(6, length - 6, 5), packed, replace=False)) for _ in range(rows)]
        self.segments = np.array([[(t >= cut).sum() for t in range(length)] for cut in cuts])
        self.begins = np.diff(self.segments, axis=1, prepend=-1) != 0
        self.ids = draw.integers(0, VOCAB, (rows, length))
        for t in range(1, length):
            run = Run(dtype="float64", experts=experts)
            z = logits_of(self.model, self.ids[:, :t], run, self.segments[:, :t])[:, -1] / temperature
            p = np.exp(log_softmax(np.where(kept_by(z, **sampling), z, -np.inf)))
            drawn = (p.cumsum(-1) > draw.random((rows, 1)) * p.sum(-1, keepdims=True)).argmax(-1)
            self.ids[:, t] = np.where(self.begins[:, t], self.ids[:, t], drawn)

    def logits(self, side, model=None, **changes):
        given = {name: changes.pop(name) for name in ("segments", "positions", "ignored", "old", "routes")
                 if name in changes}
        run = dataclasses.replace(self.runs[side], **changes)
        return logits_of(model or self.model, self.ids, run, **{"segments": self.segments, **given})

    def picked(self, logprobs):
        """Of each token, from [B, T, V] one position before; 0 where a sequence begins, and in padding."""
        out = np.zeros(self.ids.shape)
        out[:, 1:] = np.take_along_axis(logprobs[:, :-1], self.ids[:, 1:, None], -1)[..., 0]
        return np.where(self.scored(), out, 0)

    def scored(self):
        return ~self.begins & (np.arange(self.length) < self.lengths[:, None])

    def score(self, side, **changes):
        return self.picked(log_softmax(self.logits(side, **changes)))
