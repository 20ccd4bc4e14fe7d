"""Derives slices from workloads and their pods. Pure."""

from provisioner.model.workloads import group_key
from provisioner.slices.demand.groups import SliceId
from provisioner.slices.demand.slices import Slice

__all__ = ["Slice", "SliceId", "group_key"]
