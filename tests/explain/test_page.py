"""The page of an explanation: it holds what was found, escapes every text, runs nothing and reaches nowhere."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from auditkit.explain.explain import explain
from auditkit.explain.findings import Cause, Explanation, Quantity
from auditkit.explain.page import KIND, MARKER, page
from auditkit.replay.backend import choose
from auditkit.trust.page_file import PageFile
from tests.explain import planting
from tests.explain.planted import FAULTS
from tests.trust.browser import launched
from tests.trust.pages import HOSTILE
from tests.trust.test_page import Elements


@pytest.fixture(scope="module")
def found(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Explanation:
    fault = next(fault for fault in FAULTS if fault.op)
    return planting.explained(prepared, fault, tmp_path_factory.mktemp("page"), choose("numpy", 1))


def hostile(found: Explanation) -> Explanation:
    """The same with texts that try to break out."""
    word = HOSTILE[0]
    causes = [Cause("batch", text, word) for text in HOSTILE]
    quantities = [Quantity(word, q.standing, word) for q in found.quantities]
    report = replace(found.report, run=word, not_checked=tuple(HOSTILE))
    return replace(found, report=report, causes=causes, quantities=quantities, notes=HOSTILE, not_tried=HOSTILE)


def test_it_holds_what_was_found(found: Explanation) -> None:
    made = page(found, "auditkit 0")
    text = Elements(made.decode("utf-8")).text
    assert made.startswith(MARKER)
    assert found.message in text and found.parting is not None and found.parting.describe() in text
    assert found.pattern is not None and all(t.difference.name in text for t in found.pattern.tensors)
    assert all(q.detail in text for q in found.quantities)


def test_hostile_texts_make_no_elements(found: Explanation) -> None:
    tame, wild = (Elements(page(one, "auditkit 0").decode("utf-8")) for one in (found, hostile(found)))
    assert {tag for tag, _ in wild.tags} <= {tag for tag, _ in tame.tags} | {"ol", "li"}
    assert {name for _, attrs in wild.tags for name in attrs} == {name for _, attrs in tame.tags for name in attrs}
    assert "script" not in {tag for tag, _ in wild.tags}


def test_the_policy_allows_the_style_and_nothing_else(found: Explanation) -> None:
    source = page(found, "auditkit 0").decode("utf-8")
    style = re.findall(r"<style>(.*?)</style>", source, flags=re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style[0].encode()).digest()).decode()
    policy = next(
        attrs["content"] for tag, attrs in Elements(source).tags if "Content-Security-Policy" in attrs.values()
    )
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def test_a_page_goes_over_an_older_one_of_its_kind_only(found: Explanation, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    for _ in range(2):
        PageFile(str(path), marker=MARKER, kind=KIND).write(page(found, "auditkit 0"))
    from auditkit.errors import UsageError

    with pytest.raises(UsageError, match="is no coverage page"):
        PageFile(str(path))


def test_it_is_json_too(found: Explanation) -> None:
    value = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert (value["format"], value["verdict"], value["code"]) == ("auditkit/explain/v1", "MISMATCH", 3)
    assert value["first"]["name"] == "micro-batches" and value["confirmed"] is False
    assert value["trace"]["left"]["op"] == "rms_norm_forward"
    assert {row["standing"] for row in value["quantities"]} == {"same", "follows", "different", "unknown"}


def test_a_run_that_cannot_be_read_is_explained_by_its_verdict(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(b"{}")
    found = explain(tmp_path, step=0, backend=choose("numpy", 1))
    assert found.verdict.name == "BAD_ARTIFACT" and found.step is None
    assert b"there is no mismatch to explain" in page(found, "auditkit 0")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    yield from launched()


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (420, "dark")])
def test_in_a_browser(browser: Any, found: Explanation, tmp_path: Path, width: int, scheme: str) -> None:
    wrong: list[str] = []
    file = tmp_path / "page.html"
    file.write_bytes(page(hostile(found), "auditkit 0"))
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    tab = context.new_page()
    tab.on("request", lambda r: wrong.append(f"request {r.url}") if r.url != file.as_uri() else None)
    tab.on("pageerror", lambda e: wrong.append(f"error {e}"))
    tab.on("console", lambda m: wrong.append(f"console {m.text}"))
    tab.on("dialog", lambda d: wrong.append(f"dialog {d.message}"))
    tab.goto(file.as_uri())
    assert HOSTILE[0] in tab.inner_text("h1")
    assert tab.evaluate("window.broken") is None
    assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    colour = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert colour == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 23, 27)")
    assert tab.evaluate("[...document.querySelectorAll('td')].every(cell => cell.clientWidth > 20)")
    context.close()
    assert wrong == []
