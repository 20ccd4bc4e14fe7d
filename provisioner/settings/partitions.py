"""Options of the controller of IPU partitions."""

import re
from dataclasses import dataclass
from typing import NamedTuple

from provisioner.model.choices import comma_items
from provisioner.settings import forms
from provisioner.settings.option import Group, options_of

DEFAULT_PORT = 8090
_MAX_SERVERS = 64
#: Maximum value of LARGEST_PARTITION, in IPUs, for the controller and for the webhook server.
LARGEST_SIZE = 1024
_SERVER = re.compile(rf"(?P<host>{forms.HOST})(?::(?P<port>[0-9]{{1,5}}))?(?::(?P<selector>[^:]+))?")
_SERVER_FORM = "HOST, HOST:PORT or HOST:PORT:LABEL=VALUE"


class Server(NamedTuple):
    """V-IPU server. An IPv6 address in `host` has no brackets."""

    host: str
    port: int
    #: Label of the nodes that reach the server's IPUs; None if all nodes do.
    node_selector: tuple[str, str] | None = None

    @property
    def address(self) -> str:
        """HOST:PORT as an identifier, with brackets around an IPv6 address."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _servers(text: str) -> tuple[Server, ...]:
    servers: dict[tuple[str, int], Server] = {}
    for item in comma_items(text):
        match = _SERVER.fullmatch(item)
        port = int((match and match["port"]) or DEFAULT_PORT)
        if match is None or not 0 < port <= forms.HIGHEST_PORT:
            raise ValueError(f"has {item!r}, which is not {_SERVER_FORM}")
        try:
            selector = forms.label(match["selector"] or "")
        except ValueError as error:
            raise ValueError(f"has {item!r}, where {match['selector']!r} {error}") from error
        host = match["host"].strip("[]")
        if (host, port) in servers:
            raise ValueError(f"names {match['host']}:{port} twice")
        servers[host, port] = Server(host, port, selector)
    if len(servers) > _MAX_SERVERS:
        raise ValueError(f"names {len(servers)} servers; at most {_MAX_SERVERS} are possible")
    return tuple(servers.values())


_option = Group.PARTITIONS.option


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSettings:
    """Effective settings of the controller of partitions."""

    # fmt: off
    servers: tuple[Server, ...] = Group.PARTITIONS.required(
        "VIPU_SERVERS", _servers,
        "Comma-separated V-IPU servers, each as HOST:PORT, or HOST:PORT:LABEL=VALUE if only nodes with that label "
        "reach its IPUs. Without a port: 8090.")
    command: str = _option("VIPU_COMMAND", str, "vipu", "The vipu command line: a name in PATH, or a path.")
    credentials: str = _option(
        "VIPU_CREDENTIALS", str, "",
        "The folder of a mounted Secret for servers in secure mode, with vipu-cli.hcl, or with user-id and access-key. "
        "Those in a folder HOST_PORT below it are for that server alone. Empty: no authentication.")
    create_seconds: float = _option(
        "VIPU_CREATE_TIMEOUT", forms.duration_from(10, "is less than 10s, in which no partition is created"), "5m",
        "The longest that the creation of a partition may take. At least 10s.")
    largest_size: int = _option(
        "LARGEST_PARTITION", forms.power_of_two(LARGEST_SIZE), "64",
        "Pods that ask for more IPUs are not served. A power of two.")
    reconfigurable: bool = _option(
        "RECONFIGURABLE_PARTITIONS", forms.go_bool, "true",
        "Create reconfigurable partitions: a program may use their IPUs one by one and in groups.")
    namespace_limits: tuple[tuple[str, int], ...] = _option(
        "NAMESPACE_IPU_LIMITS", forms.amounts(forms.NAMESPACE, "a namespace name"), (),
        'Maximum number of IPUs that the pods of a namespace have at once, such as "research=32, *=16"; `*` is every '
        "other namespace. Empty: no limits.")
    namespaces: tuple[str, ...] = Group.PARTITIONS.served_namespaces(
        "Comma-separated namespaces whose pods get partitions. Empty: all.")
    orphan_seconds: float = _option(
        "ORPHAN_REMOVAL_DELAY", forms.go_duration_seconds, "2m",
        "A partition of this cluster that no pod has is removed after this time.")
    unscheduled_seconds: float = _option(
        "UNSCHEDULED_TIMEOUT", forms.go_duration_seconds, "15m",
        "A pod that has its partition and finds no node gives it back after this time, if others wait for its IPUs or "
        "for those of its namespace. 0s: never.")
    own_namespace: str = Group.PARTITIONS.pod_namespace("The namespace of the controller's Lease and of its ledger.")
    own_name: str = Group.PARTITIONS.pod_name("controller")
    log_level: str = Group.PARTITIONS.log_level()
    # fmt: on

    #: Usual intervals in seconds between reads of a server: while pods wait or partitions change, and otherwise.
    busy_read_seconds: float = 5.0
    idle_read_seconds: float = 60.0
    #: Seconds after its deletion grace period for which a pod may keep its partition.
    past_grace_seconds: float = 30.0
    #: Seconds that a pod may need to start and to be removed, in addition to its deadline and grace period.
    backfill_allowance_seconds: float = 120.0
    #: Seconds after which an unused, inactive partition is recreated, and after which failing creates may be given up.
    stuck_seconds: float = 900.0
    #: Seconds for which a pod whose partition was rejected despite free IPUs delays others, if deadlines are unknown.
    crowded_seconds: float = 3600.0
    max_changes_per_server: int = 4

    def limit_of(self, namespace: str) -> int | None:
        """Return the IPUs that the pods of a namespace may have at the same time; None if not limited."""
        limits = dict(self.namespace_limits)
        return limits.get(namespace, limits.get(forms.OTHERS))


OPTIONS = options_of(PartitionSettings)
