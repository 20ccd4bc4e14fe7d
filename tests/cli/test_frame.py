"""Base of all commands: names, help, completion, exit codes, and lazy imports."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from provisioner.cli import main, output
from provisioner.cli.completion import complete_for_kubectl
from provisioner.cli.frame import wants_color
from provisioner.cli.main import COMMANDS
from provisioner.cli.output import ExitCode

#: Long time-out, because some of these tests start Python or a shell.
pytestmark = pytest.mark.timeout(60)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as error:
        main(list(arguments))
    assert error.value.code == ExitCode.USAGE
    said = capsys.readouterr()
    assert said.out == ""
    return said.err


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        pytest.param(["topolgies"], "No such command 'topolgies'. Did you mean 'topologies'?", id="a typing error"),
        pytest.param(["fly"], "No such command 'fly'.\n", id="a command that is like no other"),
        pytest.param(
            ["drain", "--tiemout=3s"], "No such option '--tiemout'. Did you mean '--timeout'?", id="an option"
        ),
        pytest.param(["check", "-o", "jsn"], "'jsn' is not one of 'json', 'yaml', 'text'", id="a value"),
        pytest.param(["topologies", "a", "b"], "unexpected extra argument", id="an argument too many"),
        pytest.param([], "Usage: tpu-provisioner [OPTIONS] COMMAND", id="no command"),
    ],
)
def test_wrong_command_line_gets_a_message_with_a_suggestion(
    arguments: list[str], want: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert want in refused(capsys, *arguments)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_has_examples_with_the_name_of_the_program(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program may be a separate command or a plugin of kubectl; no line is wider than a terminal."""
    for program, shown in (("/usr/bin/tpu-provisioner", "tpu-provisioner"), ("/usr/bin/kubectl-tpu", "kubectl tpu")):
        monkeypatch.setattr(sys, "argv", [program, name, "--help"])
        assert main() == ExitCode.OK
        told = capsys.readouterr().out
        assert told.startswith(f"Usage: {shown} {name}")
        _, _, examples = told.partition("\nExamples:\n")
        assert f"{shown} {name}" in examples
        assert max(map(len, told.splitlines())) <= 80


def test_help_lists_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == ExitCode.OK
    told = capsys.readouterr().out
    assert all(f"\n  {name}" in told for name in COMMANDS)


@pytest.mark.parametrize(
    ("environment", "want"),
    [
        pytest.param({}, None, id="as the terminal allows"),
        pytest.param({"NO_COLOR": "1"}, False, id="not with NO_COLOR"),
        pytest.param({"NO_COLOR": ""}, None, id="an empty NO_COLOR is none"),
        pytest.param({"TERM": "dumb"}, False, id="not on a terminal that cannot"),
    ],
)
def test_colours_are_disabled_by_no_color_and_dumb_terminals(environment: dict[str, str], *, want: bool | None) -> None:
    """The rules are those of https://no-color.org."""
    assert wants_color(environment) is want


@pytest.mark.parametrize("given", ["", "1"], ids=["colours", "NO_COLOR"])
def test_text_on_a_terminal_has_colours_unless_no_color_is_set(
    given: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NO_COLOR", given)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    with click.Context(click.Command("plan"), color=wants_color()).scope():
        output.show(click.style("Not served", fg="red"))
    assert ("\x1b[" in capsys.readouterr().out) is not bool(given)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_is_valid_in_its_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == ExitCode.OK
    script = capsys.readouterr().out
    assert f"_TPU_PROVISIONER_COMPLETE={shell}_complete" in script
    program = shutil.which(shell)
    if program is not None:
        subprocess.run([program, "-n"], input=script, text=True, check=True, timeout=30)


def completed(words: str, *, shell: str = "bash") -> list[str]:
    """Return the completions of a line, requested as bash's completion script does."""
    done = subprocess.run(
        [sys.executable, "-m", "provisioner"],
        env={
            **os.environ,
            "_TPU_PROVISIONER_COMPLETE": f"{shell}_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split(" ")) - 1),
        },
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("words", "want"),
    [
        pytest.param("tpu-provisioner top", ["topologies"], id="a command"),
        pytest.param("tpu-provisioner topologies --a", ["--all"], id="an option"),
        pytest.param("tpu-provisioner topologies tpu-v5p", ["tpu-v5p-slice"], id="a value"),
        pytest.param("tpu-provisioner completion z", ["zsh"], id="one of a few words"),
    ],
)
def test_shell_completes_commands_options_and_values(words: str, want: list[str]) -> None:
    assert completed(words) == want


@pytest.mark.parametrize(
    ("words", "want"),
    [
        pytest.param(["to"], [f"topologies\t{COMMANDS['topologies'][1]}", ":4"], id="a command with its line"),
        pytest.param(["topologies", "tpu-v5p"], ["tpu-v5p-slice", ":4"], id="a value"),
        pytest.param(["status", "--kubeconfig", "ku"], [":0"], id="a file, which the shell completes"),
    ],
)
def test_kubectl_completes_the_plugin(
    words: list[str], want: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program is started by kubectl as `kubectl_complete-tpu`, and responds in Cobra's protocol."""
    monkeypatch.setattr(sys, "argv", ["kubectl_complete-tpu", *words])
    assert complete_for_kubectl() == 0
    assert capsys.readouterr().out.splitlines() == want


_CLIENTS = {"cryptography", "google", "kubernetes", "msgspec", "requests", "rich", "starlette", "structlog", "uvicorn"}


@pytest.mark.parametrize(
    ("words", "heavy"),
    [
        pytest.param(["--help"], {*_CLIENTS, "yaml"}, id="the list of commands"),
        pytest.param(["topologies"], _CLIENTS, id="topologies"),
        pytest.param(
            ["plan", "-f", "examples/jobset.yaml"],
            {*_CLIENTS, "email", "http.client", "json", "shutil", "ssl", "urllib.request", "urllib3"},
            id="plan",
        ),
    ],
)
def test_offline_command_imports_no_client(words: list[str], heavy: set[str]) -> None:
    """Clients take longer to import than all other modules."""
    script = (
        f"import sys; from provisioner.cli import main; main({words!r}); "
        f"sys.exit(', '.join({heavy!r} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_reading_objects_imports_no_client() -> None:
    """Commands that only read manifests must not wait for the import of the client."""
    script = "import sys, provisioner.workloads.pods; sys.exit('kubernetes' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=60).returncode == 0


#: Unbuffered output fails immediately if the reader has closed the pipe, buffered output only at the end.
_BUFFERING = pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])


@_BUFFERING
@pytest.mark.parametrize(
    "line",
    ["--help", "run --help", "topologies --all", "completion bash", "plan -f {manifest}", "plan -o json -f {manifest}"],
)
def test_closed_pipe_is_no_error(line: str, unbuffered: str) -> None:
    """`... | head` ends without a message, for each command and any amount of output."""
    manifest = Path(__file__).parents[2] / "examples" / "jobset.yaml"
    with subprocess.Popen(
        [sys.executable, "-m", "provisioner", *line.format(manifest=manifest).split()],
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""


@pytest.mark.parametrize("line", ["--version", "run --help", "topologies tpu7x"])
def test_closed_standard_output_is_no_error(line: str) -> None:
    """Some supervisors start programs without standard output, like `>&-` in a shell."""
    command = f'exec "{sys.executable}" -m provisioner {line} >&-'
    done = subprocess.run(["/bin/sh", "-c", command], stderr=subprocess.PIPE, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
