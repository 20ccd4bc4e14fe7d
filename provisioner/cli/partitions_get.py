"""`tpu-provisioner partitions get`: the program of the init container of pods with IPUs."""

import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

import click

from provisioner.cli.frame import command_with, file_option
from provisioner.cli.output import ExitCode, plain, refuse
from provisioner.partitions import client, names

_VARIABLES = (names.NAMESPACE_VARIABLE, names.POD_VARIABLE, names.UID_VARIABLE, names.SIZE_VARIABLE)


@command_with("{prog} partitions get --server=http://tpu-provisioner-partitions.tpu-provisioner-system.svc")
@click.option("--server", required=True, metavar="URL", help="where the REST API is")
@file_option(
    "--ca-file",
    "authorities that sign the certificate of an https server; read again each time (default: the system's)",
)
@file_option("--file", "write the IPUoF configuration there (default: only wait)")
@file_option(
    "--token-file",
    "the token of the pod; read again each time",
    default=f"{names.TOKEN_DIRECTORY}/{names.TOKEN_FILE}",
    show_default=True,
)
@click.option(
    "--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="give up after this time (default: never)"
)
def command(server: str, ca_file: str | None, file: str | None, token_file: str, timeout: float | None) -> int:
    """Wait until the pod's partition is active, and write its configuration.

    The pod is named by the variables POD_NAMESPACE, POD_NAME, POD_UID and IPUS, which the
    webhook sets. The command ends early only after --timeout, or if no partition can satisfy
    the pod.
    """
    missing = [variable for variable in _VARIABLES if not os.environ.get(variable)]
    size = os.environ.get(names.SIZE_VARIABLE, "")
    if missing:
        return refuse(f"not set: {', '.join(missing)}; the webhook sets them in the init container")
    if not (size.isascii() and size.isdigit()):
        return refuse(f"{names.SIZE_VARIABLE} is {size!r}, but must be a number of IPUs")
    if not server.startswith(("http://", "https://")):
        return refuse(f"--server is {server!r}, but must begin with http:// or https://")
    if ca_file is not None and not server.startswith("https://"):
        return refuse("--ca-file needs a --server that begins with https://")
    from random import random  # noqa: PLC0415 - 10 ms that --help need not spend

    # Without a handler, SIGTERM would not end process 1 of a container.
    signal.signal(signal.SIGTERM, _end)
    waiting = client.Client(
        asked={
            "namespace": os.environ[names.NAMESPACE_VARIABLE],
            "pod": os.environ[names.POD_VARIABLE],
            "uid": os.environ[names.UID_VARIABLE],
            "size": int(size),
        },
        send=client.sender(server, ca_file),
        token=lambda: Path(token_file).read_text(encoding="utf-8").strip(),
        say=_say,
        chance=random,
        patience_seconds=timeout,
    )
    try:
        configuration = waiting.fetch()
        if file is not None:
            client.write_file(Path(file), configuration)
    except client.NotServed as error:
        _say(f"the pod gets no partition: {error}")
        return ExitCode.NOT_SERVED
    except (client.GaveUp, OSError) as error:
        return refuse(str(error))
    _say("the partition is active" + (f"; its configuration is in {file}" if file is not None else ""))
    return ExitCode.OK


def _say(text: str) -> None:
    sys.stderr.write(f"{plain(text)}\n")
    sys.stderr.flush()


def _end(_number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt
