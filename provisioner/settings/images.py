"""Boot images of machines by accelerator, as the administrator writes them.

tpu-v6e-slice=projects/p/global/images/family/v6e, *=projects/p/global/images/tpu-vm-7
"""

from __future__ import annotations

import re

from provisioner.model.choices import comma_items
from provisioner.settings.forms import OTHERS
from provisioner.settings.prices import ACCELERATOR, check_accelerator

IMAGE = re.compile(r"[A-Za-z0-9:/._~-]*projects/[A-Za-z0-9:._~-]+/global/images/[A-Za-z0-9/._~-]+")
_FORM = '"ACCELERATOR=IMAGE" (or "*" for all others), such as "tpu7x=projects/my-project/global/images/my-image"'


def parse_images(text: str) -> tuple[tuple[str, str], ...]:
    """Read images by accelerator label, `*` for all that are not named; raise ValueError with what is wrong."""
    found: dict[str, str] = {}
    for item in comma_items(text):
        name, separator, image = (piece.strip() for piece in item.partition("="))
        if not separator or not (name == OTHERS or ACCELERATOR.fullmatch(name)):
            raise ValueError(f"has {item!r}, which is not of the form {_FORM}")
        if name in found:
            raise ValueError(f"names {name!r} twice")
        if name != OTHERS:
            check_accelerator(name)
        if not IMAGE.fullmatch(image):
            raise ValueError(f"has {item!r}, where {image!r} is not an image; the form is {_FORM}")
        found[name] = image
    return tuple(found.items())
