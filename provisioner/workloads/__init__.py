"""The kinds of workloads, a file each: where their objects live, what these and their pods say, read from raw JSON.

`KINDS` lists those that are served. What reads the API server goes by it: `watches` keep copies of workloads and pods,
`live` reads them in the moment before a delete.
"""

from provisioner.workloads.jobset import JOBSET
from provisioner.workloads.kind import Claim, Kind
from provisioner.workloads.leaderworkerset import LEADER_WORKER_SET

#: Those that are served, by their kind.
KINDS = {each.kind: each for each in (JOBSET, LEADER_WORKER_SET)}

__all__ = ["JOBSET", "KINDS", "LEADER_WORKER_SET", "Claim", "Kind"]
