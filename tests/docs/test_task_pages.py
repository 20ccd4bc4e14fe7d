"""Runs the examples of `plan` in docs/tasks and compares their output with the page.

The files are the blocks after a sentence that names them, such as "Save it as `train.yaml`". With `COMMANDS_PAGE=write`
in the environment, the tests write the output to the pages, so that `git diff` shows the changes.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
import yaml

from provisioner.cli import main
from provisioner.settings import OPTIONS
from tests.docs.shell import ROOT

#: Long time-out, because `plan` reads the list of all machine types first.
pytestmark = pytest.mark.timeout(60)

_PAGES = sorted((ROOT / "docs" / "tasks").glob("*.md"))
_FILE = re.compile(r"`(?P<name>[\w.]+\.(?:yaml|env))`[^`]*(?:`[^`]+`[^`]*){0,6}?\n\n```(?:yaml)?\n(?P<text>[^`]*)```")
_EXAMPLE = re.compile(r"```bash\n(?P<command>tpu-provisioner plan [^`\n]*)\n```\n\n```text\n(?P<output>[^`]*)```")
EXAMPLES = [
    pytest.param(page, example["command"], example["output"], id=page.stem)
    for page in _PAGES
    for example in _EXAMPLE.finditer(page.read_text("utf-8"))
]


@pytest.mark.parametrize(("page", "command", "output"), EXAMPLES)
def test_plan_prints_the_output_on_the_page(
    page: Path,
    command: str,
    output: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for option in OPTIONS:
        monkeypatch.delenv(option.variable, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for file in _FILE.finditer(page.read_text("utf-8")):
        (tmp_path / file["name"]).write_text(file["text"], encoding="utf-8")
    monkeypatch.chdir(tmp_path)

    main(shlex.split(command)[1:])

    printed = "".join(f"{line.rstrip()}\n" for line in capsys.readouterr().out.strip("\n").splitlines())
    if os.environ.get("COMMANDS_PAGE") == "write":
        text = page.read_text("utf-8")
        page.write_text(text.replace(f"{command}\n```\n\n```text\n{output}", f"{command}\n```\n\n```text\n{printed}"))
        return
    assert printed == output


def test_each_task_page_except_serve_has_an_example_of_plan() -> None:
    assert {example.values[0] for example in EXAMPLES} >= {page for page in _PAGES if page.stem != "serve"}


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.stem)
def test_manifests_on_the_page_are_yaml(page: Path) -> None:
    blocks = re.findall(r"(?s)```yaml\n(.*?)```", page.read_text("utf-8"))
    assert blocks
    for block in blocks:
        assert all(isinstance(document, dict) for document in yaml.safe_load_all(block))
