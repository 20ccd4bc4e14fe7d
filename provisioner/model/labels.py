"""Labels of nodes: which belong to Google or Kubernetes, and which may be there although nobody predicts them.

Of labels that belong to Google or Kubernetes more are set than anybody lists. One that is neither predicted nor known
to be missing may be there: whoever selects it probably saw it on a node.
"""

from __future__ import annotations

from provisioner import constants

#: What Google sets, or leaves out, in ways that are known: a node that is not predicted to carry one does not.
_KNOWN = frozenset(
    {
        constants.NODE_POOL,
        constants.TPU_ACCELERATOR,
        constants.TPU_TOPOLOGY,
        constants.ACCELERATOR_COUNT,
        constants.GPU_ACCELERATOR,
        constants.SPOT,
        constants.PREEMPTIBLE,
        constants.FLEX_START,
        constants.QUEUED,
        constants.MAX_RUN_SECONDS,
        constants.PLACEMENT_POLICY,
        constants.RESERVATION_AFFINITY,
        constants.RESERVATION_PROJECT,
        constants.RESERVATION_NAME,
        constants.RESERVATION_BLOCK,
        constants.RESERVATION_SUB_BLOCK,
        # Set only where the creator of the pool asks for it.
        constants.ICI_RESILIENCY,
        constants.LOCATION_HINT,
        constants.AUTO_RESTART,
        constants.COMPUTE_CLASS,
        # The name of one node, which a new one does not have.
        constants.HOSTNAME,
    }
)
_SYSTEM = tuple(f".{domain}" for domain in constants.SYSTEM_LABEL_DOMAINS)
#: Nobody but the provisioner sets labels that begin so.
_OURS = ("google.com/tpu-provisioner-", "tpu-provisioner.cloud.google.com/", constants.NODEPOOL_MANAGER)


def is_system(key: str) -> bool:
    """Whether a label belongs to Google or Kubernetes."""
    prefix, separator, _ = key.rpartition("/")
    return separator != "" and f".{prefix}".endswith(_SYSTEM)


def may_be_there(key: str) -> bool:
    """Whether a node may carry a label although it is not predicted."""
    return key not in _KNOWN and is_system(key) and not key.startswith(_OURS)
