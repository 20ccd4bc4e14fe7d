"""The 3-D topologies that Google's own tools list.

GKE publishes a rule for slices of whole cubes, and its autoscaler holds no list. These are the slices that xpk makes by
default and, for tpu7x, also those of a reference list for this provisioner; the two differ, so both count. The one
v4 slice beyond xpk's list, 16x16x16, is a whole pod.
"""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


BELOW_CUBE = ("2x2x1", "2x2x2", "2x2x4", "2x4x4")

V4 = (*BELOW_CUBE, *_words("4x4x4 4x4x8 4x8x8 8x8x8 8x8x12 8x8x16 8x16x16 16x16x16"))

V5P = (
    *BELOW_CUBE,
    *_words("""
    4x4x4 4x4x8 4x4x12 4x8x8 4x4x20 4x8x12 4x4x28 8x8x8 4x12x12 4x8x20 4x4x44 8x8x12 4x4x52 4x8x28 4x12x20 8x8x16
    4x4x68 8x12x12 4x4x76 8x8x20 4x12x28 4x8x44 4x4x92 8x12x16 4x20x20 4x8x52 12x12x12 8x8x28 4x4x116 8x12x20
    4x4x124 8x16x16 4x12x44 4x8x68 4x20x28 12x12x16 4x4x148 4x8x76 4x12x52 8x16x20 4x4x164 8x12x28 4x4x172 8x8x44
    12x12x20 4x8x92 4x4x188 12x16x16 4x28x28 8x20x20 4x12x68 8x8x52 4x4x212 12x12x24 4x20x44 8x16x28 4x12x76
    4x8x116 4x4x236 12x16x20 4x4x244 4x8x124 12x12x28 16x16x16 4x20x52 8x12x44 8x8x68 4x12x92 8x20x28 12x16x24
    4x8x148 12x20x20 8x8x76 4x28x44 8x12x52 16x16x20 12x12x36 4x8x164 12x16x28 4x20x68 4x8x172 4x12x116 8x16x44
    12x20x24 4x28x52 8x8x92 4x12x124 4x8x188 4x20x76 16x16x24 12x24x24 16x20x28
    """),
)

TPU7X = (
    "1x1x1",
    *V5P,
    "16x16x32",
    "16x24x24",
    *_words("""
    4x4x16 4x4x24 4x8x16 4x4x32 4x12x16 4x8x24 4x8x32 4x16x16 4x12x24 4x16x20 8x8x24 4x16x24 8x8x32 4x16x32 8x12x24
    8x16x24 8x16x32
    """),
)

TPU7 = ("1x1x1", *BELOW_CUBE, "4x4x4", "4x4x8", "4x4x12", "4x4x16", "4x8x8")
