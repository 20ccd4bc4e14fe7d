"""The answer to a pod that is created: its variables as a patch, and what is wrong as warnings or a denial."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from provisioner.admission.review import Answer, Deferred, Notice, Operation, Request
from provisioner.environment.inject import (
    host_names_to_write,
    inject,
    is_complete,
    needs_owner,
    owner_is_asked,
    wanted,
)
from provisioner.environment.numbering import OwnerKey, owner_to_read
from provisioner.environment.pods import TpuPod, read_pod, wish_of
from provisioner.kube import fields
from provisioner.kube.fields import MalformedObject
from provisioner.model.workloads import ObjectRef
from provisioner.settings.webhook import WebhookSettings
from provisioner.workloads.owners import Owner

#: So many are written in a fraction of a millisecond.
_MANY_HOST_NAMES = 1000

#: Reads an owner as it is at this moment; None where there is none. Raises OwnerError.
ReadOwner = Callable[[OwnerKey], Mapping[str, Any] | None]


class OwnerError(Exception):
    """An owner could not be read; the text says why."""


def review_pod(request: Request, read_owner: ReadOwner, settings: WebhookSettings) -> Answer:
    """Answer the review of a pod; objects of other kinds, and pods without chips, are admitted as they are."""
    found = judge_pod(request, read_owner, settings)
    return found() if callable(found) else found


def judge_pod(request: Request, read_owner: ReadOwner, settings: WebhookSettings) -> Answer | Deferred:
    """Answer as `review_pod` does; where the owner has to be read, or the answer takes its time, return the rest."""
    if request.kind != "Pod" or request.operation != "CREATE" or settings.injection == "off":
        return Answer()
    try:
        pod = read_pod(request.object, request.namespace)
    except MalformedObject as error:
        if wish_of(fields.mapping(request.object.get("metadata"))) == "enabled":
            told = f"Pod {request.namespace}/{request.name}: {error}"
            return Answer(denied=told) if settings.wrong == "deny" else Answer(warnings=(told,))
        # It is somebody else's to say.
        return Answer()
    if pod is None:
        return Answer()
    asked = owner_is_asked(pod, settings)
    if not asked and not wanted(pod, {}, settings):
        return Answer()
    key = owner_to_read(pod) if asked or needs_owner(pod) else None
    if key is None and host_names_to_write(pod) <= _MANY_HOST_NAMES:
        return _judged(pod, {}, settings)
    return partial(_finish, pod, key, read_owner, settings)


def _finish(pod: TpuPod, key: OwnerKey | None, read_owner: ReadOwner, settings: WebhookSettings) -> Answer:
    """Answer with the owner, which is read where that is needed."""
    if key is None:
        return _judged(pod, {}, settings)
    why = "it does not exist"
    try:
        owner = read_owner(key)
    except OwnerError as error:
        owner, why = None, str(error)
    if owner is not None:
        return _judged(pod, owner, settings)
    if is_complete(pod):
        return Answer()
    told = f"{key.title} could not be read ({why}), so that its TPU variables cannot be told"
    return _told(pod, (told,), settings)


def _judged(pod: TpuPod, owner: Mapping[str, Any], settings: WebhookSettings) -> Answer:
    if not wanted(pod, owner, settings):
        return Answer()
    injected = inject(pod, owner, settings)
    return _told(pod, injected.problems, settings, injected.patch)


def _told(
    pod: TpuPod, problems: tuple[str, ...], settings: WebhookSettings, patch: tuple[Operation, ...] = ()
) -> Answer:
    told = tuple(f"{pod.title}: {each}" for each in problems)
    if not told:
        return Answer(patch=patch)
    if settings.wrong == "deny":
        return Answer(denied=" ".join(told), notice=_notice(pod, "A pod is rejected", problems))
    became = "A pod is created" if patch else "A pod is created without TPU variables"
    return Answer(patch=patch, warnings=told, notice=_notice(pod, became, problems))


def _notice(pod: TpuPod, became: str, problems: tuple[str, ...]) -> Notice | None:
    """Note for the owner of a pod what it is not answered; equal for all its pods."""
    if pod.owner is None:
        return None
    return Notice(about=object_of(pod.owner, pod.namespace), message=f"{became}: {' '.join(problems)}")


def object_of(owner: Owner, namespace: str) -> ObjectRef:
    """Return the object that an owner reference names."""
    return ObjectRef(
        kind=owner.kind, api_version=owner.api_version, namespace=namespace, name=owner.name, uid=owner.uid
    )
