"""Commands of the program `tpu-provisioner`."""

from provisioner.cli.main import main

__all__ = ["main"]
