"""Tests of starting programs whose port was taken since it was chosen, and of their environment."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rehearsal.localcluster.binaries import Binaries
from rehearsal.localcluster.cluster import Component
from rehearsal.localcluster.components import Plan, Site
from rehearsal.localcluster.credentials import Credentials
from rehearsal.localcluster.ports import HOST, free_ports

#: Long time-out, because these tests start processes.
pytestmark = pytest.mark.timeout(60)

# The server ends with the message of Go programs if its port is taken.
SERVER = """
import socket, sys
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
try:
    listener.bind(("127.0.0.1", int(sys.argv[1])))
except OSError as error:
    sys.exit("listen tcp: bind: address already in use" if error.errno == 98 else str(error))
listener.listen()
print("listening", flush=True)
listener.accept()
"""


@pytest.fixture
def site(tmp_path: Path) -> Site:
    (tmp_path / "logs").mkdir()
    credentials = Credentials.create(tmp_path / "credentials")
    return Site(directory=tmp_path, binaries=Binaries(programs={}, manifests={}), credentials=credentials)


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        yield other.getsockname()[1]


def _component(site: Site, ports: list[int], code: str = SERVER) -> Component:
    def plan(_: Site) -> Plan:
        port = ports.pop(0)
        return Plan(
            command=(sys.executable, "-c", code, str(port)),
            ready=lambda: component.process.last_lines(1) == ["listening"],
            port=port,
        )

    component = Component("server", site, plan, timeout_seconds=20)
    return component


def test_program_whose_port_is_taken_starts_on_another_port(site: Site, taken_port: int) -> None:
    (free,) = free_ports(1)
    component = _component(site, [taken_port, free])
    component.start()
    component.await_ready()
    assert component.port == free
    first = component.process.pid
    component.process.kill()
    component.start_again()
    assert component.port == free
    assert component.process.pid != first
    component.process.kill()


def test_programs_do_not_get_the_users_kubeconfig_and_home_folder(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A KUBECONFIG, or a settings file in the home folder, could select another cluster."""
    monkeypatch.setenv("KUBECONFIG", "/another/cluster")
    environment = site.environment()
    assert "KUBECONFIG" not in environment
    assert environment["HOME"] == str(site.directory)
