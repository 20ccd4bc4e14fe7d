"""What the settings and pods ask of nodes, whoever supplies them. Pure."""

from __future__ import annotations

from provisioner import constants, tpu
from provisioner.model import bounds
from provisioner.model.capacity import Taint
from provisioner.settings import Settings, forms
from provisioner.slices.demand import Slice, allowlists
from provisioner.slices.supplier import ImpossibleError, UnmeetableError

#: Pods that do not tolerate it get no capacity that Google may take back.
SPOT_TAINT = Taint(key=constants.SPOT, value="true")
#: Keeps pods without chips off the nodes.
CHIP_TAINT = Taint(key=constants.TPU_RESOURCE, value="present")


def disk_type(shape: tpu.Shape, settings: Settings) -> str:
    """Return the type of the boot disk, empty for Google's default; raise UnmeetableError where a machine has none."""
    allowed = shape.machine_type.disk_types
    if settings.node_disk_type:
        if settings.node_disk_type not in allowed:
            raise UnmeetableError(
                f"GCP_NODE_DISK_TYPE is {settings.node_disk_type}, but {shape.machine_type.name} boots only from "
                f"{', '.join(allowed)}; the administrator has to change it or leave it empty"
            )
        return settings.node_disk_type
    # Where Google's own default is accepted, Google chooses.
    return "" if "pd-standard" in allowed else allowed[0]


def service_account(slice_: Slice, settings: Settings) -> str:
    """Return the service account, empty for Compute Engine's default; raise UnmeetableError for one that may not be."""
    account = slice_.requirements.annotations.get(constants.NODE_SERVICE_ACCOUNT, "")
    if not account:
        return settings.node_service_account
    if account != settings.node_service_account and not forms.SERVICE_ACCOUNT.fullmatch(account):
        raise ImpossibleError(
            f"annotation {constants.NODE_SERVICE_ACCOUNT}={bounds.quoted(account)} is not the e-mail address of a "
            f"Google service account, such as NAME@PROJECT.iam.gserviceaccount.com"
        )
    problem = allowlists.service_account_problem(account, settings)
    if problem:
        raise UnmeetableError(problem)
    return account
