"""The coverage page: one HTML file that needs nothing else and reaches nowhere.

Its policy (a meta tag) allows the one script and the one style that were put in, by their SHA-256, and no request, form
or frame; so even a text that got past the escaping below could run nothing and fetch nothing.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from importlib.resources import files

from auditkit.trust.coverage import Coverage
from auditkit.trust.page_data import page_data
from auditkit.trust.page_parts import About, facts, footer, headline, legend, sections, text, warnings

_PLACE = re.compile("@@([A-Z]+)@@")


def page(coverage: Coverage, about: About) -> bytes:
    """The whole file in UTF-8; all texts of runs, auditors and files in it are escaped."""
    folder = files("auditkit.trust")
    style, script = ((folder / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    data = page_data(coverage, about.names)
    values = {
        "CSP": text(content_policy(style, script)),
        "TITLE": text(about.run),
        "STYLE": style,
        "HEADLINE": headline(coverage),
        "WARNINGS": warnings(about),
        "FACTS": facts(coverage, about),
        "LEGEND": legend(coverage),
        "SECTIONS": sections(coverage, about),
        "FOOTER": footer(about, data),
        "DATA": script_json(data.value),
        "SCRIPT": script,
    }
    return filled((folder / "page.html").read_text(encoding="utf-8"), values)


def filled(template: str, values: Mapping[str, str]) -> bytes:
    """A template in UTF-8, with HTML in its places `@@NAME@@`. KeyError: a place without a value."""
    # One pass: what is put in is not looked at again, so a text may hold a placeholder's name.
    return _PLACE.sub(lambda found: values[found[1]], template).encode("utf-8")


def script_json(value: object) -> str:
    """JSON that may stand inside a script element: ASCII, and no character that means anything to HTML."""
    plain = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return plain.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def content_policy(style: str, script: str = "") -> str:
    """The policy of a page with one style and one script, or none: these alone, and no request, form or frame."""

    def source(content: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode('utf-8')).digest()).decode('ascii')}'"

    scripts = f"script-src {source(script)}; " if script else ""
    return f"default-src 'none'; {scripts}style-src {source(style)}; base-uri 'none'; form-action 'none'"
