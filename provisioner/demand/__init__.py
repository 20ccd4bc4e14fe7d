"""JobSets and their pods in, slices out. Pure."""

from provisioner.demand.slices import Slice, SliceId, find_slices, left_to_slices, rejected
from provisioner.model.workloads import job_key

__all__ = ["Slice", "SliceId", "find_slices", "job_key", "left_to_slices", "rejected"]
