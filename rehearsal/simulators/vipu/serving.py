"""The simulated V-IPU server as a command."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from rehearsal.simulators.http.settings import SettingsError
from rehearsal.simulators.vipu.app import VipuSimulator
from rehearsal.simulators.vipu.settings import VipuSettings


def serve(arguments: Sequence[str]) -> int:
    """Serve until SIGINT or SIGTERM, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m rehearsal.simulators.vipu serve")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8090)
    parser.add_argument("--settings", type=json.loads, default={}, help="JSON, as PUT to /simulator/v1/settings")
    options = parser.parse_args(arguments)
    try:
        vipu = VipuSimulator(_settings_of(options.settings), host=options.host, port=options.port)
    except SettingsError as error:
        sys.stderr.write(f"settings: {error}\n")
        return 2
    return vipu.serve(
        "V-IPU simulator", lambda _url: f"set VIPU_SERVERS={vipu.host}:{vipu.port} for the controller of partitions"
    )


def _settings_of(raw: object) -> VipuSettings:
    if not isinstance(raw, dict):
        raise SettingsError(f"{raw!r} is not a JSON object")
    # What can be set only at startup cannot be changed afterwards, so it goes first.
    fixed = {name: raw[name] for name in VipuSettings.fixed if name in raw}
    return VipuSettings(**fixed).changed(raw)
