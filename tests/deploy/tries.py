"""What a controller does with its rights, tried with the product's own code."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from provisioner import kube
from provisioner.kube import KubeApi
from provisioner.model.workloads import ObjectRef
from rehearsal.demos import Rehearsal
from rehearsal.demos.world import wait_for

#: Tries something; returns what is seen of a refusal, nothing where all is well.
Try = Callable[[KubeApi, Rehearsal], str]
SERVED_SECONDS = 10.0


def try_watch(make: Callable[..., Any]) -> Try:
    """Try a list-watch; `make` makes it as `make(api, on_change=..., options=...)`."""

    def attempt(api: KubeApi, rehearsal: Rehearsal) -> str:
        # A watch of a second comes round to its next request soon.
        watch = make(api, on_change=lambda: None, options=kube.WatchOptions(watch_seconds=(1, 1)))
        # A list alone is no watch: the words of the server about the second request are waited for.
        watch.start()
        try:
            start = time.monotonic()
            wait_for(
                lambda: watch.problem or (watch.synced and _was_confirmed_after(watch, start)),
                "the watch works or says why not",
                SERVED_SECONDS,
            )
            return str(watch.problem or "")
        finally:
            watch.stop()

    return attempt


def try_events(*, repeated: bool) -> Try:
    """Try an Event, once or with a repeat."""

    def attempt(api: KubeApi, rehearsal: Rehearsal) -> str:
        seconds = 0.0
        recorder = kube.EventRecorder(api, instance="trial", clock=lambda: seconds)
        recorder.start()
        unique = f"trial at {time.monotonic_ns()}"
        about = ObjectRef(api_version="v1", kind="Pod", namespace="default", name="trial", uid=unique)
        for _ in range(2 if repeated else 1):
            recorder.emit(about, kind="Normal", reason="Trial", message=unique)
            assert recorder.flush(timeout_seconds=SERVED_SECONDS)
            seconds += 400.0
        recorder.stop()
        return f"{recorder.dropped_total} Events are dropped" if recorder.dropped_total else ""

    return attempt


def _was_confirmed_after(watch: Any, start: float) -> bool:
    last = watch.last_contact_monotonic
    return last is not None and last > start + 0.5
