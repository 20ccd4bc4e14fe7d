"""Who this process is to a V-IPU server in secure mode: files of a mounted Secret, handed on as a private file.

The Secret has either `vipu-cli.hcl`, the file that `vipu-admin create user` writes, or `user-id` and `access-key`. An
access key never is an argument, which every process of the machine can read, and never part of an exception or a log.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

CONFIG_FILE = "vipu-cli.hcl"
USER_FILE = "user-id"
KEY_FILE = "access-key"
_MOST_BYTES = 1 << 16
#: What stands in a string of HCL for itself.
_PLAIN = re.compile(r"[ !#-\[\]-~]+")
_TEMPLATE = re.compile(r"[$%]\{")
_KEY = re.compile(r'api[-_]access[-_]key"?\s*[=:]\s*"([^"\n]+)"')
_HIDDEN = "***"


class CredentialsError(Exception):
    """The files cannot be used; the text names the file and none of what it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What the command is given in a configuration file."""

    #: HCL; it has the access key.
    config: str = field(repr=False)
    #: What must never be seen.
    secrets: tuple[str, ...] = field(repr=False)

    def hidden(self, text: str) -> str:
        """Return a text without the secrets."""
        for secret in self.secrets:
            text = text.replace(secret, _HIDDEN)
        return text


def read(folder: Path) -> Credentials:
    """Read the files of a mounted Secret, as they are at this moment. Raises CredentialsError."""
    config = _content(folder / CONFIG_FILE)
    if config is not None:
        return Credentials(config=config, secrets=tuple(_KEY.findall(config)))
    user, key = _content(folder / USER_FILE), _content(folder / KEY_FILE)
    if user is None or key is None:
        raise CredentialsError(f"{folder} has neither {CONFIG_FILE} nor {USER_FILE} and {KEY_FILE}")
    lines = []
    for name, option, value in ((USER_FILE, "api-user-id", user.strip()), (KEY_FILE, "api-access-key", key.strip())):
        if _PLAIN.fullmatch(value) is None or _TEMPLATE.search(value):
            raise CredentialsError(f"{folder / name} is empty, or has characters that a line of HCL cannot hold")
        lines.append(f'{option} = "{value}"\n')
    return Credentials(config="".join(lines), secrets=(key.strip(),))


def _content(path: Path) -> str | None:
    """Return what a file has; None where there is none."""
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CredentialsError(f"cannot read {path}: {error.strerror}") from None
    if len(raw) > _MOST_BYTES:
        raise CredentialsError(f"{path} has more than {_MOST_BYTES} bytes")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise CredentialsError(f"{path} is not UTF-8") from None
