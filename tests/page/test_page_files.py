"""The page's files: all are served, under a policy that they keep."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import provisioner.slices
from provisioner.runtime.resources import file_pages

_FOLDER = Path(str(resources.files(provisioner.slices) / "page"))
_SOURCES = {path.name: path.read_text("utf-8") for path in _FOLDER.iterdir() if path.suffix in (".js", ".html", ".css")}


def test_every_file_is_served() -> None:
    """With its media type, the policy, and a tag that a browser can ask with."""
    served = {each.path.rpartition("/")[2] or "index.html": each.make() for each in file_pages("provisioner.slices")}
    assert {name: content.body.decode() for name, content in served.items()} == _SOURCES
    types = {".js": "text/javascript", ".html": "text/html", ".css": "text/css"}
    for name, content in served.items():
        assert content.media_type == f"{types[Path(name).suffix]}; charset=utf-8"
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in content.headers["Content-Security-Policy"]
        assert "unsafe" not in content.headers["Content-Security-Policy"]
        assert content.headers["ETag"]


def test_every_import_leads_to_a_file() -> None:
    """Modules name each other by relative addresses."""
    for name, text in _SOURCES.items():
        for found in re.findall(r'from "([^"]+)"', text):
            assert found.removeprefix("./") in _SOURCES, name


def test_no_script_makes_markup_from_text() -> None:
    """Names are chosen by users: they reach the page as text alone, which a browser tries too."""
    unsafe = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|srcdoc|\beval\(|new Function"
    )
    assert {name: unsafe.findall(text) for name, text in _SOURCES.items() if unsafe.findall(text)} == {}


class _Addresses(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.inline: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("src", "href") and value is not None:
                self.found.append(value)
            if name == "style" or name.startswith("on"):
                self.inline.append(f"{tag} {name}")
        if tag == "style":
            self.inline.append(tag)


def test_the_document_names_relative_addresses_alone() -> None:
    """It is served under the paths of proxies, too, and asks no other host for anything."""
    parser = _Addresses()
    parser.feed(_SOURCES["index.html"])
    assert parser.inline == []
    assert [each for each in parser.found if not re.match(r"page/|api/|\./|\?|#|data:", each)] == []
    assert (
        re.findall(r"https?://(?!www\.w3\.org/2000/svg|console\.cloud\.google\.com/)", "".join(_SOURCES.values())) == []
    )
