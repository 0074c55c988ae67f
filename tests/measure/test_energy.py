"""The energy counters of a processor: several packages, one that begins anew, and none."""

from __future__ import annotations

from pathlib import Path

from auditkit.measure.energy import Packages, meter_of
from auditkit.replay.backend import Backend


def counter(folder: Path, microjoules: int, span: int = 10_000_000) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "energy_uj").write_text(f"{microjoules}\n", encoding="ascii")
    (folder / "max_energy_range_uj").write_text(f"{span}\n", encoding="ascii")


def test_packages_are_added_and_their_parts_are_not(tmp_path: Path) -> None:
    for name in ("intel-rapl:0", "intel-rapl:1", "intel-rapl:0:0"):
        counter(tmp_path / name, 1_000_000)
    meter = Packages.found(tmp_path)
    assert meter() == 0.0
    counter(tmp_path / "intel-rapl:0", 3_000_000)
    counter(tmp_path / "intel-rapl:1", 1_500_000)
    counter(tmp_path / "intel-rapl:0:0", 9_000_000)
    assert meter() == 2.5


def test_a_counter_that_begins_anew_goes_on(tmp_path: Path) -> None:
    counter(tmp_path / "intel-rapl:0", 9_000_000)
    meter = Packages.found(tmp_path)
    meter()
    counter(tmp_path / "intel-rapl:0", 500_000)
    assert meter() == 1.5


def test_what_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    assert Packages.found(tmp_path)() is None
    assert Packages.found(tmp_path / "nothing")() is None
    counter(tmp_path / "intel-rapl:0", 0)
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("secret", encoding="ascii")
    assert Packages.found(tmp_path)() is None


def test_every_back_end_has_a_meter(backend: Backend) -> None:
    found = meter_of(backend)()
    assert found is None or found >= 0
