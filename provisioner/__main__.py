"""Entry point of `python -m provisioner`."""

import sys

from provisioner.cli import main

if __name__ == "__main__":
    sys.exit(main())
