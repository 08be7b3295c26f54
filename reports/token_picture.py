"""Who holds which token: a coloured strip for each sequence, each packed row, and each rank's part of it."""

from matplotlib import pyplot as plt
from matplotlib.colors import to_rgb

from pictures import INK, PIECE_COLORS, SOFT, image

MOST_STRIPS, MOST_POSITIONS, MOST_NUMBERED = 48, 256, 72
PADDING, NOTHING = to_rgb("#e9edf1"), to_rgb("#ffffff")


def expand(runs):
    """[(sample, position) or None of padding] of [[sample, first, count], ..]."""
    return [None if sample < 0 else (sample, first + i) for sample, first, count in runs for i in range(count)]


def told(case):
    """{rank: (coordinates, microbatches)} of the ranks that say what they held."""
    found = {}
    for rank in case.get("ranks", []):
        held = (rank.get("metrics") or {}).get("tokens_held")
        if held:
            found[rank["rank"]] = (rank.get("coordinates") or {}, held)
    return found


def lengths(ranks):
    """{sample: tokens}, from the rows as they were before any cut."""
    found = {}
    for _, microbatches in ranks.values():
        for micro in microbatches:
            for runs in micro.get("rows", []):
                for sample, first, count in runs:
                    if sample >= 0:
                        found[sample] = max(found.get(sample, 0), first + count)
    return dict(sorted(found.items()))


def _name(coordinates, axes):
    return " ".join(f"{axis} {coordinates.get(axis, 0)}" for axis in axes)


def strips(case):
    """[(heading, [(label, tokens)])]: the batch, then each microbatch of each dp rank; [] when nothing is
    cut or packed, or nothing was told."""
    ranks = told(case)
    sizes = {axis["name"]: axis["size"] for axis in case.get("mesh", {}).get("axes", [])}
    context = [axis for axis in ("cp", "ulysses") if sizes.get(axis, 1) > 1]
    samples = lengths(ranks)
    if not samples:
        return []
    packed = any(len({sample for sample, _, _ in runs if sample >= 0}) > 1
                 for _, held in ranks.values() for micro in held for runs in micro.get("rows", []))
    if not context and not packed:
        return []
    groups = [("the batch, each sequence alone",
               [(f"sample {sample}", [(sample, i) for i in range(count)]) for sample, count in samples.items()])]
    for rank, (place, microbatches) in sorted(ranks.items()):
        if any(place.get(axis, 0) for axis in context):
            continue  # of each dp rank the first one tells the rows
        peers = [other for other, (where, _) in sorted(ranks.items()) if where.get("dp", 0) == place.get("dp", 0)]
        for number, micro in enumerate(microbatches):
            rows = micro.get("rows", [])
            shown = []
            for index, runs in enumerate(rows):
                of_row = f"row {index}" if len(rows) > 1 else "whole row"
                shown.append((of_row, expand(runs)))
                for peer in peers if context else []:
                    shown.append((f"rank {peer}: {_name(ranks[peer][0], context)}",
                                  expand(ranks[peer][1][number]["held"][index])))
            dp = f"dp {place.get('dp', 0)}, " if sizes.get("dp", 1) > 1 else ""
            groups.append((f"{dp}microbatch {number}" + (", packed" if packed else ""), shown))
    return groups


def _shade(token, samples):
    """Later tokens of a sequence are lighter: the order within it can be seen."""
    if token is None:
        return PADDING
    sample, position = token
    order = list(samples)
    color = to_rgb(PIECE_COLORS[order.index(sample) % len(PIECE_COLORS)])
    light = 0.62 * position / max(samples[sample] - 1, 1)
    return tuple(channel + (1 - channel) * light for channel in color)


def _ink_on(shade):
    return "white" if 0.3 * shade[0] + 0.6 * shade[1] + 0.1 * shade[2] < 0.52 else INK


def _draw_group(axes, heading, shown, samples, width):
    numbered = width <= MOST_NUMBERED
    pixels = [[_shade(token, samples) for token in tokens] + [NOTHING] * (width - len(tokens))
              for _, tokens in shown]
    axes.imshow(pixels, aspect="auto", interpolation="nearest", extent=(0, width, len(shown), 0))
    for row, (_, tokens) in enumerate(shown):
        for column, token in enumerate(tokens):
            if numbered:
                axes.axvline(column, 1 - (row + 1) / len(shown), 1 - row / len(shown), color="white", linewidth=0.6)
                text = "·" if token is None else str(token[1])
                color = SOFT if token is None else _ink_on(_shade(token, samples))
                axes.text(column + 0.5, row + 0.52, text, ha="center", va="center", fontsize=6, color=color)
        if row:
            axes.axhline(row, color="white", linewidth=2.5)
    axes.set_yticks([row + 0.5 for row in range(len(shown))], [label for label, _ in shown], fontsize=7)
    axes.tick_params(length=0)
    axes.set_xticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_title(heading, fontsize=8, color=INK)


def draw(case):
    """An image source; None when there is nothing to show or too much of it."""
    groups = strips(case)
    if not groups:
        return None
    samples = lengths(told(case))
    width = max(len(tokens) for _, shown in groups for _, tokens in shown)
    if width > MOST_POSITIONS:
        return None
    kept, count = [], 0
    for heading, shown in groups:
        if kept and count + len(shown) > MOST_STRIPS:
            break
        kept.append((heading, shown[:MOST_STRIPS]))
        count += len(kept[-1][1])
    heights = [len(shown) for _, shown in kept]
    figure, all_axes = plt.subplots(
        len(kept), 1, figsize=(9.4, 0.24 * sum(heights) + 0.34 * len(kept)), squeeze=False,
        gridspec_kw={"height_ratios": heights, "hspace": 1.6 * len(kept) / sum(heights)})
    for axes, (heading, shown) in zip(all_axes[:, 0], kept):
        _draw_group(axes, heading, shown, samples, width)
    if len(kept) < len(groups):
        figure.text(0.5, 0, f"{len(groups) - len(kept)} microbatches more are not drawn", ha="center",
                    va="top", fontsize=7, color=SOFT)
    return image(figure)


def explain(case):
    sizes = {axis["name"]: axis["size"] for axis in case.get("mesh", {}).get("axes", [])}
    tp = " Ranks that differ along tp alone hold the same tokens; the first is named." if sizes.get("tp", 1) > 1 else ""
    return ("A colour for each sequence, lighter towards its end; numbers are positions in it, a dot is padding. "
            "First the batch, then each microbatch as its dp rank lays it out, then what each rank has of it." + tp)
