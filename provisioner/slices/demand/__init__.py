"""Workloads and their pods in, slices out. Pure."""

from provisioner.model.workloads import group_key
from provisioner.slices.demand.slices import Slice, SliceId, left_to_slices, rejected

__all__ = ["Slice", "SliceId", "group_key", "left_to_slices", "rejected"]
