"""The OAuth scopes of nodes: what GKE takes for one, adds by itself, and what nodes need to pull private images."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rehearsal.simulators.gke.errors import ApiError

_AUTH = "https://www.googleapis.com/auth/"
_SCOPE = re.compile(re.escape(_AUTH) + r"[a-z][a-z0-9._-]*")
#: What logging and monitoring of the cluster add where a pool names none; images are not among it.
ADDED = (f"{_AUTH}logging.write", f"{_AUTH}monitoring")
_PULLING = frozenset(
    f"{_AUTH}{name}"
    for name in ("cloud-platform", "devstorage.read_only", "devstorage.read_write", "devstorage.full_control")
)


def check_scopes(scopes: Sequence[str]) -> None:
    """Refuse what is no OAuth scope of Google's."""
    for scope in scopes:
        if _SCOPE.fullmatch(scope) is None:
            raise ApiError("INVALID_ARGUMENT", f'Invalid value for field "node_pool.config.oauth_scopes": "{scope}".')


def pulls_images(pool: Mapping[str, Any]) -> bool:
    """Tell whether nodes of a pool in canonical JSON can pull private images, and so start most pods."""
    return not _PULLING.isdisjoint(pool.get("config", {}).get("oauthScopes", ADDED))
