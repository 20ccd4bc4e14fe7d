"""Runs the examples in docs/commands.md and compares their output with the page.

Commands that need the controller, the cluster or GKE run against worlds of the tests. With `COMMANDS_PAGE=write` in the
environment, the tests write the output to the page, so that `git diff` shows the changes.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from provisioner.cli import main
from provisioner.cli.main import COMMANDS
from provisioner.cli.output import ExitCode
from provisioner.model.capacity import FailureKind
from provisioner.settings import OPTIONS
from rehearsal.commands.main import COMMANDS as REHEARSAL_COMMANDS
from tests.docs.shell import ROOT
from tests.slices.test_drain import Person, world
from tests.support.board import make_board
from tests.support.models import make_jobset
from tests.support.settings import settings
from tests.support.wire_server import Answer, WireServer
from tests.support.world import World, failure

#: Long time-out, because some examples import all of Google's libraries.
pytestmark = pytest.mark.timeout(60)

PAGE = ROOT / "docs" / "commands.md"
_EXAMPLE = re.compile(r"```bash\n(?P<command>[^`]*?)\n```\n+```text\n(?P<output>[^`]*)```")
EXAMPLES = [(example["command"], example["output"]) for example in _EXAMPLE.finditer(PAGE.read_text(encoding="utf-8"))]
__all__ = ["world"]


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the commands in the repository and without settings in the environment, as the page assumes."""
    for option in OPTIONS:
        monkeypatch.delenv(option.variable, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(ROOT)


def ours(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    main(words)
    return capsys.readouterr().out


@contextmanager
def controller() -> Iterator[str]:
    """Serve the board of a provisioner with one JobSet that runs and one JobSet that waits for capacity."""
    server = WireServer()
    stage = World(make_jobset("train"), settings_=settings(max_chips=64))
    stage.live(4)
    stage.refuse_create = lambda _: failure(FailureKind.STOCKOUT, "us-central2-b does not have enough resources.")
    stage.add(make_jobset("late", namespace="team-b"))
    stage.run(3)
    board = make_board(lambda: stage.now, stage.now.timestamp)
    board.publish(stage.snapshot(), stage.look(), stage.settings, stage.now)
    server.answer("GET /api/v1/board", Answer(body=board.everything()[1]))
    try:
        yield server.url
    finally:
        server.close()


def printed(command: str, capsys: pytest.CaptureFixture[str], person: Callable[[], str]) -> str:
    program, *words = shlex.split(command.rpartition(" -- ")[2])
    assert program == "tpu-provisioner"
    match words[0]:
        case "status" | "explain" | "gc":
            with controller() as url:
                return ours([*words, "--server", url], capsys)
        case "drain":
            return person()
        case _:
            return ours(words, capsys)


@pytest.mark.parametrize(("command", "output"), EXAMPLES, ids=[command for command, _ in EXAMPLES])
def test_example_prints_the_output_on_the_page(
    command: str, output: str, capsys: pytest.CaptureFixture[str], world: object
) -> None:
    def person() -> str:
        world.run_to_use()  # type: ignore[attr-defined]
        return f"{Person(world)().text}\n"  # type: ignore[arg-type]

    # Blanks at the ends of lines are removed, because lines of the page have none.
    told = "".join(f"{line.rstrip()}\n" for line in printed(command, capsys, person).strip("\n").splitlines())
    if os.environ.get("COMMANDS_PAGE") == "write":
        text = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(
            text.replace(
                f"```bash\n{command}\n```\n\n```text\n{output}", f"```bash\n{command}\n```\n\n```text\n{told}"
            ),
            encoding="utf-8",
        )
        return
    assert told == output


def test_every_command_has_a_section_with_an_example() -> None:
    text = PAGE.read_text(encoding="utf-8")
    sections = re.findall(r"(?m)^## `([a-z-]+)`$", text)
    assert sections == [*COMMANDS]
    for name in COMMANDS:
        assert f"tpu-provisioner {name}" in text.partition(f"\n## `{name}`")[2].partition("\n## ")[0]


def test_page_on_rehearsals_names_every_command() -> None:
    text = (ROOT / "docs" / "develop" / "simulator.md").read_text(encoding="utf-8")
    rows = re.findall(r"(?m)^\| (.+?) \|", text)
    named = {name for row in rows for name in re.findall(r"(?:make|tpu-rehearsal) ([a-z-]+)", row)}
    assert named == {*REHEARSAL_COMMANDS}


def test_exit_codes_on_the_page_are_those_of_the_code() -> None:
    rows = re.findall(r"(?m)^\| (\d+) \| ", PAGE.read_text(encoding="utf-8").partition("## Exit codes")[2])
    assert rows == [str(int(code)) for code in ExitCode]
