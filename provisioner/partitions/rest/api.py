"""REST API of partitions: init containers poll it until their partition is active; users inspect or release partitions.

Every replica serves the API, leader or not. The only write is one annotation of the pod, so requests are idempotent. A
caller that is neither the partition's pod nor has a right to that pod learns nothing about the partition. Requests are
queued per client, and reads per V-IPU server: a busy client or a slow server delays mainly its own requests.
"""

import asyncio
import hashlib
import re
import ssl
import time
from collections.abc import Awaitable, Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, TypeVar

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from provisioner.admission.files import CertificateFiles, CertificateLoop, Files, server_context
from provisioner.kube import errors
from provisioner.kube.protocol import Api, Timeouts, object_path
from provisioner.partitions import names
from provisioner.partitions.demand import Pod
from provisioner.partitions.planning.entry_status import Phase
from provisioner.partitions.planning.ledger import Entry, Ledger
from provisioner.partitions.rest import wire
from provisioner.partitions.rest.wire import Caller, PodIdentity, Refused
from provisioner.partitions.vipu.cli import VipuCommand
from provisioner.partitions.vipu.records import PartitionState, VipuError
from provisioner.runtime.http import Address, HttpServer, Limits, parse_address
from provisioner.runtime.lanes import Busy, Lane
from provisioner.runtime.repeats import Repeats
from provisioner.runtime.resources import Endpoint, client_of, is_json, make_app

_log = structlog.get_logger(__name__)
_T = TypeVar("_T")

#: Values of Retry-After in seconds: while a pod waits, while the partition is created, and if the state is unknown.
_WAITING_SECONDS, _MAKING_SECONDS, _UNKNOWN_SECONDS = 5, 2, 5
#: Limits of each server address. A body has about 300 bytes, a token 1,500. A wait for a V-IPU server ends after 15 s.
_LIMITS = Limits(connections=256, request_seconds=30.0, idle_seconds=60, body_bytes=4096, answers_per_second=200.0)
_ID = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_TIMEOUTS = Timeouts(connect_seconds=2.0, read_seconds=5.0)
_NOT_YOURS = "there is no partition {id}, or you have no right to its pod"
#: Maximum number of running calls to the API server, and of running and waiting calls together.
_AT_ONCE, _MOST = 8, 256
#: Seconds for which a review by the API server is reused. The token of a deleted pod may be accepted for this time.
_KEPT_SECONDS = 10.0
_MAX_KEPT = 4096
#: Maximum number of running reads of one V-IPU server, and of running and waiting reads together.
_READS_AT_ONCE, _MAX_READS = 2, 128
#: Maximum seconds that a request waits for a read, and seconds for which the result of a read is reused.
_READ_PATIENCE_SECONDS, _READ_KEPT_SECONDS = 15.0, 5.0


class Shared:
    """Calls in progress, and results that are reused for a limited time. Used from one event loop."""

    def __init__(self, kept_seconds: float, *, most: float = inf) -> None:
        self._kept_seconds, self._most = kept_seconds, most
        #: Calls by key. A future results in the monotonic time from which the age of the answer counts, and the answer.
        self._asked: dict[Hashable, asyncio.Future[tuple[float, Any]]] = {}

    async def once(self, key: Hashable, ask: Callable[[], Awaitable[tuple[float, _T]]]) -> _T:
        """Return the result of the recent or running call for a key, or call `ask`. Raises Busy if too many calls run.

        `ask` returns the monotonic time from which the age of its result is counted, and the result.
        """
        task: asyncio.Future[tuple[float, _T]] | None = self._asked.get(key)
        if task is None or not self._counts(task):
            self._asked.pop(key, None)
            self._forget()
            if sum(not future.done() for future in self._asked.values()) >= self._most:
                raise Busy
            task = self._asked[key] = asyncio.ensure_future(ask())
            task.add_done_callback(partial(self._end, key))
        try:
            # A client that disconnects must not cancel the call for the other clients.
            answer: tuple[float, _T] = await asyncio.shield(task)
        finally:
            # Otherwise, the traceback of a failure would refer to the failure through `task`: a reference cycle.
            del task
        return answer[1]

    def _end(self, key: Hashable, task: asyncio.Future[tuple[float, Any]]) -> None:
        # Retrieve the exception: asyncio would log it as unretrieved if all clients have disconnected.
        if (task.cancelled() or task.exception()) and self._asked.get(key) is task:
            del self._asked[key]

    def _counts(self, task: asyncio.Future[tuple[float, Any]]) -> bool:
        if not task.done():
            return True
        failed = task.cancelled() or task.exception() is not None
        return not failed and time.monotonic() - task.result()[0] < self._kept_seconds

    def _forget(self) -> None:
        while self._asked and (len(self._asked) >= _MAX_KEPT or not self._counts(next(iter(self._asked.values())))):
            del self._asked[next(iter(self._asked))]


