"""Draws how long the peers take beside headwise."""
import matplotlib
from contenders import NAMES, PEERS

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402  after the choice of the back end

COLOURS = dict(zip(PEERS, ("#c44e52", "#4c72b0", "#55a868")))
TICKS = (0.5, 1, 2, 5, 10, 20, 50)
BAR = 0.26  # of the distance between rows


def _bars(axes, lines, key, offset):
    at = [(i + offset, line["contenders"][key]["ratio"]) for i, line in enumerate(lines)
          if "ratio" in line["contenders"].get(key, {})]
    if not at:
        return
    axes.barh([y for y, _ in at], [x - 1 for _, x in at], BAR, left=1, color=COLOURS[key], label=NAMES[key])
    for y, ratio in at:
        side = 1 if ratio >= 1 else -1
        axes.annotate(f"{ratio:.2g}" if ratio < 10 else f"{ratio:.0f}", (ratio, y), (2 * side, 0),
                      textcoords="offset points", va="center", ha="left" if side > 0 else "right", fontsize=6)


def draw(path, machine, lines):
    """Horizontal bars, a group for each row; the suffix of `path` chooses the format."""
    matplotlib.rcParams["svg.hashsalt"] = "headwise"  # the same numbers give the same file
    matplotlib.rcParams["svg.fonttype"] = "none"      # letters, not outlines
    figure, axes = pyplot.subplots(figsize=(8, 0.9 + 0.38 * len(lines)), layout="constrained")
    for number, key in enumerate(PEERS):
        _bars(axes, lines, key, (number - 1) * BAR)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_xticks(TICKS, [f"{x:g}" for x in TICKS])
    axes.minorticks_off()
    axes.set_yticks(range(len(lines)), [f"{line['name']}  {line['dtype']}" for line in lines], fontsize=7)
    axes.set_ylim(len(lines) - 0.4, -0.6)
    axes.set_xlabel("time of one call, headwise = 1")
    axes.set_title(f"{machine['cpu']}, {machine['isa']}, {machine['threads']} threads, {machine['date']}", fontsize=9)
    axes.legend(fontsize=7, loc="lower right")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)
