"""`python -m rehearsal.simulators.vipu`: the simulated `vipu` command; with `serve`, the simulated server.

python -m rehearsal.simulators.vipu serve [--port 8090] [--settings JSON]    until Ctrl-C
python -m rehearsal.simulators.vipu install FOLDER                          an executable `vipu`
python -m rehearsal.simulators.vipu list partitions --api-host H            like all other commands of `vipu`
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rehearsal.simulators.vipu import command


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    match words:
        case ["install", folder]:
            sys.stdout.write(f"{command.install(Path(folder))}\n")
        case ["serve", *rest]:
            # Imported only here: without it, the command starts in a third of the time.
            from rehearsal.simulators.vipu.app import serve  # noqa: PLC0415

            sys.exit(serve(rest))
        case _:
            sys.exit(command.run(words, os.environ))


if __name__ == "__main__":
    main()
