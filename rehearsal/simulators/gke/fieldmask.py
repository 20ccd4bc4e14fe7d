"""Partial responses, checked against the messages of the API.

A mask that names a field the message doesn't have is refused, as Google does, so that a client's typing mistake shows.
"""

from __future__ import annotations

import functools

from rehearsal.simulators.gke import schema
from rehearsal.simulators.gke.errors import ApiError, FieldViolation
from rehearsal.simulators.http import fieldmask
from rehearsal.simulators.http.fieldmask import Mask, MaskError


# Clients send the same few masks again and again; nobody changes a mask that was parsed.
@functools.lru_cache(maxsize=256)
def parse(text: str, descriptor: schema.Descriptor) -> Mask:
    """Return the mask that the text spells, checked against the message; an empty one selects everything."""
    try:
        return fieldmask.tree([_canonical(path, descriptor) for path in fieldmask.paths(text)])
    except MaskError as error:
        raise _refusal(str(error)) from error


def _canonical(path: tuple[str, ...], descriptor: schema.Descriptor) -> tuple[str, ...]:
    canonical = schema.canonical_path(descriptor, path)
    if canonical is None:
        raise _refusal("/".join(path))
    return canonical


def _refusal(path: str) -> ApiError:
    description = f"Error expanding 'fields' parameter. Cannot find matching fields for path '{path}'."
    violations = (FieldViolation(path=path, description=description),)
    return ApiError("INVALID_ARGUMENT", "Request contains an invalid argument.", violations=violations)
