"""Tests that the documentation is short enough to be read.

The count of words excludes text that readers skip: code blocks, comments, targets of links, descriptions of pictures,
and the characters that draw tables. All words of a command or a name in the text count.
"""

import re

from tests.docs.shell import ROOT

#: Maximum number of words of the README and of docs, including the generated pages.
MAX_WORDS = 40_000
MAX_README_LINES = 110
MAX_ARCHITECTURE_WORDS = 1_300
_UNREAD = re.compile(r"(?ms)<!--.*?-->|^ *```.*?^ *```$|!\[[^]]*\]|(?<=\])\([^)]*\)")


def words_of(markdown: str) -> int:
    return sum(any(map(str.isalnum, word)) for word in _UNREAD.sub("", markdown).split())


def test_documentation_is_short() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    words = sum(words_of(page.read_text("utf-8")) for page in pages)
    assert words <= MAX_WORDS, f"remove {words - MAX_WORDS} words from any pages; generated pages count as well"


def test_readme_fits_on_two_screens() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= MAX_README_LINES


def test_architecture_page_can_be_read_in_ten_minutes() -> None:
    assert words_of((ROOT / "docs" / "develop" / "architecture.md").read_text("utf-8")) <= MAX_ARCHITECTURE_WORDS


def test_code_and_link_targets_do_not_count_as_words() -> None:
    assert words_of("Two [words](page.md#anchor) | - |\n\n```bash\nno words here\n```\n") == 2
