"""The REST API: a pod asks for its partition until it is there, and people look at partitions or release them.

Any replica answers. It changes nothing but one annotation: what pods ask for is in their annotations, and what they
have in the ledger, so a request that is sent again does no harm. Whoever does not prove to be the pod itself, or to
have a right to the pod, is told nothing.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
import structlog

from provisioner.kube import errors
from provisioner.kube.protocol import Api, Timeouts, object_path
from provisioner.partitions import names
from provisioner.partitions.demand import Pod
from provisioner.partitions.planning.ledger import Entry, Ledger
from provisioner.partitions.rest import wire
from provisioner.partitions.rest.access import Access, Servers
from provisioner.partitions.rest.wire import Caller, PodIdentity, Refused
from provisioner.partitions.vipu.protocol import Vipu, VipuError
from provisioner.runtime.pages import Content
from provisioner.runtime.repeats import Repeats
from provisioner.runtime.resources import NAME, Call, Resource

_log = structlog.get_logger(__name__)

#: When to ask again: while IPUs are waited for, while a partition is made, when something cannot be known.
_WAITING_SECONDS, _MAKING_SECONDS, _UNKNOWN_SECONDS = 5, 2, 5
_ID = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_WRITE_TIMEOUTS = Timeouts(connect_seconds=2.0, read_seconds=5.0)
_NOT_YOURS = "there is no partition {id}, or you have no right to its pod"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What the API goes by; all are called in the event loop, and must not block."""

    #: UID of the namespace kube-system; empty while it is not known.
    cluster_uid: Callable[[], str]
    #: A pod by namespace and name, as it was last seen; None: there is none that asks for IPUs.
    pod: Callable[[str, str], Pod | None]
    #: None: it is not known.
    ledger: Callable[[], Ledger | None]
    #: The V-IPU server at HOST:PORT; None: no setting names it any more.
    vipu: Callable[[str], Vipu | None]
    #: Why nothing can be known now, such as a watch that is not synced; empty: it can.
    problems: Callable[[], Sequence[str]]


