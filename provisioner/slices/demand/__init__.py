"""Workloads and their pods in, slices out. Pure."""

from provisioner.model.workloads import group_key
from provisioner.slices.demand.slices import Slice, SliceId, find_slices, left_to_slices, rejected

__all__ = ["Slice", "SliceId", "find_slices", "group_key", "left_to_slices", "rejected"]
