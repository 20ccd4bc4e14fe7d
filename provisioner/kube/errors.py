"""Errors of calls to the Kubernetes API. A failed call of `protocol.Api` raises no other error."""

from provisioner.model import bounds
from provisioner.model.wording import UserError
from provisioner.model.writes import WriteFailure

MESSAGE_LIMIT = 256


class ClusterError(Exception):
    """A call failed. `status`, `reason` and `retry_after_seconds` are 0 or empty if unknown."""

    def __init__(self, message: str, *, status: int = 0, reason: str = "", retry_after_seconds: float = 0.0) -> None:
        self.message = bounds.cut(message, MESSAGE_LIMIT)
        self.status = status
        self.reason = reason
        self.retry_after_seconds = retry_after_seconds
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message} (HTTP {self.status})" if self.status else self.message


class KubeconfigError(ClusterError, UserError):
    """No usable connection to a cluster is configured. The message contains what to do."""


class NotFound(ClusterError):  # noqa: N818 - named after the API's own reason
    """404: the object, its namespace or its kind (such as a missing CRD) does not exist."""


class Conflict(ClusterError):  # noqa: N818 - named after the API's own reason
    """Usually 409: the object was changed or recreated since it was read, or exists already."""


class Gone(ClusterError):  # noqa: N818 - named after the API's own reason
    """410: the resourceVersion or the continue token is too old; list again."""


class Forbidden(ClusterError):  # noqa: N818 - named after the API's own reason
    """403: RBAC or an admission plugin does not allow the call."""


class Unauthorized(ClusterError):  # noqa: N818 - named after the API's own reason
    """401: the credentials are not accepted."""


class Invalid(ClusterError):  # noqa: N818 - named after the API's own reason
    """400, 422 and other 4xx: the same request will probably fail again."""


class TooManyRequests(ClusterError):  # noqa: N818 - named after the API's own reason
    """429: the server requests a pause, or a disruption budget does not allow an eviction now."""


class Unavailable(ClusterError):  # noqa: N818 - named after the API's own reason
    """3xx, 408, 5xx, or a failure of the network, TLS or credentials. A failed write may have taken effect."""


class Malformed(ClusterError):  # noqa: N818 - named after what it is
    """The response is not a JSON object, a field in it is missing or invalid, or a line of a watch is too long."""


class TooLarge(ClusterError):  # noqa: N818 - named after what it is
    """The response exceeds the maximum number of bytes. The caller may request fewer objects."""


def failure_of(error: ClusterError) -> WriteFailure:
    """Return the kind of failure of a write, which determines when the object is written again."""
    match error:
        case Conflict() | NotFound():
            # Another client probably created, changed or deleted the object. The caches will soon show this.
            return WriteFailure.CONFLICT
        case Forbidden() | Invalid():
            return WriteFailure.REFUSED
        case _:
            return WriteFailure.UNAVAILABLE
