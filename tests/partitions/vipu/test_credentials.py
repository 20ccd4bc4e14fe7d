"""The files of a mounted Secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioner.partitions.vipu import credentials
from provisioner.partitions.vipu.credentials import CredentialsError


def _write(folder: Path, **files: bytes) -> Path:
    for name, content in files.items():
        (folder / name.replace("_", "-").replace("hcl", "vipu-cli.hcl")).write_bytes(content)
    return folder


def test_user_and_key_become_a_configuration_file(tmp_path: Path) -> None:
    found = credentials.read(_write(tmp_path, user_id=b"us\n", access_key=b" s3cret-key\n"))
    assert found.config == 'api-user-id = "us"\napi-access-key = "s3cret-key"\n'
    assert found.hidden("bad key s3cret-key, s3cret-key") == "bad key ***, ***"


@pytest.mark.parametrize(
    "line", ['api-access-key = "s3cret-key"', 'api-access-key="s3cret-key"', '"api_access_key": "s3cret-key"']
)
def test_a_configuration_file_is_taken_as_it_is_and_its_key_is_hidden(tmp_path: Path, line: str) -> None:
    raw = f'api-host = "10.0.0.1"\n{line}\n'
    found = credentials.read(_write(tmp_path, hcl=raw.encode(), user_id=b"other", access_key=b"other"))
    assert found.config == raw
    assert found.hidden("key s3cret-key") == "key ***"


def test_nothing_secret_is_in_its_representation(tmp_path: Path) -> None:
    assert "s3cret" not in repr(credentials.read(_write(tmp_path, user_id=b"us", access_key=b"s3cret-key")))


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({}, "has neither vipu-cli.hcl nor user-id and access-key"),
        ({"user_id": b"us"}, "has neither vipu-cli.hcl nor user-id and access-key"),
        ({"user_id": b"us", "access_key": b" \n"}, "access-key is empty"),
        ({"user_id": b"us", "access_key": b's3cret"\napi-host = "evil'}, "characters that a line of HCL cannot hold"),
        ({"user_id": b"us", "access_key": b"s3cret\\n"}, "characters that a line of HCL cannot hold"),
        ({"user_id": b"us", "access_key": b"s3cret${file}"}, "characters that a line of HCL cannot hold"),
        ({"user_id": b"us", "access_key": b"s3cret\xff"}, "access-key is not UTF-8"),
        ({"user_id": b"us", "access_key": b"s3cret" * 20_000}, "has more than 65536 bytes"),
    ],
)
def test_files_that_cannot_be_used_are_named_without_what_they_have(
    tmp_path: Path, files: dict[str, bytes], problem: str
) -> None:
    with pytest.raises(CredentialsError, match=problem) as caught:
        credentials.read(_write(tmp_path, **files))
    assert "s3cret" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "user-id").mkdir()
    with pytest.raises(CredentialsError, match=r"cannot read .*user-id: Is a directory"):
        credentials.read(tmp_path)
