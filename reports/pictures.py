"""How every picture looks, and how it becomes part of a page: inline SVG whose texts stay texts."""

import io
import math
import re
from dataclasses import dataclass, field
from xml.etree import ElementTree

import matplotlib

matplotlib.use("Agg")
import numpy as np  # noqa: E402  (after the backend is chosen)
from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.colors import BoundaryNorm, ListedColormap  # noqa: E402

# Colors of the page's style, which are others in dark mode: inline() writes their names, so that a picture follows them.
INK, SOFT, LINE, WRONG, PAPER = "#1f2933", "#66727f", "#d9e0e6", "#b3261e", "#fefefe"
OF_STYLE = {INK: "ink", SOFT: "soft", LINE: "rule", WRONG: "wrong", PAPER: "paper"}
ON_LIGHT = "#15202b"    # over a light cell, whatever the mode
FAINT = "#8c9aa83a"     # nothing is there; shows the ground
VERDICT_COLORS = {"match": "#2f9e62", "mismatch": "#d6453d", "refused": "#b07a14", "failed": "#8e44ad",
                  "bad_input": "#b5541c", "internal": "#5f6975", "not_judged": "#8a8f98"}
PIECE_COLORS = ["#4c78a8", "#f2a65a", "#5fb58c", "#d8756f", "#9a86c4", "#c9a87c", "#5bb0c9", "#b3bd5a",
                "#d992b8", "#7f8fa6", "#8fbf6b", "#e0c057"]

# Shares of an allowance: comfortable greens, then yellow near 1, reds above it.
RATIO_BOUNDS = [0, 1e-4, 1e-3, 1e-2, 1e-1, 0.5, 1, 10, 1e3, 1e6]
RATIO_NAMES = ["below 0.01%", "0.1%", "1%", "10%", "50%", "100%", "10x", "1e3x", "1e6x", "more"]
RATIO_COLORS = ListedColormap(["#d3ecdf", "#b2ddc8", "#8ccbae", "#62b38d", "#f3e08a", "#f0b95c",
                               "#ec8a6b", "#d6453d", "#a11e28"]).with_extremes(over="#75101d", bad=FAINT)
RATIO_NORM = BoundaryNorm(RATIO_BOUNDS, RATIO_COLORS.N)

TEXT_SIZE = 10        # pixels; nothing is smaller
WIDTH_OF_LETTER = 6.1  # on average, at that size
PAGE_WIDTH, GAP = 1040, 24  # of the pictures of a case, side by side, on a wide screen

plt.rcParams.update({
    "font.family": "DejaVu Sans", "font.size": TEXT_SIZE, "text.color": INK, "text.parse_math": False,
    "svg.fonttype": "none", "svg.hashsalt": "shardproof", "image.composite_image": False,
    "image.interpolation": "none", "figure.dpi": 72,
})


@dataclass
class Picture:
    svg: str
    caption: str = ""
    key: list = field(default_factory=list)  # [(color, text)]


@dataclass
class Section:
    """Pictures under one heading; equal ones of two cases are shown once."""
    heading: str
    text: str
    pictures: list
    key: list = field(default_factory=list)

    def content(self):
        return tuple(picture.svg for picture in self.pictures)

    def size(self):
        return sum(len(picture.svg) for picture in self.pictures)


def share(ratio):
    """A share of an allowance for people: "3.1%", "2.0x"."""
    if ratio != ratio:
        return "nan"
    if ratio <= 1:
        return f"{100 * ratio:.2g}%".replace("1e+02%", "100%")
    return f"{ratio:.2g}x".replace("e+0", "e").replace("e+", "e")


def shorten(name, length=48):
    """Names keep their end, which distinguishes parameters."""
    name = name.replace("model.layers.", "layers.").replace("model.", "")
    return name if len(name) <= length else "..." + name[-(length - 3):]


def ink_on(color):
    """White or dark, whichever can be read on a color (red, green, blue)."""
    return "white" if 0.3 * color[0] + 0.6 * color[1] + 0.1 * color[2] < 0.55 else ON_LIGHT


def canvas(width, height):
    """(figure, axes) whose coordinates are the pixels of the page, from the top left corner."""
    figure = plt.figure(figsize=(width / 72, height / 72))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    figure.patch.set_visible(False)
    return figure, axes


def write(axes, x, y, text, **style):
    """A text; characters that no font shows become question marks."""
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    axes.text(x, y, text, **{"va": "center", "clip_on": False, **style})


def width_of(text):
    return WIDTH_OF_LETTER * len(text)


def draw_lines(axes, segments, color=LINE, width=1.0, behind=False):
    """All segments [((x, y), (x, y))] as one path, `behind` cells too."""
    broken = [point for first, last in segments for point in (first, last, (math.nan, math.nan))]
    if broken:
        x, y = np.transpose(broken)
        axes.plot(x, y, color=color, linewidth=width, solid_capstyle="butt", zorder=-1 if behind else 2)


def draw_cells(axes, colors, left, top, width, height):
    """[rows, columns, 4] colors as an image of one pixel per cell, which the page enlarges."""
    pixels = (np.asarray(colors) * 255).round().astype(np.uint8)
    axes.imshow(pixels, aspect="auto", extent=(left, left + width, top + height, top))


def _short_numbers(text, digits):
    return re.sub(r"-?\d+\.\d+(e-?\d+)?", lambda found: f"{float(found[0]):{digits}}", text)


def _short_attributes(node):
    """The same picture in fewer characters; a tenth of a pixel is enough."""
    wanted = {}
    for name, value in node.attrib.items():
        name = name.rpartition("}")[2]
        if name in ("id", "clip-path") or value.startswith("rotate(-0 "):
            continue
        if name == "style":
            value = re.sub(r"font-family:[^;]*;?|text-anchor: start;?", "", value)
            value = re.sub(r"\s*([:;])\s*", r"\1", value).replace(f"fill:{INK}", "").strip("; ")
            for color, of_style in OF_STYLE.items():
                value = value.replace(color, f"var(--{of_style})")
        elif name == "transform":
            value = _short_numbers(value, ".4g")
        elif name == "href":
            value = value.replace(" ", "").replace("\n", "")
        else:
            value = re.sub(r"\s*([A-Za-z])\s*", r"\1", _short_numbers(value, ".1f").replace(".0", "")).strip()
        if value:
            wanted[name] = value
    node.attrib.clear()
    node.attrib.update(wanted)


def _slim(node):
    """Without groups, definitions and metadata, which nothing here needs."""
    node.tag = node.tag.rpartition("}")[2]
    _short_attributes(node)
    node.tail = None
    if node.tag != "text":
        node.text = None
    children = []
    for child in list(node):
        _slim(child)
        if child.tag == "g" and not child.attrib:
            children += list(child)
        elif child.tag not in ("metadata", "defs"):
            children.append(child)
    node[:] = children


def inline(figure):
    """The figure as an <svg> element of the page, shown at the size at which it was drawn."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", bbox_inches="tight", pad_inches=0.03, metadata={"Date": None},
                   transparent=True)
    plt.close(figure)
    root = ElementTree.fromstring(buffer.getvalue())
    _slim(root)
    box = root.attrib["viewBox"]
    width, height = (math.ceil(float(part)) for part in box.split()[2:])
    root.attrib.clear()
    root.attrib.update({"viewBox": f"0 0 {width} {height}", "width": str(width), "height": str(height)})
    return ElementTree.tostring(root, encoding="unicode")
