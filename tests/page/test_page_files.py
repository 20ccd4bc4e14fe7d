"""The page's files: all are served, with a content security policy that they comply with."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

import provisioner.slices
from provisioner.runtime.resources import file_pages

_FOLDER = Path(str(resources.files(provisioner.slices) / "page"))
_SOURCES = {path.name: path.read_text("utf-8") for path in _FOLDER.iterdir() if path.suffix in (".js", ".html", ".css")}


def test_every_file_is_served() -> None:
    served = {page.path.rpartition("/")[2] or "index.html": page.make() for page in file_pages("provisioner.slices")}
    assert {name: content.body.decode() for name, content in served.items()} == _SOURCES
    types = {".js": "text/javascript", ".html": "text/html", ".css": "text/css"}
    for name, content in served.items():
        assert content.headers["Content-Type"] == f"{types[Path(name).suffix]}; charset=utf-8"
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in content.headers["Content-Security-Policy"]
        assert "unsafe" not in content.headers["Content-Security-Policy"]
        assert content.headers["ETag"]


def test_no_script_makes_markup_from_text() -> None:
    """Users choose names, so a name that becomes markup could run a script."""
    unsafe = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|srcdoc|\beval\(|new Function"
    )
    assert {name: unsafe.findall(text) for name, text in _SOURCES.items() if unsafe.findall(text)} == {}


def test_no_other_host_is_named() -> None:
    """Otherwise the page could load files from other hosts; links to Google's console are allowed."""
    others = re.compile(r"https?://(?!www\.w3\.org/2000/svg|console\.cloud\.google\.com/)")
    assert {name: others.findall(text) for name, text in _SOURCES.items() if others.findall(text)} == {}


def test_all_files_together_are_small() -> None:
    """The API server's proxy and port-forwards are slow, and a browser loads all files before it shows anything."""
    assert sum(len(text.encode()) for text in _SOURCES.values()) < 120_000
