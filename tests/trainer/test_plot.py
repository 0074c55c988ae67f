"""The loss curve."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from auditkit.errors import Unsupported
from trainer.plot import plot_loss


def _metrics(path: Path, losses: list[float]) -> Path:
    rows = [{"step": step, "loss": loss, "lr": 1e-3} for step, loss in enumerate(losses)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize("losses", [[5.0], [5.0, 4.0, 3.5]])
def test_the_plot_is_svg_with_labels(losses: list[float], tmp_path: Path) -> None:
    plot_loss(_metrics(tmp_path / "m", losses), tmp_path / "loss.svg", title="a <run> & more")
    root = ET.parse(tmp_path / "loss.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "a <run> & more" in (tmp_path / "loss.svg").read_text(encoding="utf-8").replace("&lt;", "<").replace(
        "&gt;", ">"
    ).replace("&amp;", "&")


def test_nothing_to_plot_writes_nothing(tmp_path: Path) -> None:
    plot_loss(_metrics(tmp_path / "m", []), tmp_path / "loss.svg", title="t")
    assert not (tmp_path / "loss.svg").exists()


def test_without_matplotlib_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(Unsupported, match="matplotlib is not installed") as caught:
        plot_loss(_metrics(tmp_path / "m", [1.0]), tmp_path / "loss.svg", title="t")
    assert "[trainer]" in caught.value.hint
