"""Derives slices from workloads and their pods. Pure."""

from provisioner.model.workloads import group_key
from provisioner.slices.demand.slices import Slice, SliceId

__all__ = ["Slice", "SliceId", "group_key"]