class Access:
    """Identifies callers by their tokens, and checks their rights. Used from one event loop."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._lane = Lane(places=_AT_ONCE, room=_MOST)
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="access")
        self._shared = Shared(_KEPT_SECONDS)

    async def identify(self, authorization: str, client: str) -> Caller:
        """Return the caller. Raises Refused if its token is invalid; Busy or ClusterError if no review is possible."""
        token = wire.token_of(authorization)
        # The key is a hash, so that no token is kept in memory.
        key = hashlib.sha256(token.encode()).digest()
        ask = partial(self._api.post, wire.TOKEN_REVIEWS, wire.token_review(token), timeouts=_TIMEOUTS)
        # The rejection of a token is also reused.
        verdict = await self._shared.once(key, lambda: self.in_turn(lambda: wire.read_token_review(ask()), client))
        if isinstance(verdict, str):
            raise Refused(401, verdict)
        return verdict

    async def may(self, caller: Caller, verb: str, pod: tuple[str, str], client: str) -> bool:
        """Return whether a caller may perform a verb on a pod (namespace, name). Raises Busy or ClusterError."""
        key = (caller.username, caller.uid, caller.groups, repr(caller.extra), verb, pod)
        body = wire.access_review(caller, verb, *pod)
        ask = partial(self._api.post, wire.ACCESS_REVIEWS, body, timeouts=_TIMEOUTS)
        return await self._shared.once(key, lambda: self.in_turn(lambda: wire.read_access_review(ask()), client))

    async def in_turn(self, ask: Callable[[], _T], client: str) -> tuple[float, _T]:
        """Call `ask` in a thread; return its start time (monotonic) and result. Raises Busy as `Lane.place` does."""
        async with self._lane.place(flow=client):
            asked_at = time.monotonic()
            return asked_at, await asyncio.get_running_loop().run_in_executor(self._threads, ask)


class Servers:
    """Reads partitions from V-IPU servers. Used from one event loop."""

    def __init__(self) -> None:
        self._by_address: dict[str, tuple[ThreadPoolExecutor, Shared]] = {}

    async def find(self, address: str, vipu: VipuCommand, partition_id: str) -> tuple[Phase, str, str]:
        """Return a partition's phase, a message, and its configuration if active. Raises VipuError or Busy."""
        if address not in self._by_address:
            threads = ThreadPoolExecutor(_READS_AT_ONCE, thread_name_prefix="vipu-read")
            self._by_address[address] = threads, Shared(_READ_KEPT_SECONDS, most=_MAX_READS)
        threads, shared = self._by_address[address]

        async def ask() -> tuple[float, tuple[Phase, str, str]]:
            result = await asyncio.get_running_loop().run_in_executor(threads, _read, vipu, partition_id)
            # Do not reuse an empty configuration: the partition may become active at any moment.
            return (time.monotonic() if result[-1] else -inf), result

        try:
            return await asyncio.wait_for(shared.once(partition_id, ask), _READ_PATIENCE_SECONDS)
        except TimeoutError as error:
            raise Busy from error


