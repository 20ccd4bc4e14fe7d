"""Builds, runs and stops the server of all webhooks, and its metrics."""

import platform
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import structlog
from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

import provisioner
from provisioner.admission.files import CertificateFiles, CertificateLoop, Certificates, Files, server_context
from provisioner.admission.hooks import Hook, Lanes, begin_of
from provisioner.admission.keeper import Keeper
from provisioner.admission.review import READ_ALONE_BYTES, Answer, Deferred, Notice, Request
from provisioner.environment.numbering import OwnerKey
from provisioner.environment.review import OwnerError, judge_pod, problems_of_first_pod
from provisioner.kube import errors, fields
from provisioner.kube.events import EventRecorder
from provisioner.kube.machineconfigs import MACHINE_CONFIGS, Listed, extend_catalogue, parse_machine_config
from provisioner.kube.protocol import Api, Timeouts
from provisioner.kube.watches import ListWatch, knowledge_of
from provisioner.model.sources import Knowledge
from provisioner.model.workloads import ObjectRef
from provisioner.partitions.admission import review_pod as review_pod_with_ipus
from provisioner.runtime import process
from provisioner.runtime.clock import wall_clock
from provisioner.runtime.http import HttpServer, Limits, ServerError, parse_address
from provisioner.runtime.metrics import Registry
from provisioner.runtime.repeats import Repeats
from provisioner.runtime.resources import make_app
from provisioner.runtime.status import make_status_server
from provisioner.settings.webhook import WebhookSettings
from provisioner.slices.admission import (
    Judge,
    Mode,
    jobset_to_read,
    review_job,
    review_scale,
    review_workload,
)
from provisioner.slices.marking import review_placement
from provisioner.slices.messages.notices import EventReason
from provisioner.slices.offline.forecast import settings_by_object
from provisioner.slices.suppliers import rules_of
from provisioner.workloads.jobset import JOBSET_TYPE
from provisioner.workloads.kind import STATEFUL_SET_TYPE, controller_of

_log = structlog.get_logger(__name__)

NAME = "tpu-provisioner-webhook"
#: Seconds for which reviews are still answered after SIGTERM, until API servers know that this replica ends.
_DRAIN_SECONDS = 8.0
#: Limits of the webhooks' address. Reviews of updates contain two objects of up to 3 MiB. API servers keep idle
#: connections for 90 s. Each connection keeps the head of its last request in memory, at up to 4 times its size.
_LIMITS = Limits(connections=512, request_seconds=15.0, idle_seconds=120, header_bytes=4096, body_bytes=8 * 1024 * 1024)
#: Maximum number of remembered Events, of up to 9 KB each. Without a limit, users could fill the memory.
_EVENTS = 2048
#: Maximum wait in seconds for the first list of MachineConfigs, which RBAC may forbid, and interval of the checks.
_CATALOGUE_SECONDS, _CATALOGUE_PAUSE_SECONDS = 10.0, 0.05
#: Time-outs of a read. Webhooks time out after 10 s by default, and reviews wait for up to 4 s in each lane.
_READ_TIMEOUTS = Timeouts(connect_seconds=1.0, read_seconds=2.0)


PREFIX = "tpu_provisioner_webhook_"
OUTCOMES = ("admitted", "patched", "warned", "denied", "malformed", "failed", "busy")
_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Metrics of one process. Thread-safe."""

    def __init__(self, *, version: str) -> None:
        self.registry = registry = Registry(PREFIX, version=version)
        self._reviews = registry.counter("reviews", "Reviews, by webhook and outcome.", "hook", "outcome")
        self._seconds = registry.histogram(
            "review_duration_seconds", "Time from a whole review to its answer.", _BUCKETS, "hook"
        )
        self.problem = registry.gauge(
            "certificates_problem", "1: there is a problem with the certificates; the log says which."
        )

    def know(self, hook: str) -> None:
        """Create the series of a webhook before its first review."""
        for outcome in OUTCOMES:
            self._reviews.labels(hook, outcome)
        self._seconds.labels(hook)

    def reviewed(self, hook: str, outcome: str, seconds: float) -> None:
        """Count a review and its duration."""
        self._reviews.labels(hook, outcome).inc()
        self._seconds.labels(hook).observe(seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Addresses to listen on, from the command line."""

    webhooks: str = ":8443"
    metrics: str = ":8080"
    probes: str = ":8081"


