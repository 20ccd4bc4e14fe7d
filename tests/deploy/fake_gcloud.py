"""A fake gcloud for tests of the installation pages. It stores resources, and rejects invalid commands.

Run as `fake_gcloud.py STATE ARGUMENTS...`, with the state in a JSON file. It supports only commands of these pages, and
does not prove that the real gcloud accepts their flags.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PROJECT_NUMBER = "123456789012"
EMPTY: dict[str, Any] = {"roles": {}, "accounts": [], "bindings": [], "repositories": [], "services": []}


class RefusedError(Exception):
    """Raised for a command that Google Cloud would reject."""


def main(arguments: Sequence[str]) -> int:
    path = Path(arguments[0])
    state = json.loads(path.read_text(encoding="utf-8")) if path.exists() else json.loads(json.dumps(EMPTY))
    words = [argument for argument in arguments[1:] if not argument.startswith("--")]
    flags = dict(argument[2:].partition("=")[::2] for argument in arguments[1:] if argument.startswith("--"))
    try:
        printed = _run(state, words, flags)
    except RefusedError as refused:
        sys.stderr.write(f"ERROR: (gcloud.{'.'.join(words[:3])}) {refused}\n")
        return 1
    path.write_text(json.dumps(state), encoding="utf-8")
    sys.stdout.write(printed)
    return 0


def _run(state: dict[str, Any], words: list[str], flags: dict[str, str]) -> str:
    match words:
        case ["projects", "describe", _]:
            return f"{PROJECT_NUMBER}\n"
        case ["services", "enable", *names]:
            _project(flags)
            state["services"] += names
        case ["auth", "application-default", "login"] | ["auth", "configure-docker", _]:
            pass
        case ["iam", "service-accounts", "create", name]:
            _add(state["accounts"], f"{name}@{_project(flags)}.iam.gserviceaccount.com")
        case ["iam", "service-accounts", "delete", address]:
            _remove(state["accounts"], address)
            # Google Cloud deletes the bindings on a service account together with the account.
            state["bindings"] = [binding for binding in state["bindings"] if binding[0] != address]
        case ["iam", "roles", "create", name]:
            _project(flags)
            if name in state["roles"]:
                raise RefusedError(f"A role named {name} already exists")
            state["roles"][name] = _require(flags, "permissions").split(",")
        case ["iam", "roles", "delete", name]:
            if state["roles"].pop(name, None) is None:
                raise RefusedError(f"The role named {name} was not found")
        case ["artifacts", "repositories", "create", name]:
            _require(flags, "location")
            _add(state["repositories"], name)
        case ["artifacts", "repositories", "delete", name]:
            _remove(state["repositories"], name)
        case [*_, "add-iam-policy-binding", resource]:
            _add(state["bindings"], _binding(state, resource, flags))
        case [*_, "remove-iam-policy-binding", resource]:
            _remove(state["bindings"], _binding(state, resource, flags))
        case _:
            raise RefusedError("no command of the pages")
    return ""


def _binding(state: dict[str, Any], resource: str, flags: dict[str, str]) -> list[str]:
    member, role = _require(flags, "member"), _require(flags, "role")
    custom = re.fullmatch(r"projects/[^/]+/roles/(\w+)", role)
    if custom and custom[1] not in state["roles"]:
        raise RefusedError(f"Role {role} does not exist")
    kind, _, name = member.partition(":")
    of_workload_identity = ".svc.id.goog[" in name
    if kind == "serviceAccount" and not of_workload_identity and name not in state["accounts"]:
        raise RefusedError(f"Service account {name} does not exist")
    if kind == "principal" and f"projects/{PROJECT_NUMBER}/" not in name:
        raise RefusedError(f"{member} is of no project")
    if "@" in resource and resource not in state["accounts"]:
        raise RefusedError(f"Service account {resource} does not exist")
    return [resource, member, role]


def _project(flags: dict[str, str]) -> str:
    return _require(flags, "project")


def _require(flags: dict[str, str], name: str) -> str:
    if not flags.get(name):
        raise RefusedError(f"--{name} must be specified")
    return flags[name]


def _add(found: list[Any], item: Any) -> None:
    if item in found:
        raise RefusedError(f"{item} already exists")
    found.append(item)


def _remove(found: list[Any], item: Any) -> None:
    if item not in found:
        raise RefusedError(f"{item} was not found")
    found.remove(item)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
