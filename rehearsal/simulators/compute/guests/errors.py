"""Why a guest does not get on."""

from __future__ import annotations


class GuestError(Exception):
    """A step did not succeed; the guest tries again later."""


class JoinError(GuestError):
    """A try to join failed; the text says why, as kubeadm or the startup script would."""


class ServerError(GuestError):
    """The API server refused a call or could not be reached; `status` is 0 for the latter."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}" if status else text)
        self.status = status
