"""The answer to a pod that is created: its variables as a patch, and what is wrong as warnings or a denial."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from provisioner.admission.review import Answer, Deferred, Request
from provisioner.environment.inject import Injection, Settings, Wrong, inject, needs_owner, owner_is_asked, wanted
from provisioner.environment.numbering import OwnerKey, owner_to_read
from provisioner.environment.pods import TpuPod, read_pod, wish_of
from provisioner.kube import fields
from provisioner.kube.fields import MalformedObject

#: Reads an owner as it is at this moment; None where there is none. Raises OwnerError.
ReadOwner = Callable[[OwnerKey], Mapping[str, Any] | None]


class OwnerError(Exception):
    """An owner could not be read; the text says why."""


def review_pod(request: Request, read_owner: ReadOwner, settings: Settings) -> Answer:
    """Answer the review of a pod; objects of other kinds, and pods without chips, are admitted as they are."""
    answer = judge_pod(request, read_owner, settings)
    return answer() if callable(answer) else answer


def judge_pod(request: Request, read_owner: ReadOwner, settings: Settings) -> Answer | Deferred:
    """Answer as `review_pod` does; where the owner has to be read, return what reads it and answers."""
    if request.kind != "Pod" or request.operation != "CREATE" or settings.injection is Injection.OFF:
        return Answer()
    try:
        pod = read_pod(request.object, request.namespace)
    except MalformedObject as error:
        if wish_of(fields.mapping(request.object.get("metadata"))) == "enabled":
            return _told(f"Pod {request.namespace}/{request.name}: {error}", settings)
        # It is somebody else's to say.
        return Answer()
    if pod is None:
        return Answer()
    asked = owner_is_asked(pod, settings)
    if not asked and not wanted(pod, {}, settings):
        return Answer()
    key = owner_to_read(pod) if asked or needs_owner(pod) else None
    return _judged(pod, {}, settings) if key is None else partial(_with_owner, pod, key, read_owner, settings)


def _with_owner(pod: TpuPod, key: OwnerKey, read_owner: ReadOwner, settings: Settings) -> Answer:
    try:
        owner = read_owner(key)
    except OwnerError as error:
        return _told(_unread(pod, key, str(error)), settings)
    if owner is None:
        return _told(_unread(pod, key, "it does not exist"), settings)
    return _judged(pod, owner, settings)


def _judged(pod: TpuPod, owner: Mapping[str, Any], settings: Settings) -> Answer:
    if not wanted(pod, owner, settings):
        return Answer()
    injected = inject(pod, owner, settings)
    problems = tuple(f"{pod.title}: {each}" for each in injected.problems)
    if problems and settings.wrong is Wrong.DENY:
        return Answer(denied=" ".join(problems))
    return Answer(patch=injected.patch, warnings=problems)


def _unread(pod: TpuPod, key: OwnerKey, why: str) -> str:
    return f"{pod.title}: {key.title} could not be read ({why}), so that its TPU variables cannot be told"


def _told(problem: str, settings: Settings) -> Answer:
    return Answer(denied=problem) if settings.wrong is Wrong.DENY else Answer(warnings=(problem,))