class PartitionsApi:
    """Answers requests; used from one event loop."""

    def __init__(self, api: Api, sources: Sources) -> None:
        self._api = api
        self._sources = sources
        self._access = Access(api)
        self._servers = Servers()
        self._repeats = Repeats()

    def resources(self) -> tuple[Resource, ...]:
        """Return what is served."""
        one = f"{names.ROOT}/{NAME}"
        return (
            Resource(method="POST", path=names.ROOT, answer=self._route(self._ask)),
            Resource(method="GET", path=one, answer=self._route(self._get)),
            Resource(method="DELETE", path=one, answer=self._route(self._delete)),
            Resource(method="GET", path=f"{one}/{names.CONFIG}", answer=self._route(self._config)),
            Resource(method="GET", path=names.HEALTH, answer=self._health),
        )

    def close(self) -> None:
        """Let all threads end; called in the event loop."""
        self._access.close()
        self._servers.close()

    def _route(self, handle: Callable[[Call, Caller], Awaitable[Content]]) -> Callable[[Call], Awaitable[Content]]:
        async def answer(call: Call) -> Content:
            try:
                caller = await self._access.identify(call.headers.get("authorization", ""), call.client)
                return await handle(call, caller)
            except Refused as refused:
                return wire.refusal(refused)
            except errors.ClusterError as error:
                return self._unavailable("the API server does not say whether you may ask", error)
            except VipuError as error:
                return self._unavailable("the V-IPU server cannot be read", error)

        return answer

    def _unavailable(self, what: str, error: Exception) -> Content:
        """Answer that something cannot be known; what exactly is wrong is for the log alone."""
        left_out = self._repeats.left_out((what, type(error)))
        if left_out is not None:
            _log.warning("partitions_api.unavailable", what=what, error=str(error), left_out=left_out)
        return wire.refusal(Refused(503, f"{what}; ask again", retry_after_seconds=_UNKNOWN_SECONDS))

    async def _health(self, _call: Call) -> Content:
        """Answer without asking who asks. It is healthy while it answers; what it lacks is said."""
        problems = list(self._sources.problems())
        return wire.answer(
            503 if problems else 200, {"status": "not ready" if problems else "ok", "problems": problems}
        )

    # --- what pods and people ask ---

    async def _ask(self, call: Call, caller: Caller) -> Content:
        asked = wire.read_ask(call.body)
        if caller.pod != PodIdentity(namespace=asked.namespace, name=asked.pod, uid=asked.uid):
            raise Refused(403, "only a pod itself asks for its partition, with a token that is bound to it")
        ledger, owner = self._ledger(), names.owner_id(self._cluster_uid(), asked.uid)
        pod = self._pod(asked.namespace, asked.pod, asked.uid)
        if pod is None:
            # The token shows that there is one.
            raise Refused(
                503, "the controller has not seen the pod yet; ask again", retry_after_seconds=_MAKING_SECONDS
            )
        entry = next((each for each in ledger.entries if _is_of(each, pod, owner)), None)
        # What it has it keeps, whatever the settings are by now.
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
            # Until it was told of its partition, that may still be removed and made anew.
            body = wire.described(pod, entry, "creating", "the partition is being made")
            return wire.answer(202, body, retry_after_seconds=_MAKING_SECONDS)
        if not pod.node:
            # It asks, so it has one, and this is old: its partition may have been taken back before it had.
            body = wire.described(pod, entry, "creating", "the pod was not seen on a node yet")
            return wire.answer(202, body, retry_after_seconds=_MAKING_SECONDS)
        return await self._handed_over(pod, entry)

    async def _handed_over(self, pod: Pod, entry: Entry) -> Content:
        message, configuration = await self._read(entry)
        if not configuration:
            return wire.answer(
                202, wire.described(pod, entry, "creating", message), retry_after_seconds=_MAKING_SECONDS
            )
        body = wire.described(pod, entry, "active", message)
        return wire.answer(200, {**body, "config": msgspec.Raw(configuration.encode())})

    async def _get(self, call: Call, caller: Caller) -> Content:
        pod, entry = await self._known(call, caller, "get")
        if entry is None:
            state, message = "waiting", "the pod waits for IPUs"
        elif pod is None or pod.finished or pod.released:
            state, message = "releasing", "the pod needs it no more"
        elif pod.gated:
            state, message = "creating", "the partition is being made"
        else:
            state, message = "active", "the pod has its partition"
        return wire.answer(200, wire.described(pod, entry, state, message))

    async def _config(self, call: Call, caller: Caller) -> Content:
        _, entry = await self._known(call, caller, "get")
        if entry is None:
            raise Refused(409, f"the partition {call.name} is not made yet", retry_after_seconds=_WAITING_SECONDS)
        message, configuration = await self._read(entry)
        if not configuration:
            raise Refused(409, message, retry_after_seconds=_MAKING_SECONDS)
        return Content(
            body=configuration.encode(), media_type="application/json", headers={"Cache-Control": "no-store"}
        )

    async def _delete(self, call: Call, caller: Caller) -> Content:
        pod, entry = await self._known(call, caller, "delete")
        if pod is None or not pod.released:
            release = partial(self._release, call.name, pod, entry, caller.username)
            try:
                await self._access.write(release, call.client)
            except (errors.NotFound, errors.Conflict):
                # It is gone, or another one has its name: its partition goes with it.
                pod = None
        return wire.answer(202, wire.described(pod, entry, "releasing", "the partition is given back"))

    def _release(self, partition_id: str, pod: Pod | None, entry: Entry | None, by: str) -> None:
        if pod is not None:
            namespace, name, uid = pod.namespace, pod.name, pod.uid
        elif entry is not None:
            # This replica has not seen the pod yet.
            namespace, name, uid = entry.namespace, entry.pod, entry.pod_uid
        else:
            return
        _log.info("partition.release_asked", partition=partition_id, namespace=namespace, pod=name, by=by)
        # The UID makes it a precondition.
        body = {"metadata": {"uid": uid, "annotations": {names.RELEASE: "true"}}}
        self._api.patch(object_path("pods", name, namespace=namespace), body, timeouts=_WRITE_TIMEOUTS)

    # --- what is known ---

    async def _known(self, call: Call, caller: Caller, verb: str) -> tuple[Pod | None, Entry | None]:
        """Return a partition that the caller may see; both are not None only where they belong together."""
        found_id = call.name
        nothing = Refused(404, _NOT_YOURS.format(id=found_id if _ID.fullmatch(found_id) else "of that id"))
        if not _ID.fullmatch(found_id):
            raise nothing
        ledger, cluster_uid = self._ledger(), self._cluster_uid()
        entry = _entry(ledger, found_id)
        own = caller.pod
        is_own = own is not None and names.owner_id(cluster_uid, own.uid) == names.owner_of(found_id)
        if own is not None and is_own:
            pod = self._pod(own.namespace, own.name, own.uid)
        elif entry is None or not await self._access.may(caller, verb, (entry.namespace, entry.pod), call.client):
            # The same words for both: an id tells nobody that it exists.
            raise nothing
        else:
            pod = self._pod(entry.namespace, entry.pod, entry.pod_uid)
        if pod is None and entry is None:
            raise nothing
        return pod, entry

    async def _read(self, entry: Entry) -> tuple[str, str]:
        """Return how a partition is, in words, and its configuration, empty where it is not active."""
        vipu = self._sources.vipu(entry.server)
        if vipu is None:
            raise Refused(
                503, f"the settings do not name the V-IPU server {entry.server}", retry_after_seconds=_UNKNOWN_SECONDS
            )
        return await self._servers.find(entry.server, vipu, entry.id)

    def _ledger(self) -> Ledger:
        ledger, problems = self._sources.ledger(), self._sources.problems()
        if ledger is None or problems:
            why = problems[0] if problems else "the ledger cannot be read"
            raise Refused(503, f"nothing can be known now: {why}", retry_after_seconds=_UNKNOWN_SECONDS)
        return ledger

    def _cluster_uid(self) -> str:
        found = self._sources.cluster_uid()
        if not found:
            raise Refused(503, "the cluster's UID is not known yet", retry_after_seconds=_UNKNOWN_SECONDS)
        return found

    def _pod(self, namespace: str, name: str, uid: str) -> Pod | None:
        """Return a pod; another one of the same name is not it."""
        pod = self._sources.pod(namespace, name)
        return pod if pod is not None and pod.uid == uid else None


def _entry(ledger: Ledger, partition_id: str) -> Entry | None:
    return next((each for each in ledger.entries if each.id == partition_id), None)


def _is_of(entry: Entry, pod: Pod, owner: str) -> bool:
    """Whether an entry is that of a pod, `owner` by its ids; a pod that was told of one has no other."""
    return names.owner_of(entry.id) == owner and pod.told_partition in ("", entry.id)
