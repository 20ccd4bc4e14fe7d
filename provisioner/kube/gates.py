"""Gates: what was decided on caches is read live, right before what cannot be undone."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import structlog

from provisioner.kube.errors import ClusterError

_log = structlog.get_logger(__name__)

#: The last look is worth this long, from when it is asked for. A node that registers right after it has no chips, and
#: takes no pod that asks for any, until its device plugin runs: 13 s later at the earliest, by which time the delete
#: has taken effect, unless it takes longer to reach Google.
_LAST_LOOK_SECONDS = 2.0
#: A look that took longer, or a process that was frozen in it, looks again.
_LAST_LOOKS = 3


class KeptError(Exception):
    """What was to be deleted must not be now; the message says why, `told` what of it anybody may know."""

    def __init__(self, message: str, *, told: str = "") -> None:
        super().__init__(message)
        self.told = told or message


def why_kept(pass_through: Callable[[], None], *, call: str) -> str | None:
    """Go through a gate; return why what is behind it stays, in words, None where it may go.

    A gate that crashes lets nothing through. `call` is the key of the call that waits for it.
    """
    try:
        pass_through()
    except KeptError as error:
        return str(error)
    except ClusterError as error:
        return f"Kubernetes does not allow the check: {error}"
    except Exception as error:  # noqa: BLE001 - the answer must not be lost
        _log.exception("gate.crashed", call=call)
        return f"the check failed: {error!r}"
    return None


def look_last(strangers: Callable[[], Iterable[str]], monotonic: Callable[[], float]) -> None:
    """Look at the nodes a last time, right before the delete; raises KeptError.

    All that went before may have taken long. `strangers` names the nodes that are open by now, or not those whose pods
    were looked at: a node may have come, or come again under its old name, and been closed by somebody else.
    """
    for _ in range(_LAST_LOOKS):
        began = monotonic()
        for name in strangers():
            raise KeptError(f"node {name} has registered or was uncordoned meanwhile")
        if monotonic() - began <= _LAST_LOOK_SECONDS:
            return
    raise KeptError("the API server takes too long to confirm that its nodes are cordoned")
