"""Who holds which token: a colored strip for each sequence, each packed row, and each rank's part of it."""

import numpy as np
from matplotlib.colors import to_rgb, to_rgba

from pictures import (FAINT, PAGE_WIDTH, PAPER, PIECE_COLORS, Picture, canvas, draw_cells, draw_lines, ink_on, inline,
                      width_of, write)

MOST_STRIPS, MOST_POSITIONS = 48, 256
STRIP, GAP = 15, 2             # pixels
NARROWEST, WIDEST = 3, 32      # pixels of a token
MOST_BESIDE = 3                # groups
PADDING = to_rgba(FAINT)


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


def sample_axes(case, ranks):
    """The axes over which samples are dealt. Of the ranks with equal samples only the first one reports whole rows, and
    its place is 0 on every other axis."""
    firsts = [place for place, microbatches in ranks.values() if _reports_rows(microbatches)]
    return [axis for axis in _axes(case) if any(place.get(axis, 0) for place in firsts)]


def position_axes(case, ranks):
    """The axes that cut positions: with equal samples, ranks that differ along one alone hold different tokens."""
    samples = sample_axes(case, ranks)
    return [axis for axis in _axes(case) if axis not in samples and _parts(axis, ranks) > 1]


def _axes(case):
    return [axis["name"] for axis in case.get("mesh", {}).get("axes", []) if axis["size"] > 1]


def _reports_rows(microbatches):
    return any(micro.get("rows") for micro in microbatches)


def _parts(axis, ranks):
    """The number of different parts that ranks hold which differ along this axis alone."""
    groups = {}
    for place, microbatches in ranks.values():
        others = tuple(sorted(item for item in place.items() if item[0] != axis))
        groups.setdefault(others, set()).add(str([micro.get("held") for micro in microbatches]))
    return max((len(parts) for parts in groups.values()), default=0)


def _at(coordinates, axes):
    return tuple(coordinates.get(axis, 0) for axis in axes)


def _name(coordinates, axes):
    return " ".join(f"{axis} {coordinates.get(axis, 0)}" for axis in axes)


def strips(case):
    """[(heading, [(label, tokens)])]: the batch, then each microbatch of each share of the samples; [] when nothing is
    cut or packed, or nothing was told."""
    ranks = told(case)
    dealt, context = sample_axes(case, ranks), position_axes(case, ranks)
    samples = lengths(ranks)
    if not samples:
        return []
    packed = any(len({sample for sample, _, _ in runs if sample >= 0}) > 1
                 for _, held in ranks.values() for micro in held for runs in micro.get("rows", []))
    if not context and not packed:
        return []
    groups = [("the batch, each sequence alone",
               [(f"sample {sample}", [(sample, i) for i in range(count)]) for sample, count in samples.items()])]
    for _, (place, microbatches) in sorted(ranks.items()):
        if not _reports_rows(microbatches):
            continue
        peers = {}  # of the ranks with the same tokens the first one
        for other, (where, _) in sorted(ranks.items()):
            if _at(where, dealt) == _at(place, dealt):
                peers.setdefault(_at(where, context), other)
        for number, micro in enumerate(microbatches):
            rows = micro.get("rows", [])
            shown = []
            for index, runs in enumerate(rows):
                of_row = f"row {index}" if len(rows) > 1 else "whole row"
                shown.append((of_row, expand(runs)))
                for peer in peers.values() if context else []:
                    shown.append((f"rank {peer}: {_name(ranks[peer][0], context)}",
                                  expand(ranks[peer][1][number]["held"][index])))
            share = f"{_name(place, dealt)}, " if dealt else ""
            groups.append((f"{share}microbatch {number}" + (", packed" if packed else ""), shown))
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


def stretches(tokens):
    """[(column, first token, count)] of neighboring positions of one sequence; padding is left out."""
    found = []
    for column, token in enumerate(tokens):
        if token is None:
            continue
        if found and found[-1][0] + found[-1][2] == column and token == (found[-1][1][0],
                                                                          found[-1][1][1] + found[-1][2]):
            found[-1] = (*found[-1][:2], found[-1][2] + 1)
        else:
            found.append((column, token, 1))
    return found


def _positions(first, count, room):
    """"4..7", or its start, as far as there is room for it."""
    for text in (f"{first}..{first + count - 1}" if count > 1 else str(first), str(first)):
        if width_of(text) <= room:
            return text
    return ""


def _draw_group(heading, shown, samples, cell):
    columns = max(len(tokens) for _, tokens in shown)
    figure, axes = canvas(cell * columns, STRIP * len(shown))
    for row, (label, tokens) in enumerate(shown):
        top = STRIP * row
        write(axes, -6, top + STRIP / 2, label, ha="right")
        if tokens:
            pixels = np.array([to_rgba(_shade(token, samples)) for token in tokens])
            draw_cells(axes, [pixels], 0, top + GAP / 2, cell * len(tokens), STRIP - GAP)
        parts = stretches(tokens)
        draw_lines(axes, [((cell * column, top), (cell * column, top + STRIP)) for column, _, _ in parts[1:]], PAPER)
        for column, (sample, first), count in parts:
            write(axes, cell * (column + count / 2), top + STRIP / 2, _positions(first, count, cell * count - 2),
                  ha="center", color=ink_on(_shade((sample, first + count // 2), samples)))
    return Picture(inline(figure), heading)


def draw(case):
    """[Picture]; empty when there is nothing to show or too much of it."""
    groups = strips(case)
    samples = lengths(told(case))
    width = max((len(tokens) for _, shown in groups for _, tokens in shown), default=0)
    if not 0 < width <= MOST_POSITIONS:
        return []
    labels = 6 + max(width_of(label) for _, shown in groups for label, _ in shown)
    room = (PAGE_WIDTH + GAP) / min(len(groups), MOST_BESIDE) - GAP - labels
    cell = min(max(room / width, NARROWEST), WIDEST)
    drawn, count = [], 0
    for heading, shown in groups:
        if drawn and count + len(shown) > MOST_STRIPS:
            drawn[-1].caption += f"; {len(groups) - len(drawn)} microbatches more are not drawn"
            break
        drawn.append(_draw_group(heading, shown[:MOST_STRIPS], samples, cell))
        count += len(shown)
    return drawn


def explain(case):
    ranks = told(case)
    apart = sample_axes(case, ranks) + position_axes(case, ranks)
    # Only ranks with place 0 on tp report tokens.
    seen = {axis for place, _ in ranks.values() for axis in place if place[axis]} | {"tp"}
    same = " or ".join(axis for axis in _axes(case) if axis in seen and axis not in apart)
    return ("A color for each sequence, lighter towards its end; numbers are positions in it, grey is padding. "
            "First the batch, then each microbatch before it is cut, then what each rank has of it."
            + (f" Ranks that differ along {same} alone hold the same tokens; the first is named." if same else ""))
