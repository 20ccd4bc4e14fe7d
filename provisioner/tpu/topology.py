"""The grid of chips of a slice, as `cloud.google.com/gke-tpu-topology` spells it: "4x4", "2x2x4"."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache

from provisioner.model import bounds

_FORM = re.compile(r"[1-9][0-9]{0,3}(x[1-9][0-9]{0,3}){1,2}")


class TopologyError(ValueError):
    """The text is no topology."""


@dataclass(frozen=True, slots=True, order=True)
class Topology:
    """A 2-D or 3-D grid, in chips along each axis."""

    dimensions: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> Topology:
        """Read "AxB" or "AxBxC"; raise TopologyError for anything else."""
        if not _FORM.fullmatch(text):
            raise TopologyError(
                f"{bounds.quoted(text)} is not of the form AxB or AxBxC with whole numbers from 1 to 9999"
            )
        return cls(tuple(int(part) for part in text.split("x")))

    @property
    def chips(self) -> int:
        """Number of chips."""
        return math.prod(self.dimensions)

    def __str__(self) -> str:
        return _text(self.dimensions)


@lru_cache(maxsize=1024)
def _text(dimensions: tuple[int, ...]) -> str:
    return "x".join(map(str, dimensions))
