"""Tests of the files with credentials for the `vipu` command, and of the IPUoF configuration that it prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.partitions.vipu.cli import MAX_BYTES, parse_config, read_credentials

TEXTS = st.text('ab{}[]"\\\n é', max_size=6)
VALUES = st.none() | st.integers() | TEXTS | st.lists(TEXTS, max_size=3) | st.dictionaries(TEXTS, TEXTS, max_size=3)


@given(
    st.dictionaries(TEXTS, VALUES, min_size=1, max_size=3) | st.lists(VALUES, min_size=1, max_size=3),
    st.sampled_from(["", "Partition p1:\n", "Warning: old client\n\nIPUoF configuration:\n"]),
    st.sampled_from([None, 2]),
)
def test_configuration_is_found_after_other_text(document: object, words: str, indent: int | None) -> None:
    assert json.loads(parse_config(words + json.dumps(document, indent=indent))) == document


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "there is no JSON"),
        ("no such thing\n", "there is no JSON"),
        ('{"devices": [', "is not JSON"),
        ('{"devices": []}\n{"devices": []}\n', "is not JSON"),
        ("{}", "is empty"),
        ("[" * 100_000, "is not JSON"),
        ('{"a": "' + "x" * MAX_BYTES + '"}', "more than 1048576 bytes"),
    ],
)
def test_invalid_configuration_is_rejected(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_config(text)


def _write(folder: Path, **files: bytes) -> Path:
    for name, content in files.items():
        (folder / name.replace("_", "-").replace("hcl", "vipu-cli.hcl")).write_bytes(content)
    return folder


def test_user_and_key_are_written_as_a_configuration_file(tmp_path: Path) -> None:
    found = read_credentials(_write(tmp_path, user_id=b"us\n", access_key=b" s3cret-key\n"))
    assert found.config == 'api-user-id = "us"\napi-access-key = "s3cret-key"\n'
    assert found.hidden("bad key s3cret-key, s3cret-key") == "bad key ***, ***"
    assert "s3cret" not in repr(found)


@pytest.mark.parametrize(
    "line", ['api-access-key = "s3cret-key"', 'api-access-key="s3cret-key"', '"api_access_key": "s3cret-key"']
)
def test_mounted_configuration_is_unchanged_and_its_key_is_hidden(tmp_path: Path, line: str) -> None:
    raw = f'api-host = "10.0.0.1"\n{line}\n'
    found = read_credentials(_write(tmp_path, hcl=raw.encode(), user_id=b"other", access_key=b"other"))
    assert found.config == raw
    assert found.hidden("key s3cret-key") == "key ***"


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
    ],
)
def test_error_of_an_invalid_file_names_it_without_its_content(
    tmp_path: Path, files: dict[str, bytes], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem) as caught:
        read_credentials(_write(tmp_path, **files))
    assert "s3cret" not in str(caught.value)


def test_error_of_an_unreadable_file_names_it(tmp_path: Path) -> None:
    (tmp_path / "user-id").mkdir()
    with pytest.raises(ValueError, match=r"cannot read .*user-id: Is a directory"):
        read_credentials(tmp_path)