@dataclass(slots=True, kw_only=True)
class WebhookServer:
    """The parts of the webhook server. No thread runs before `start`."""

    certificates: CertificateLoop
    server: HttpServer
    status: HttpServer
    metrics: Metrics
    recorder: EventRecorder
    machine_configs: ListWatch[Any]

    def start(self) -> None:
        """Start serving. Raises ServerError if an address cannot be served."""
        self.status.start()
        self.recorder.start()
        self.machine_configs.start()
        self.certificates.start()
        # Wait for the list of new TPU generations, whose pods would otherwise get no variables or be rejected.
        deadline = time.monotonic() + _CATALOGUE_SECONDS
        while knowledge_of(self.machine_configs) is Knowledge.UNKNOWN and time.monotonic() < deadline:
            time.sleep(_CATALOGUE_PAUSE_SECONDS)
        self.server.start()

    def stop(self, *, drain: Callable[[float], object]) -> None:
        """Report that this replica ends, answer reviews while `drain` waits for the given seconds, then stop."""
        self.certificates.stop()
        self.server.drain()
        drain(_DRAIN_SECONDS)
        self.server.stop()
        self.machine_configs.stop()
        self.recorder.stop()
        self.status.stop()


def build(
    settings: WebhookSettings,
    addresses: Addresses,
    api: Api,
    files: Files | None,
    *,
    variables: Mapping[str, str] | None = None,
) -> WebhookServer:
    """Return the server, not started. `variables` are settings of slices. Without `files`, certificates are created."""
    metrics = Metrics(version=provisioner.__version__)
    context = server_context()
    address = parse_address(addresses.webhooks)
    if address is None:
        raise ServerError("the address of the webhooks cannot be disabled")
    recorder = EventRecorder(api, instance=platform.node(), capacity=_EVENTS)
    tell_people = partial(_tell, recorder, Repeats())
    lanes = Lanes()
    # Probes configured for gke-tpu-env-injector, which this server replaces, request this path.
    routes = [Route("/", _greet)]
    for hook in make_hooks(settings, api, variables or {}):
        metrics.know(hook.name)
        begin, busy = begin_of(hook, metrics.reviewed, tell=tell_people), partial(metrics.reviewed, hook.name, "busy")
        routes.append(Route(hook.path, lanes.endpoint(begin, busy, quick=hook.quick), methods=["POST"]))
    server = HttpServer({address: make_app(routes)}, name=NAME, limits=_LIMITS, tls=context)

    def tell(problem: str) -> None:
        metrics.problem.set(bool(problem))
        if problem:
            _log.warning("webhook_certificates.problem", problem=problem)

    listed: Listed = {}

    def extend() -> None:
        nonlocal listed
        listed = extend_catalogue(machine_configs.records(), listed)

    machine_configs = ListWatch(api, MACHINE_CONFIGS, parse=parse_machine_config, on_change=extend)
    certificates = CertificateLoop(_certificates(settings, api, files, context), tell)

    def problems() -> Sequence[str]:
        if certificates.stopping.is_set():
            return ("the webhook server is ending",)
        return certificates.problems() if server.ports else ("the webhook server is starting",)

    status = make_status_server(
        NAME,
        metrics=addresses.metrics,
        exposition=metrics.registry.exposition,
        probes=addresses.probes,
        failures=lambda: (*certificates.failures(), *server.failures()),
        problems=problems,
    )
    return WebhookServer(
        certificates=certificates,
        server=server,
        status=status,
        metrics=metrics,
        recorder=recorder,
        machine_configs=machine_configs,
    )


async def _greet(_request: HttpRequest) -> Response:
    return PlainTextResponse(f"{NAME}\n")


def _read_owner(api: Api, key: OwnerKey, max_bytes: int) -> Mapping[str, Any] | None:
    """Return an owner, None if it does not exist. Raises OwnerError, or TooLarge if READ_ALONE_BYTES may suffice."""
    try:
        return api.get(key.path, timeouts=_READ_TIMEOUTS, max_bytes=max_bytes)
    except errors.NotFound:
        return None
    except (errors.ClusterError, ValueError) as error:
        if isinstance(error, errors.TooLarge) and max_bytes < READ_ALONE_BYTES:
            raise
        raise OwnerError(str(error)) from error


def _admitted_unread(key: OwnerKey, why: OwnerError, maker: ObjectRef | None) -> Answer:
    told = f"{key.title} could not be read ({why})"
    message = f"A Job starts without its selectors: {told}"
    notice = Notice(about=maker, message=message) if maker is not None else None
    return Answer(warnings=(f"{told}, so this is admitted unchanged",), notice=notice)


def _tell(recorder: EventRecorder, repeats: Repeats, notice: Notice) -> None:
    about = notice.about
    recorder.emit(about, EventReason.INCOMPLETE_ENVIRONMENT, notice.message, warning=True)
    # At most one notice of a namespace is logged in 60 s; otherwise a user of the namespace could fill the log.
    left_out = repeats.left_out(about.namespace)
    if left_out is not None:
        owner = f"{about.kind} {about.namespace}/{about.name}"
        _log.warning("environment.problem", owner=owner, problem=notice.message, left_out=left_out)