def _read(vipu: VipuCommand, partition_id: str) -> tuple[Phase, str, str]:
    partition = next((partition for partition in vipu.list_partitions() if partition.id == partition_id), None)
    if partition is None:
        return Phase.LOST, "the V-IPU server does not have the partition", ""
    if partition.state is not PartitionState.ACTIVE:
        phase = Phase.BROKEN if partition.state is PartitionState.ERROR else Phase.CREATING
        return phase, f"the partition is {partition.state_text or partition.state.value}", ""
    return Phase.ACTIVE, "the partition is active", vipu.ipuof_config(partition_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Data that the API reads. All functions are called in the event loop, and must not block."""

    #: Returns the UID of the namespace kube-system; empty while it is unknown.
    cluster_uid: Callable[[], str]
    #: Returns a pod by namespace and name, as last seen; None if no unfinished pod of this name has POD_LABEL.
    pod: Callable[[str, str], Pod | None]
    ledger: Callable[[], Ledger]
    #: Returns the V-IPU server at HOST:PORT; None if it is not in the settings.
    vipu: Callable[[str], VipuCommand | None]
    #: Returns the reasons why the data are unknown now, such as a watch that is not synced; empty if they are known.
    problems: Callable[[], Sequence[str]]


class PartitionsApi:
    """Endpoints for pods and users. Used from one event loop."""

    def __init__(self, api: Api, sources: Sources) -> None:
        self._api = api
        self._sources = sources
        self._access = Access(api)
        self._servers = Servers()
        self._repeats = Repeats()

    def routes(self) -> tuple[Route, ...]:
        """Return the routes of the API."""
        path = f"{names.ROOT}/{{name}}"
        return (
            Route(names.ROOT, self._known_to(self._ask), methods=["POST"]),
            Route(path, self._known_to(self._get)),
            Route(path, self._known_to(self._delete), methods=["DELETE"]),
            Route(f"{path}/{names.CONFIG}", self._known_to(self._config)),
            Route(names.HEALTH, self._health),
        )

    def _known_to(self, handle: Callable[[Request, Caller], Awaitable[Response]]) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            try:
                authorization = request.headers.get("authorization", "")
                return await handle(request, await self._access.identify(authorization, client_of(request)))
            except Refused as refused:
                return wire.refusal(refused)
            except Busy:
                return wire.refusal(Refused(503, "too many requests at once; try again", retry_after_seconds=1))
            except errors.ClusterError as error:
                return self._unavailable("the API server does not say whether you may ask", error)
            except VipuError as error:
                return self._unavailable("the V-IPU server cannot be read", error)

        return endpoint

    def _unavailable(self, what: str, error: Exception) -> Response:
        """Return a response with status 503. Only the log contains the error itself."""
        left_out = self._repeats.left_out((what, type(error)))
        if left_out is not None:
            _log.warning("partitions_api.unavailable", what=what, error=str(error), left_out=left_out)
        return wire.refusal(Refused(503, f"{what}; try again", retry_after_seconds=_UNKNOWN_SECONDS))

    async def _health(self, _request: Request) -> Response:
        """Answer without authentication: 200, or 503 with the problems of this replica."""
        problems = list(self._sources.problems())
        return wire.answer(
            503 if problems else 200, {"status": "not ready" if problems else "ok", "problems": problems}
        )

    async def _ask(self, request: Request, caller: Caller) -> Response:
        if not is_json(request):
            raise Refused(415, "the content type must be application/json")
        asked = wire.read_ask(await request.body())
        pod_id = PodIdentity(namespace=asked.namespace, name=asked.pod, uid=asked.uid)
        if caller.pod != pod_id:
            raise Refused(403, "only the pod itself may ask for its partition, with a token that is bound to it")
        ledger, owner = self._ledger(), names.owner_id(self._cluster_uid(), asked.uid)
        pod = self._pod(pod_id)
        if pod is None:
            # The token was issued for this pod, so the watch may not have delivered the pod yet.
            raise Refused(
                503, "the controller has not seen the pod yet; try again", retry_after_seconds=_MAKING_SECONDS
            )
        entry = next((entry for entry in ledger.entries if _is_of(entry, pod, owner)), None)
        # A pod that has a partition keeps it, even if the settings have changed.
        if pod.problem and entry is None:
            raise Refused(422, pod.problem)
        size = entry.size if entry is not None else pod.size
        if size != asked.size:
            raise Refused(409, f"the pod's annotation asks for {size} IPUs, and not for {asked.size}")
        if pod.finished or pod.released:
            raise Refused(410, "the pod has ended" if pod.finished else "the pod's partition was released")
        if entry is None:
            body = wire.described(pod, None, "waiting", "the pod waits for IPUs")
            return wire.answer(202, body, retry_after_seconds=_WAITING_SECONDS)
        if asked.reconfigurable not in (None, entry.reconfigurable):
            is_so = "reconfigurable" if entry.reconfigurable else "not reconfigurable"
            raise Refused(409, f"the pod's partition is {is_so}")
        if pod.gated:
            # Until the gate is removed, the partition may still be removed and recreated.
            return _creating(pod, entry, "the partition is being created")
        if not pod.node:
            # The pod sent this request from its node, so the watch lags, and the partition may be released already.
            return _creating(pod, entry, "the pod was not seen on a node yet")
        _, message, configuration = await self._read(entry)
        if not configuration:
            return _creating(pod, entry, message)
        body = wire.described(pod, entry, "active", message)
        return wire.answer(200, {**body, "config": msgspec.Raw(configuration.encode())})

    async def _get(self, request: Request, caller: Caller) -> Response:
        _, pod, entry = await self._known(request, caller, "get")
        if entry is None:
            state, message = "waiting", "the pod waits for IPUs"
        elif pod is None or pod.finished or pod.released:
            state, message = "releasing", "the pod no longer needs it"
        elif pod.gated:
            state, message = "creating", "the partition is being created"
        else:
            phase, message, _ = await self._read(entry)
            state = phase.value
        return wire.answer(200, wire.described(pod, entry, state, message))

    async def _config(self, request: Request, caller: Caller) -> Response:
        _, _, entry = await self._known(request, caller, "get")
        if entry is None:
            raise Refused(409, "the partition is not created yet", retry_after_seconds=_WAITING_SECONDS)
        _, message, configuration = await self._read(entry)
        if not configuration:
            raise Refused(409, message, retry_after_seconds=_MAKING_SECONDS)
        return Response(configuration, 200, {"Cache-Control": "no-store"}, "application/json")

    async def _delete(self, request: Request, caller: Caller) -> Response:
        pod_id, pod, entry = await self._known(request, caller, "delete")
        if pod is None or not pod.released:
            release = partial(self._release, request.path_params["name"], pod_id, caller.username)
            try:
                await self._access.in_turn(release, client_of(request))
            except (errors.NotFound, errors.Conflict):
                # The pod was deleted or replaced, so its partition will be removed.
                pod = None
        return wire.answer(202, wire.described(pod, entry, "releasing", "the partition is given back"))

    def _release(self, partition_id: str, pod_id: PodIdentity, by: str) -> None:
        _log.info("partition.release_asked", partition=partition_id, namespace=pod_id.namespace, pod=pod_id.name, by=by)
        # Because of the UID, the patch fails if a new pod has this name.
        body = {"metadata": {"uid": pod_id.uid, "annotations": {names.RELEASE: "true"}}}
        self._api.patch(object_path("pods", pod_id.name, namespace=pod_id.namespace), body, timeouts=_TIMEOUTS)

    async def _known(self, request: Request, caller: Caller, verb: str) -> tuple[PodIdentity, Pod | None, Entry | None]:
        """Return a partition's pod (identity, watched state) and entry. Raises Refused if unknown or forbidden."""
        found_id = request.path_params["name"]
        nothing = Refused(404, _NOT_YOURS.format(id=found_id if _ID.fullmatch(found_id) else "of that id"))
        if not _ID.fullmatch(found_id):
            raise nothing
        ledger, cluster_uid, pod_id = self._ledger(), self._cluster_uid(), caller.pod
        entry = next((entry for entry in ledger.entries if entry.id == found_id), None)
        if pod_id is None or names.owner_id(cluster_uid, pod_id.uid) != names.owner_of(found_id):
            client = client_of(request)
            if entry is None or not await self._access.may(caller, verb, (entry.namespace, entry.pod), client):
                # Answer as for an unknown id, so that callers do not learn whether the partition exists.
                raise nothing
            pod_id = PodIdentity(namespace=entry.namespace, name=entry.pod, uid=entry.pod_uid)
        pod = self._pod(pod_id)
        if pod is None and entry is None:
            raise nothing
        return pod_id, pod, entry

    async def _read(self, entry: Entry) -> tuple[Phase, str, str]:
        vipu = self._sources.vipu(entry.server)
        if vipu is None:
            raise Refused(
                503, f"the settings do not name the V-IPU server {entry.server}", retry_after_seconds=_UNKNOWN_SECONDS
            )
        return await self._servers.find(entry.server, vipu, entry.id)

    def _ledger(self) -> Ledger:
        problems = self._sources.problems()
        if problems:
            raise Refused(503, f"the state is unknown now: {problems[0]}", retry_after_seconds=_UNKNOWN_SECONDS)
        return self._sources.ledger()

    def _cluster_uid(self) -> str:
        uid = self._sources.cluster_uid()
        if not uid:
            raise Refused(503, "the cluster's UID is not known yet", retry_after_seconds=_UNKNOWN_SECONDS)
        return uid

    def _pod(self, pod_id: PodIdentity) -> Pod | None:
        pod = self._sources.pod(pod_id.namespace, pod_id.name)
        return pod if pod is not None and pod.uid == pod_id.uid else None


def _creating(pod: Pod, entry: Entry, message: str) -> Response:
    body = wire.described(pod, entry, "creating", message)
    return wire.answer(202, body, retry_after_seconds=_MAKING_SECONDS)


def _is_of(entry: Entry, pod: Pod, owner: str) -> bool:
    """Return whether an entry's id has the pod's prefix (`owner`), and is the id in the pod's annotation, if any."""
    return names.owner_of(entry.id) == owner and pod.partition_annotation in ("", entry.id)


def make_rest(
    plain: str, encrypted: str, files: Files | None, api: Api, sources: Sources
) -> tuple[list[HttpServer], CertificateLoop | None]:
    """Return the servers of the enabled addresses, and the certificate's reader if there is TLS. Raises ServerError.

    The limits (`_LIMITS`) apply to each address separately.
    """
    address, tls_address = parse_address(plain), parse_address(encrypted)
    servers = [make_rest_server(address, api, sources)] if address is not None else []
    if tls_address is None or files is None:
        return servers, None
    context = server_context()
    servers.append(make_rest_server(tls_address, api, sources, tls=context))
    return servers, CertificateLoop(CertificateFiles(files, context), _tell)


def _tell(problem: str) -> None:
    if problem:
        _log.warning("api_certificate.problem", problem=problem)


def make_rest_server(address: Address, api: Api, sources: Sources, *, tls: ssl.SSLContext | None = None) -> HttpServer:
    """Return the server of one address. Without `tls`, the server uses plain HTTP."""
    app = make_app(PartitionsApi(api, sources).routes())
    return HttpServer({address: app}, name="tpu-provisioner-partitions", limits=_LIMITS, tls=tls)
