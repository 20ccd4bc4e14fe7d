"""What there is, for people: one read model, from the snapshot and the plan of a round. Pure.

Page, commands and API show this and nothing else.
"""

from provisioner.slices.view.build import build_view
from provisioner.slices.view.types import (
    AlertView,
    BackoffView,
    CapacityView,
    LimitView,
    NoticeView,
    PoolView,
    SliceView,
    State,
    View,
    WorkloadView,
)

__all__ = [
    "AlertView",
    "BackoffView",
    "CapacityView",
    "LimitView",
    "NoticeView",
    "PoolView",
    "SliceView",
    "State",
    "View",
    "WorkloadView",
    "build_view",
]
