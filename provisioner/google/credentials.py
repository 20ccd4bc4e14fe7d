"""The identity that Google's APIs are called with."""

from __future__ import annotations

import warnings

import google.auth
from google.auth import credentials as auth_credentials

_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)


def find_credentials() -> auth_credentials.Credentials:
    """Find the application-default credentials; raise GoogleAuthError where there are none."""
    with warnings.catch_warnings():
        # A user's own login without a quota project: Google's advice, of no use in a log.
        warnings.filterwarnings("ignore", category=UserWarning, module="google.auth")
        credentials, _ = google.auth.default(scopes=_SCOPES)
    return credentials
