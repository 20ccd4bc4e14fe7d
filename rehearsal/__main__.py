"""Entry point of `python -m rehearsal`."""

import sys

from rehearsal.commands.main import main

if __name__ == "__main__":
    sys.exit(main())
