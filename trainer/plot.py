"""The loss curve of a run as an SVG file."""

from __future__ import annotations

import io
from pathlib import Path

from auditkit.errors import Unsupported
from auditkit.formats.skips import NO_RESULT
from trainer.disk import read_bytes, write_atomic
from trainer.metrics import read_metrics


def plot_loss(metrics: Path, target: Path, *, title: str) -> None:
    """Draw loss and learning rate over the steps from a metrics file; raises `Unsupported` without matplotlib."""
    rows = [row for _, row in read_metrics(read_bytes(metrics))]
    if not rows:
        return
    try:
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError as error:
        raise Unsupported("matplotlib is not installed", hint="pip install 'auditkit-verifier[trainer]'") from error
    # A Figure with its own canvas, not pyplot: no global state, no display.
    # Margins with room for every label: a layout that finds them itself draws everything twice.
    figure = Figure(figsize=(8, 4.5))
    axes = figure.subplots(gridspec_kw={"left": 0.09, "right": 0.87, "bottom": 0.12, "top": 0.92})
    steps = [row["step"] for row in rows]
    known = [row for row in rows if row.get("skipped") != NO_RESULT]  # others have no loss
    at, losses = [row["step"] for row in known], [row["loss"] for row in known]
    axes.plot(at, losses, linewidth=0.6, alpha=0.4, color="tab:blue")
    axes.plot(at, _smooth(losses), linewidth=1.5, color="tab:blue", label="training loss, smoothed")
    axes.set(xlabel="step", ylabel="loss (nats per token)", title=title)
    right = axes.twinx()
    right.plot(steps, [row["lr"] for row in rows], linewidth=1, color="tab:gray", linestyle="--", label="learning rate")
    right.set_ylabel("learning rate")
    axes.grid(alpha=0.3)
    axes.legend(handles=[*axes.lines[1:], *right.lines], loc="upper right")
    buffer = io.BytesIO()
    FigureCanvasSVG(figure)  # becomes the figure's canvas
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    write_atomic(target, buffer.getvalue())


def _smooth(values: list[float], keep: float = 0.9) -> list[float]:
    """Exponential moving average, corrected for its start."""
    smoothed, average, weight = [], 0.0, 0.0
    for value in values:
        average = keep * average + (1 - keep) * value
        weight = keep * weight + (1 - keep)
        smoothed.append(average / weight)
    return smoothed
