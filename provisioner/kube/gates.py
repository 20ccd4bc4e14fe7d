"""Gates: what was decided on caches is read live, right before what cannot be undone."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from provisioner.kube.errors import ClusterError

_log = structlog.get_logger(__name__)


class KeptError(Exception):
    """What was to be deleted must not be now; the message says why."""


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
