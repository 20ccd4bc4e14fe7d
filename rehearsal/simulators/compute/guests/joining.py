"""One try of a VM to join its cluster, as `kubeadm join` does it: trust, a look at the node's name, a certificate.

kubeadm's own settings (kubeadm-config, kubelet-config) are not read, and nothing is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from rehearsal.simulators.compute.guests import discovery, identity
from rehearsal.simulators.compute.guests.client import Access, Client
from rehearsal.simulators.compute.guests.errors import JoinError, ServerError
from rehearsal.simulators.compute.guests.kubelet import NODES
from rehearsal.simulators.compute.guests.startup import Invitation, read_invitation
from rehearsal.simulators.compute.records import MachineView

#: How long kubeadm waits for the kubelet's certificate.
CERTIFICATE_SECONDS = 300.0
_NOT_FOUND = 404

Connect = Callable[[Access], Client]


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """What a VM that has joined keeps on its disk."""

    invitation: Invitation
    access: Access


@dataclass(slots=True, kw_only=True)
class _Request:
    """A certificate that was asked for."""

    invitation: Invitation
    key: identity.NewKey
    access: Access
    client: Client
    name: str
    until: datetime


@dataclass(slots=True, kw_only=True)
class Join:
    """The try that a VM is at; there is always one, and the next begins from nothing."""

    connect: Connect
    _request: _Request | None = field(default=None)

    def step(self, machine: MachineView, now: datetime) -> Membership | None:
        """Go on; None: the certificate is not there yet. Raises GuestError where the try is over."""
        try:
            if self._request is None:
                self._request = self._begin(machine, now)
            return self._collect(self._request, now)
        except (JoinError, ServerError):
            self.abandon()
            raise

    def abandon(self) -> None:
        """Give the try up."""
        if self._request is not None:
            self._request.client.close()
            self._request = None

    def _begin(self, machine: MachineView, now: datetime) -> _Request:
        invitation = read_invitation(machine)
        cluster = self._discover(invitation)
        access = Access(host=cluster.host, port=cluster.port, authority_pem=cluster.authority_pem)
        client = self.connect(replace(access, token=invitation.token))
        try:
            _check_name(client, machine.name)
            key = identity.new_key(machine.name)
            made = client.call("POST", identity.REQUESTS, identity.request_body(key.request_pem))
        except (JoinError, ServerError):
            client.close()
            raise
        return _Request(
            invitation=invitation,
            key=key,
            access=access,
            client=client,
            name=made["metadata"]["name"],
            until=now + timedelta(seconds=CERTIFICATE_SECONDS),
        )

    def _discover(self, invitation: Invitation) -> discovery.Cluster:
        """Read cluster-info from whoever answers, and again from whom it makes trusted."""
        access = Access(host=invitation.host, port=invitation.port)
        cluster = discovery.trusted_cluster(self._read_info(access), invitation)
        again = self._read_info(replace(access, authority_pem=cluster.authority_pem))
        if (again.get("data") or {}).get("kubeconfig") != cluster.kubeconfig:
            raise JoinError("the second kubeconfig from the cluster-info ConfigMap is different from the first")
        return cluster

    def _read_info(self, access: Access) -> dict[str, Any]:
        client = self.connect(access)
        try:
            return client.call("GET", discovery.PATH)
        finally:
            client.close()

    def _collect(self, request: _Request, now: datetime) -> Membership | None:
        certificate = identity.certificate_of(request.client.call("GET", f"{identity.REQUESTS}/{request.name}"))
        if certificate is None:
            if now > request.until:
                raise JoinError("timed out waiting for the TLS bootstrap: nobody approves or signs the certificate")
            return None
        self.abandon()
        access = replace(request.access, certificate_pem=certificate, key_pem=request.key.key_pem)
        return Membership(invitation=request.invitation, access=access)


def _check_name(client: Client, name: str) -> None:
    """Refuse to take the place of a node that is alive."""
    try:
        node = client.call("GET", f"{NODES}/{name}")
    except ServerError as error:
        if error.status == _NOT_FOUND:
            return
        raise
    conditions = (node.get("status") or {}).get("conditions") or []
    if any(each["type"] == "Ready" and each["status"] == "True" for each in conditions):
        raise JoinError(f"a Node with name {name!r} and status 'Ready' already exists in the cluster")
