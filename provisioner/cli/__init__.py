"""The commands: run, drain, topologies, demo, simulator."""

from provisioner.cli.main import main

__all__ = ["main"]
