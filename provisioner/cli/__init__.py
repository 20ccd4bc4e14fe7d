"""The commands: run, demo, simulator."""

from provisioner.cli.main import main

__all__ = ["main"]
