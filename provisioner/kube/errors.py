"""What can go wrong between the provisioner and the Kubernetes API; no other exception passes this boundary."""

from __future__ import annotations

from provisioner.model import bounds
from provisioner.model.wording import UserError
from provisioner.model.writes import WriteFailure

#: Longer texts of the API server say nothing new after this.
MESSAGE_LIMIT = 256


class ClusterError(Exception):
    """A failed exchange with the API server: its words, and its reason, HTTP status and wished pause if it has any."""

    def __init__(self, message: str, *, status: int = 0, reason: str = "", retry_after_seconds: float = 0.0) -> None:
        self.message = bounds.cut(message, MESSAGE_LIMIT)
        self.status = status
        self.reason = reason
        self.retry_after_seconds = retry_after_seconds
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message} (HTTP {self.status})" if self.status else self.message


class KubeconfigError(ClusterError, UserError):
    """There is no usable way to a cluster; the message says what to do."""


class NotFound(ClusterError):  # noqa: N818 - named after the API's own reason
    """404: the object, or its whole kind (a missing CRD), does not exist."""


class Conflict(ClusterError):  # noqa: N818 - named after the API's own reason
    """409: the object changed meanwhile, or exists already."""


class Gone(ClusterError):  # noqa: N818 - named after the API's own reason
    """410: the resourceVersion or the continue token is too old; list again."""


class Forbidden(ClusterError):  # noqa: N818 - named after the API's own reason
    """403: RBAC or an admission plugin does not allow this."""


class Unauthorized(ClusterError):  # noqa: N818 - named after the API's own reason
    """401: the credentials are not accepted."""


class Invalid(ClusterError):  # noqa: N818 - named after the API's own reason
    """400, 422 and other 4xx: the same request will fail again."""


class TooManyRequests(ClusterError):  # noqa: N818 - named after the API's own reason
    """429: the server asks for a pause."""


class Unavailable(ClusterError):  # noqa: N818 - named after the API's own reason
    """5xx, network, TLS, time-outs, credentials: whether a mutating call had its effect is not known."""


class Malformed(ClusterError):  # noqa: N818 - named after what it is
    """The answer is no JSON object, or lacks what every answer has."""


class TooLarge(ClusterError):  # noqa: N818 - named after what it is
    """The answer has more bytes than are read: ask for fewer objects."""


def failure_of(error: ClusterError) -> WriteFailure:
    """Return what a failed write means for the next one of its object."""
    match error:
        case Conflict() | NotFound():
            # An object that is gone is another one than was decided on, too.
            return WriteFailure.CONFLICT
        case Forbidden() | Invalid():
            return WriteFailure.REFUSED
        case _:
            return WriteFailure.UNAVAILABLE
