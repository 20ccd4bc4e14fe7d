"""The HTTP session under the clients of Google's APIs: connection pool, time budget, and error answers of any shape.

A call's time-out covers the fetching of a token too, name resolution, every address, proxy and TLS (`deadline`), so
that none of them can make a create leave after the caller's lease has run out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from urllib.parse import urlsplit

import requests
from google.api_core import exceptions as api_exceptions
from google.auth import credentials as auth_credentials
from google.auth.transport import requests as auth_requests

from provisioner.google.deadline import Deadline, DeadlineAdapter, until
from provisioner.settings import is_loopback

_CONNECT_TIMEOUT_SECONDS = 3.0
_TOKEN_CONNECTIONS = 4


class ApiSession(auth_requests.AuthorizedSession):
    """An authorized session whose time-outs are budgets and whose error answers are always exceptions."""

    def __init__(
        self,
        credentials: auth_credentials.Credentials,
        *,
        connections: int,
        user_agent: str,
        base_url: str,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        # A token request of our own, because the default one retries a dead server for minutes.
        token_session = requests.Session()
        _mount(token_session, connections=_TOKEN_CONNECTIONS)
        self._token_request = auth_requests.Request(token_session)
        super().__init__(  # type: ignore[no-untyped-call]
            credentials, auth_request=self._token_request, max_refresh_attempts=1
        )
        self._monotonic = monotonic
        self.headers["User-Agent"] = user_agent
        _mount(self, connections=connections)
        # Nothing between us and a simulator on this machine; elsewhere the usual proxy variables count.
        self.trust_env = not is_loopback(urlsplit(base_url).hostname or "")

    def request(  # type: ignore[override]
        self,
        method: str,
        url: str,
        data: object = None,
        headers: dict[str, str] | None = None,
        max_allowed_time: float | None = None,
        timeout: float = 20.0,
        **kwargs: object,
    ) -> requests.Response:
        """Send a request within `timeout` seconds, token included; raise GoogleAPICallError for error answers.

        A redirect is an error: it would send the call somewhere else, and a create once more.
        """
        # The parent calls this again after a 401, with what is left of the time.
        budget = timeout if max_allowed_time is None else max_allowed_time
        deadline = Deadline(self._monotonic() + budget, self._monotonic)
        with until(deadline):
            self.credentials.before_request(self._fetch_token(budget), method, url, {})
            left = deadline.left_seconds()
            if left <= 0:
                raise requests.ConnectTimeout("fetching a token used up the time limit; nothing was sent")
            response: requests.Response = super().request(  # type: ignore[no-untyped-call]
                method,
                url,
                data=data,
                headers=headers,
                max_allowed_time=left,
                timeout=(min(_CONNECT_TIMEOUT_SECONDS, left), left),
                **{**kwargs, "allow_redirects": False},
            )
        if response.status_code >= 300:
            # Not left to the library: its conversion fails on bodies that are not of Google's form.
            raise api_exceptions.from_http_status(  # type: ignore[no-untyped-call]
                response.status_code, "", response=response
            )
        return response

    def _fetch_token(self, budget: float) -> Callable[..., object]:
        def fetch(*args: object, **kwargs: object) -> object:
            return self._token_request(*args, **{**kwargs, "timeout": min(_CONNECT_TIMEOUT_SECONDS, budget)})

        return fetch


def _mount(session: requests.Session, *, connections: int) -> None:
    adapter = DeadlineAdapter(connections=connections)
    session.mount("https://", adapter)
    session.mount("http://", adapter)
