"""The startup script of machines: `startup.sh` with the few things in it that are settings.

Whatever may change while machines run (version, address, token) is in their metadata and not in here: a template cannot
be changed, so a script that depended on the cluster would make every template outdated with each upgrade of it.
"""

from __future__ import annotations

import functools
import hashlib
import shlex
from importlib import resources

#: Debian packages of Kubernetes, by minor version.
REPOSITORY = "https://pkgs.k8s.io"


_WITH_USERS = """\
#!/bin/bash
# The startup-script of the group's metadata runs first, at each boot, as Compute Engine would run it.
if users_script=$(mktemp -d)/startup-script; then
  cat > "$users_script" << '{end}'
{users}{end}
  chmod 700 "$users_script"
  "$users_script" < /dev/null || echo "tpu-provisioner: the startup-script of the metadata ended with $?" >&2
  rm -rf "${{users_script%/*}}"
fi
{script}"""


@functools.cache
def startup_script(repository: str = REPOSITORY) -> str:
    """Return the script that installs containerd and kubeadm, and joins the cluster.

    `repository` is the address of packages as on pkgs.k8s.io, for machines that reach a mirror alone.
    """
    script = resources.files(__package__).joinpath("startup.sh").read_text(encoding="utf-8")
    return script.replace("@REPOSITORY@", shlex.quote(repository.rstrip("/")))


def with_users_script(script: str, users: str) -> str:
    """Return what runs a startup script of the user's first, whatever becomes of it, and then `script`."""
    if not users:
        return script
    # No line of the user's is a hash of all of them.
    end = f"END_{hashlib.sha256(users.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"
    users = users if users.endswith("\n") else f"{users}\n"
    return _WITH_USERS.format(end=end, users=users, script=script)
