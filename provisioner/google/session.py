"""HTTP session of the clients of Google's APIs: connection pool, time-outs, and error responses."""

import warnings
from urllib.parse import urlsplit

import google.auth
import requests
from google.auth import credentials as auth_credentials
from google.auth.transport import requests as auth_requests
from requests.adapters import HTTPAdapter

import provisioner
from provisioner.settings.forms import is_loopback

#: Maximum number of idle connections per host. This many threads can call at the same time without new connections.
_CONNECTIONS = 32
_CONNECT_TIMEOUT_SECONDS = 3.0
_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)


class ApiSession(auth_requests.AuthorizedSession):
    """Authorized session that repeats a request only after a 401, and raises HTTPError for error responses."""

    def __init__(self, credentials: auth_credentials.Credentials, *, base_url: str) -> None:
        # Tokens have a separate session, because the default session retries an unreachable server for minutes.
        token_request = auth_requests.Request(requests.Session())
        super().__init__(  # type: ignore[no-untyped-call]
            credentials, auth_request=token_request, max_refresh_attempts=1
        )
        self.headers["User-Agent"] = f"tpu-provisioner/{provisioner.__version__}"
        for scheme in ("https://", "http://"):
            self.mount(scheme, HTTPAdapter(pool_connections=2, pool_maxsize=_CONNECTIONS))
        # The proxy variables of the environment do not apply to a simulator on this machine.
        self.trust_env = not is_loopback(urlsplit(base_url).hostname or "")

    def request(  # type: ignore[override]
        self,
        method: str,
        url: str,
        *,
        timeout: float | tuple[float, float] = 20.0,
        max_allowed_time: float | None = None,
        **kwargs: object,
    ) -> requests.Response:
        """Send a request. `timeout` limits each read and the call, in seconds. Raises HTTPError from status 300 on."""
        # After a 401, the parent class repeats this call with `timeout` as a tuple and a reduced `max_allowed_time`.
        if not isinstance(timeout, tuple):
            max_allowed_time, timeout = timeout, (min(_CONNECT_TIMEOUT_SECONDS, timeout), timeout)
        # A redirect is an error; otherwise the call would go to another address, and a create could be repeated.
        options = {**kwargs, "timeout": timeout, "max_allowed_time": max_allowed_time, "allow_redirects": False}
        response: requests.Response = super().request(method, url, **options)  # type: ignore[no-untyped-call]
        if response.status_code >= 300:
            raise requests.HTTPError(response=response)
        return response


def find_credentials() -> auth_credentials.Credentials:
    """Find the application-default credentials. Raises GoogleAuthError if they do not exist."""
    with warnings.catch_warnings():
        # google.auth warns of a user's login without a quota project, which is of no use in a log.
        warnings.filterwarnings("ignore", category=UserWarning, module="google.auth")
        credentials, _ = google.auth.default(scopes=_SCOPES)
    return credentials
