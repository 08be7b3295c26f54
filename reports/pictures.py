"""How every picture looks, and how it becomes part of a page."""

import base64
import io

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402  (after the backend is chosen)
from matplotlib.colors import BoundaryNorm, ListedColormap  # noqa: E402

INK, SOFT, LINE, PAPER = "#1f2933", "#7b8794", "#d9e0e6", "#ffffff"
VERDICT_COLORS = {"match": "#2f9e62", "mismatch": "#d6453d", "refused": "#d69a2d", "failed": "#8e44ad",
                  "bad_input": "#b5541c", "internal": "#3b3f46"}
PIECE_COLORS = ["#4c78a8", "#f2a65a", "#5fb58c", "#d8756f", "#9a86c4", "#c9a87c", "#5bb0c9", "#b3bd5a",
                "#d992b8", "#7f8fa6", "#8fbf6b", "#e0c057"]

# Shares of an allowance: comfortable greens, then yellow near 1, reds above it.
RATIO_BOUNDS = [0, 1e-4, 1e-3, 1e-2, 1e-1, 0.5, 1, 10, 1e3, 1e6]
RATIO_COLORS = ListedColormap(["#e8f5ef", "#cfeadd", "#aedcc6", "#83c9a7", "#f3e08a", "#f0b95c",
                               "#ec8a6b", "#d6453d", "#a11e28"]).with_extremes(over="#5c0a14", bad="#f2f4f6")
RATIO_NORM = BoundaryNorm(RATIO_BOUNDS, RATIO_COLORS.N)

plt.rcParams.update({
    "font.family": "DejaVu Sans", "font.size": 9, "text.color": INK, "axes.labelcolor": INK,
    "axes.edgecolor": LINE, "axes.spines.top": False, "axes.spines.right": False,
    "xtick.color": SOFT, "ytick.color": SOFT, "xtick.labelcolor": INK, "ytick.labelcolor": INK,
    "axes.titlesize": 10, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "figure.facecolor": PAPER, "svg.hashsalt": "shardproof",
})


def share(ratio):
    """A share of an allowance for people: "3.1%", "2.0x"."""
    if ratio != ratio:
        return "nan"
    if ratio <= 1:
        return f"{100 * ratio:.2g}%"
    return f"{ratio:.2g}x".replace("e+0", "e").replace("e+", "e")


def shorten(name, length=52):
    """Names keep their end, which tells parameters apart."""
    name = name.replace("model.layers.", "layers.").replace("model.", "")
    return name if len(name) <= length else "..." + name[-(length - 3):]


def image(figure):
    """The figure as an <img> source that needs no other file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", bbox_inches="tight", pad_inches=0.05, metadata={"Date": None})
    plt.close(figure)
    return "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
