"""The commands."""

from provisioner.cli.main import main

__all__ = ["main"]
