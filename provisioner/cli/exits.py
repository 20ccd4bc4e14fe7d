"""The exit codes of all commands: one convention, which docs/commands.md repeats."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """How a command ended."""

    OK = 0
    ERROR = 1
    USAGE = 2
    NOT_SERVED = 3
    INTERRUPTED = 130


#: What each means, for people.
MEANINGS = {
    ExitCode.OK: "The command did what it is for. `check`: no check failed. `drain`: no node pool is left. `plan`: "
    "everything would be served.",
    ExitCode.ERROR: "The command failed, for example because a file or the cluster cannot be read. `check`: a check "
    "failed. `drain`: node pools are left.",
    ExitCode.USAGE: "The command line is wrong. Nothing was done.",
    ExitCode.NOT_SERVED: "`plan`: all files were read, and something in them would not be served. "
    "`partitions get`: the pod can get no partition as it is.",
    ExitCode.INTERRUPTED: "Interrupted by Ctrl-C.",
}
