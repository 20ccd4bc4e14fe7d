"""The startup script of machines: `startup.sh` with the few things in it that are settings.

Whatever may change while machines run (version, address, token) is in their metadata and not in here: a template cannot
be changed, so a script that depended on the cluster would make every template outdated with each upgrade of it.
"""

from __future__ import annotations

import functools
import shlex
from importlib import resources

#: Key in the metadata of a template.
METADATA_KEY = "startup-script"
#: Debian packages of Kubernetes, by minor version.
REPOSITORY = "https://pkgs.k8s.io"


@functools.cache
def startup_script(repository: str = REPOSITORY) -> str:
    """Return the script that installs containerd and kubeadm, and joins the cluster.

    `repository` is the address of packages as on pkgs.k8s.io, for machines that reach a mirror alone.
    """
    script = resources.files(__package__).joinpath("startup.sh").read_text(encoding="utf-8")
    return script.replace("@REPOSITORY@", shlex.quote(repository.rstrip("/")))
