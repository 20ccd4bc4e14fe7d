"""Classifies exceptions of Google's libraries: error responses, credentials, connections. Pure."""

import re
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import requests
import urllib3.exceptions
from google.auth import exceptions as auth_exceptions

from provisioner.google.errors import LOST, Answer, Call
from provisioner.model.capacity import CallError, Failure, FailureKind

_E = TypeVar("_E", bound=CallError)

#: Exceptions of Google's libraries for failed calls. OSError includes exceptions of `requests`, and missing CA bundles.
SDK_ERRORS: tuple[type[Exception], ...] = (auth_exceptions.GoogleAuthError, urllib3.exceptions.HTTPError, OSError)

_LOGIN_HELP = (
    "On a workstation run `gcloud auth application-default login --impersonate-service-account=SA`; in a cluster {}."
)
#: Part of the message if the API that creates tokens for impersonated service accounts is not enabled.
_NOT_ENABLED = "IAM Service Account Credentials API has not been used"
_ENABLE_HELP = "Enable it in that project: gcloud services enable iamcredentials.googleapis.com"
_MAX_MESSAGE = 2000
_PASSWORD = re.compile(r"//[^/\s@]{1,500}@")
#: Mistakes in an address or a header. The request was not sent, and each retry will fail.
_BAD_ADDRESS = (
    requests.exceptions.URLRequired,
    requests.exceptions.MissingSchema,
    requests.exceptions.InvalidSchema,
    requests.exceptions.InvalidURL,
    requests.exceptions.InvalidHeader,
)
#: Errors of urllib3 and ssl after which no request was sent. NewConnectionError includes unknown host names.
_NOT_CONNECTED = (
    urllib3.exceptions.NewConnectionError,
    urllib3.exceptions.ConnectTimeoutError,
    urllib3.exceptions.ProxyError,
    ssl.SSLCertVerificationError,
)
#: Texts of errors with which Google rejects the identity of the process.
_IDENTITY_REFUSED = re.compile(r"status: ?(400|401|403|404)|invalid_grant|IAM returned 40[134]", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Api(Generic[_E]):
    """Properties of one of Google's APIs that `error_of` needs."""

    error: type[_E]
    name: str
    address_option: str
    kind_of_answer: Callable[[Answer], FailureKind]
    #: Returns the remedy for a message of the API about missing permissions.
    help_of: Callable[[str], str]
    #: How a controller in a cluster gets its credentials; the text follows "in a cluster".
    login_in_cluster: str


def error_of(error: Exception, api: Api[_E], call: Call, subject: str) -> _E:
    """Return the client's error for an exception of Google's libraries. `subject` names the call in the error."""
    retry_after: float | None = None
    code = 0
    message = str(error) or type(error).__name__
    login_help = _LOGIN_HELP.format(api.login_in_cluster)
    answer = _answer_of(error)
    if answer is not None:
        kind = api.kind_of_answer(answer)
        message, retry_after, code = answer.message, answer.retry_after_seconds, answer.code
        if kind is FailureKind.PERMISSION and answer.from_google:
            message = f"{message} {login_help if answer.code == 401 else api.help_of(message)}"
    elif isinstance(error, auth_exceptions.GoogleAuthError):
        # Tokens are fetched before the call is sent, or after a 401. So the call had no effect.
        kind = _kind_of_auth_error(error)
        if kind is FailureKind.PERMISSION:
            help_ = _ENABLE_HELP if _NOT_ENABLED in message else login_help
            message = f"No credentials for {api.name}: {message} {help_}"
    elif isinstance(error, _BAD_ADDRESS):
        kind = FailureKind.INVALID
        message = f"{message} Check the address in {api.address_option} and the proxy settings."
    elif _never_sent(error):
        kind = FailureKind.UNAVAILABLE
        message = _connection_problem(error) or message
    else:
        # A time-out of the response, a broken connection, an unreadable response, or an unknown error.
        kind = LOST.of(call)
    # A proxy's address may contain its password.
    message = _PASSWORD.sub("//…@", message)
    failure = Failure(kind=kind, message=message[:_MAX_MESSAGE])
    return api.error(failure, subject, retry_after_seconds=retry_after, code=code)


def _answer_of(error: Exception) -> Answer | None:
    """Return the error response in an exception of requests or google.api_core; None if no HTTP status is known."""
    # Exceptions of google.api_core are recognized by their attributes, because its import would load gRPC everywhere.
    response, code = getattr(error, "response", None), getattr(error, "code", None)
    if isinstance(response, requests.Response):
        return _read_answer(response)
    if not isinstance(code, int):
        return None
    text = str(getattr(error, "message", error))
    return Answer(code=code, message=text, status="", reasons=frozenset(), retry_after_seconds=None, from_google=True)


def _read_answer(response: requests.Response) -> Answer:
    code, reasons = response.status_code, set()
    retry_after = _seconds(response.headers.get("Retry-After", ""))
    try:
        body = response.json()
    except ValueError:
        body = None
    # For some calls, Google returns a list of one error.
    if isinstance(body, list) and body:
        body = body[0]
    error = body.get("error") if isinstance(body, dict) else None
    detail = error if isinstance(error, dict) else {"message": response.text.strip()}
    for key in ("errors", "details"):
        entries = detail.get(key)
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict):
                reasons.add(str(entry.get("reason", "")))
                retry_after = retry_after or _seconds(str(entry.get("retryDelay", "")).removesuffix("s"))
    return Answer(
        code=code,
        message=str(detail.get("message") or f"HTTP {code} without a message"),
        status=str(detail.get("status") or ""),
        reasons=frozenset(reasons),
        retry_after_seconds=retry_after,
        from_google=detail is error,
    )


def _seconds(text: str) -> float | None:
    """Return a delay in seconds; None for other texts, such as the dates that Retry-After allows (unused by Google)."""
    if not re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text):
        return None
    return float(text)


def _kind_of_auth_error(error: auth_exceptions.GoogleAuthError) -> FailureKind:
    if error.retryable or isinstance(
        error,
        (auth_exceptions.TransportError, auth_exceptions.TimeoutError, auth_exceptions.ResponseError),
    ):
        return FailureKind.UNAVAILABLE
    # On GKE, a metadata server that is not ready yet causes a RefreshError that contains a TransportError.
    around_transport = any(isinstance(cause, auth_exceptions.TransportError) for cause in _chain(error))
    if around_transport and not _IDENTITY_REFUSED.search(str(error)):
        return FailureKind.UNAVAILABLE
    return FailureKind.PERMISSION


def _never_sent(error: Exception) -> bool:
    if isinstance(error, (requests.exceptions.ConnectTimeout, requests.exceptions.ProxyError)):
        return True
    return any(isinstance(cause, _NOT_CONNECTED) for cause in _chain(error))


def _connection_problem(error: Exception) -> str:
    for cause in _chain(error):
        if isinstance(cause, OSError) and cause.strerror and not isinstance(cause, requests.RequestException):
            return f"The server cannot be reached: {cause.strerror}."
    return ""


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and all exceptions inside it: causes, urllib3's reasons, and arguments."""
    # `__context__` is left out, because it may be a failure that was already handled.
    todo: list[BaseException] = [error]
    seen: set[int] = set()
    while todo:
        exception = todo.pop()
        if id(exception) in seen:
            continue
        seen.add(id(exception))
        yield exception
        inner = (exception.__cause__, getattr(exception, "reason", None), *exception.args)
        todo.extend(item for item in inner if isinstance(item, BaseException))
