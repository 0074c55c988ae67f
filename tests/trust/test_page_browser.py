"""The coverage page in a browser: by keyboard alone, from the whole run to one step, in both schemes, no request."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from auditkit.trust.coverage import Coverage
from auditkit.trust.page import page
from tests.trust.browser import launched
from tests.trust.pages import HOSTILE, about, every_status, many

Open = Callable[..., Any]
FOCUSED = "document.activeElement.getAttribute('aria-label')"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One browser for all tests of this file."""
    yield from launched()


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Open the page of a coverage; at the end nothing but that file was requested, and no script failed."""
    wrong: list[str] = []
    contexts = []

    def opened(coverage: Coverage, *, width: int = 1200, scripts: bool = True, **options: Any) -> Any:
        file = tmp_path / f"page{len(contexts)}.html"
        file.write_bytes(page(coverage, about()))
        context = browser.new_context(viewport={"width": width, "height": 900}, java_script_enabled=scripts, **options)
        contexts.append(context)
        tab = context.new_page()
        tab.on("request", lambda r: wrong.append(f"request {r.url}") if r.url != file.as_uri() else None)
        tab.on("pageerror", lambda e: wrong.append(f"error {e}"))
        tab.on("console", lambda m: wrong.append(f"console {m.text}"))
        tab.on("dialog", lambda d: wrong.append(f"dialog {d.message}"))
        tab.goto(file.as_uri())
        return tab

    yield opened
    for context in contexts:
        context.close()
    assert wrong == []


def press(tab: Any, *keys: str) -> str:
    """Press keys and give the label of what has the focus."""
    for key in keys:
        tab.keyboard.press(key)
    return str(tab.evaluate(FOCUSED))


def enter_map(tab: Any) -> None:
    """Tab until a cell of the map has the focus."""
    for _ in range(12):
        tab.keyboard.press("Tab")
        if tab.evaluate("document.activeElement.getAttribute('role')") == "gridcell":
            return
    raise AssertionError("the map cannot be reached with Tab")


def test_from_the_whole_run_to_one_step_and_back_with_the_keyboard(show: Open) -> None:
    tab = show(every_status(100_000))
    assert "100 steps a cell" in tab.inner_text("#where")
    enter_map(tab)
    label = tab.evaluate(FOCUSED)
    assert label == "steps 0 to 99: 1 mismatch, 1 disputed, 1 open, 1 partial, 96 covered"
    assert press(tab, "ArrowRight", "ArrowDown") == "steps 5,100 to 5,199: 100 covered"
    assert press(tab, "Home", "ArrowUp") == label
    # into the cell, to the worst step in it
    assert press(tab, "+") == "steps 0 to 9: 1 mismatch, 1 disputed, 1 open, 1 partial, 6 covered"
    assert press(tab, "Enter") == "step 3: mismatch"
    assert "one step a cell" in tab.inner_text("#live")
    tab.keyboard.press("Enter")
    assert tab.evaluate("document.activeElement.id") == "step"
    assert "Step 3: mismatch, 4 attestations" in tab.inner_text("#live")
    assert tab.inner_text("#h-step").strip() == "Step 3: mismatch"
    assert press(tab, "Escape") == "step 3: mismatch"
    assert press(tab, "ArrowLeft") == "step 2: disputed"
    assert press(tab, "-", "-") == label
    assert tab.is_disabled("#b-out")


def test_the_view_moves_on_over_its_edges(show: Open) -> None:
    tab = show(every_status(100_000))
    enter_map(tab)
    press(tab, "+", "+")
    assert press(tab, "PageDown") == "step 1,000: covered"
    assert press(tab, "ArrowLeft") == "step 999: covered"
    assert press(tab, "ArrowDown") == "step 1,049: covered"
    assert press(tab, "End", "PageUp") == "step 999: covered"
    tab.fill("#goto", "99,999")
    tab.focus("#goto")
    tab.keyboard.press("Enter")
    assert tab.inner_text("#h-step").strip() == "Step 99,999: open"
    assert press(tab, "Escape", "ArrowRight", "PageDown", "End") == "step 99,999: open"
    tab.fill("#goto", "100000")
    tab.keyboard.press("Enter")
    assert "no such step" in tab.inner_text("#live")


def test_findings_are_found_one_after_the_other(show: Open) -> None:
    tab = show(every_status(100_000))
    enter_map(tab)
    assert press(tab, "n") == "step 2: disputed"
    assert press(tab, "n") == "step 3: mismatch"
    assert press(tab, "n") == "step 2: disputed"
    clean = show(many(0, 50, 0))
    enter_map(clean)
    press(clean, "n")
    assert "No step of this run" in clean.inner_text("#live")


def test_the_focus_is_seen_and_is_on_one_cell_only(show: Open) -> None:
    tab = show(every_status(3000))
    enter_map(tab)
    press(tab, "ArrowRight", "ArrowDown")
    assert tab.eval_on_selector_all('#map [tabindex="0"]', "found => found.length") == 1
    width = tab.evaluate("getComputedStyle(document.activeElement).outlineWidth")
    style = tab.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert float(width.removesuffix("px")) >= 2
    assert style == "solid"


def test_every_detail_of_a_step_is_told(show: Open) -> None:
    tab = show(every_status(40))
    tab.click('#map [data-cell="3"]')
    said = tab.inner_text("#step-text")
    assert "MISMATCH" in said
    assert "replaced by what the same key says now" in said
    assert "computed result 1" in said
    assert f"Result 1: {HOSTILE[0]}" in said
    assert "2023-11-14" in said
    tab.click('#map [data-cell="4"]')
    said = tab.inner_text("#step-text")
    assert "UNAVAILABLE" in said
    assert re.search(r"nightly; does not count; automation \(nightly\)", said)


def test_a_view_is_a_table_too(show: Open) -> None:
    tab = show(every_status(100_000))
    tab.focus("#view > summary")
    tab.keyboard.press("Enter")
    rows = tab.eval_on_selector_all("#view-table tr", "rows => rows.map(r => [...r.children].map(c => c.textContent))")
    assert rows[0] == ["steps", "mismatch", "disputed", "open", "partial", "covered"]
    assert rows[1] == ["0 to 99", "1", "1", "1", "1", "96"]
    assert len(rows) == 1001


def test_hostile_texts_run_nothing(show: Open) -> None:
    tab = show(every_status(40))
    for cell in range(6):
        tab.click(f'#map [data-cell="{cell}"]')
    assert tab.evaluate("window.broken") is None
    assert tab.evaluate("document.querySelectorAll('bdi img, bdi svg, bdi script').length") == 0
    assert tab.inner_text("h1") == HOSTILE[0]


INTRUDE = """(address) => {
    window.refused = [];
    document.addEventListener("securitypolicyviolation", e => window.refused.push(e.effectiveDirective));
    const put = (tag, set) => document.body.append(Object.assign(document.createElement(tag), set));
    put("script", {text: "window.broken = 1"});
    put("style", {textContent: "h1 { color: red }"});
    put("img", {src: address + "x.png"});
    put("iframe", {src: address});
    return fetch(address).catch(() => 0);
}"""


def received(server: socket.socket) -> bytes:
    """What came over all connections so far; Chromium opens an idle one before it looks whether a frame is allowed."""
    server.setblocking(False)
    found = b""
    with contextlib.suppress(BlockingIOError):
        while True:
            connection, _ = server.accept()
            with connection, contextlib.suppress(BlockingIOError):
                connection.setblocking(False)
                found += connection.recv(4096)
    return found


def test_the_policy_stops_scripts_styles_and_requests(browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_bytes(page(every_status(40), about()))
    with socket.create_server(("127.0.0.1", 0)) as server:
        tab = browser.new_page()
        tab.goto(file.as_uri())
        tab.evaluate(INTRUDE, f"http://127.0.0.1:{server.getsockname()[1]}/")
        tab.wait_for_function("window.refused.length >= 5")
        refused = set(tab.evaluate("window.refused"))
        assert refused == {"script-src-elem", "style-src-elem", "img-src", "frame-src", "connect-src"}
        assert tab.evaluate("window.broken") is None
        tab.close()
        assert received(server) == b""


def luminance(colour: str) -> float:
    """WCAG's relative luminance of `rgb(r, g, b)`."""
    parts = [int(text) / 255 for text in re.findall(r"\d+", colour)[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, two: str) -> float:
    """WCAG's contrast ratio."""
    light, dark = sorted((luminance(one), luminance(two)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_schemes_can_be_read(show: Open, scheme: str) -> None:
    tab = show(every_status(40), color_scheme=scheme)

    def colour(selector: str, name: str) -> str:
        return str(tab.eval_on_selector(selector, f"e => getComputedStyle(e).{name}"))

    paper = colour("body", "backgroundColor")
    assert (luminance(paper) < 0.1) == (scheme == "dark")
    assert contrast(paper, colour("body", "color")) > 7
    assert contrast(paper, colour(".small", "color")) > 4.5
    covered, opened = colour(".legend .s4", "backgroundColor"), colour(".legend .s2", "backgroundColor")
    assert contrast(covered, opened) > 3
    assert contrast(covered, paper) > 3
    # a finding has a sign of its own, so its colour need not be told from the others
    assert tab.evaluate("getComputedStyle(document.querySelector('.legend .s0'), '::after').content") == '"\u00d7"'
    assert tab.evaluate("getComputedStyle(document.querySelector('.legend .s1'), '::after').content") == '"?"'


@pytest.mark.parametrize("width", [360, 1200])
def test_it_fits_the_screen(show: Open, width: int) -> None:
    tab = show(every_status(100_000), width=width)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    tab.set_viewport_size({"width": 1560 - width, "height": 800})
    tab.wait_for_function("document.documentElement.scrollWidth <= window.innerWidth")


def test_without_scripts_the_tables_are_there(show: Open) -> None:
    tab = show(every_status(40), scripts=False)
    assert not tab.is_visible("#tool")
    assert "Every table below works without them" in tab.inner_text("noscript")
    assert "step 4" in tab.inner_text("main")


def test_print_shows_the_map_and_whole_tables_on_white(show: Open) -> None:
    tab = show(every_status(3000), color_scheme="dark")
    tab.emulate_media(media="print", color_scheme="dark")
    assert not tab.is_visible(".bar")
    assert tab.is_visible("#map")
    assert luminance(str(tab.eval_on_selector("body", "e => getComputedStyle(e).backgroundColor"))) == 1
    assert tab.eval_on_selector(".scroll", "e => getComputedStyle(e).maxHeight") == "none"


def test_a_million_attestations_open(show: Open) -> None:
    coverage = many(1_000_000, 100_000, 1000)
    tab = show(coverage)
    tab.fill("#goto", "50000")
    tab.click("#b-goto")
    listed = int((coverage.rows.step == 50_000).sum())
    assert f"{listed} attestations listed" in tab.inner_text("#step-text")
    assert tab.eval_on_selector_all("#step-text tbody tr", "rows => rows.length") == listed > 1
