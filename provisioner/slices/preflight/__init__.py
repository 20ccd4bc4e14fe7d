"""What is looked at before the first JobSet: `tpu-provisioner check`, and the same findings in the log of `run`.

Nothing is changed. Each check is a small function that reads and judges; the reading stops at the first answer that
tells, and whatever goes wrong with a check is a finding, never an exception.
"""

from provisioner.slices.preflight.checking import Subject, log_findings, run_checks
from provisioner.slices.preflight.finding import Finding, Status, failed, ok, unknown, warning

__all__ = ["Finding", "Status", "Subject", "failed", "log_findings", "ok", "run_checks", "unknown", "warning"]