def make_hooks(settings: WebhookSettings, api: Api, variables: Mapping[str, str]) -> list[Hook]:
    """Return all webhooks. Raises SettingsError if `variables`, the settings of slices, are invalid."""
    read_owner = partial(_read_owner, api)

    def after_reading(
        key: OwnerKey, judged: Callable[[Mapping[str, Any] | None], Answer], maker: ObjectRef | None = None
    ) -> Deferred:
        def finish(max_bytes: int) -> Answer:
            try:
                found = read_owner(key, max_bytes)
            except OwnerError as error:
                return _admitted_unread(key, error, maker)
            return judged(found)

        return finish

    def doubts(raw: Mapping[str, Any], namespace: str) -> Sequence[str]:
        return problems_of_first_pod(raw, settings, namespace)

    judge = Judge(
        settings_of=settings_by_object(variables), rules=rules_of(variables.get("PROVIDER", "")), doubts=doubts
    )

    def validation_of(request: Request, mode: Mode) -> Answer | Deferred:
        if (request.kind, request.subresource) != ("Scale", "scale") or mode is Mode.OFF:
            return review_workload(request, judge, mode)

        def judged(scaled: Mapping[str, Any] | None) -> Answer:
            return Answer() if scaled is None else review_scale(request, scaled, judge, mode)

        return after_reading(OwnerKey(STATEFUL_SET_TYPE, request.namespace, request.name), judged)

    def jobs_of(request: Request) -> Answer | Deferred:
        jobset = jobset_to_read(request, settings)
        if not jobset:
            return review_job(request, settings, judge)
        owner = controller_of(fields.mapping(request.object.get("metadata")))
        maker = replace(owner, namespace=request.namespace) if owner is not None else None
        return after_reading(
            OwnerKey(JOBSET_TYPE, request.namespace, jobset), partial(review_job, request, settings, judge), maker
        )

    return [
        Hook(
            name="environment",
            # gke-tpu-env-injector has the same path.
            path="/mutate",
            answer=partial(judge_pod, read_owner=read_owner, settings=settings),
            strict=settings.wrong == "deny",
            quick=True,
        ),
        Hook(name="jobs", path="/mutate/jobs", answer=jobs_of),
        # Strict, because an unreviewed pod would run without IPUs.
        Hook(
            name="partitions",
            path="/mutate/partitions",
            answer=partial(review_pod_with_ipus, settings=settings),
            strict=True,
            quick=True,
        ),
        # A namespace selects a path by its label; without the label, PLACEMENT_NAMESPACES decides. Strict, because an
        # unreviewed pod could run on the node pool of another namespace.
        *(
            Hook(name=name, path=path, answer=partial(review_placement, assigned=assigned), strict=True, quick=True)
            for name, path, assigned in (
                ("placement", "/mutate/placement", settings.placement_namespaces == "all"),
                ("placement-assign", "/mutate/placement/assign", True),
                ("placement-off", "/mutate/placement/off", False),
            )
        ),
        # A label of the namespace selects one of these paths. A server that fails must not reject workloads.
        *(
            Hook(name=name, path=path, answer=partial(validation_of, mode=mode))
            for name, path, mode in (
                ("validation", "/validate", Mode(settings.validation)),
                ("validation-warn", "/validate/warn", Mode.WARN),
                ("validation-deny", "/validate/deny", Mode.DENY),
            )
        ),
    ]


def run(
    settings: WebhookSettings, addresses: Addresses, api: Api, files: Files | None, variables: Mapping[str, str]
) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code. Raises ServerError (addresses) or SettingsError."""
    ended = threading.Event()
    webhook = build(settings, addresses, api, files, variables=variables)

    def stop(signal_name: str) -> None:
        _log.info("webhook.stopping", signal=signal_name)
        ended.set()

    process.on_end(stop)
    process.collect_garbage_rarely()
    webhook.start()
    _log.info(
        "webhook.started",
        version=provisioner.__version__,
        ports=webhook.server.ports,
        certificates="files" if files is not None else "own",
    )
    ended.wait()
    webhook.stop(drain=lambda seconds: threading.Event().wait(seconds))
    _log.info("webhook.stopped")
    return 0


def _certificates(settings: WebhookSettings, api: Api, files: Files | None, context: ssl.SSLContext) -> Certificates:
    if files is not None:
        return CertificateFiles(files, context)
    host = f"{settings.service}.{settings.own_namespace}"
    return Keeper(
        api=api,
        namespace=settings.own_namespace,
        secret=f"{settings.service}-certificates",
        names=(f"{host}.svc", f"{host}.svc.cluster.local", host),
        configuration=settings.configuration,
        context=context,
        now=wall_clock,
    )
