"""The IAM permissions that the provisioner needs; the roles of docs/install.md and of Terraform have exactly these."""

#: On the project of the cluster.
PROJECT_PERMISSIONS = ("container.clusters.get", "container.clusters.update", "container.operations.get")
#: On the nodes' service account.
ACT_AS = "iam.serviceAccounts.actAs"
#: On the project, and only for multi-host slices of tpu7x and tpu7.
POLICY_PERMISSIONS = ("compute.resourcePolicies.get", "compute.resourcePolicies.create")
#: On the project of a reservation, and only for `tpu-provisioner check`; no role of ours has it.
READ_RESERVATION = "compute.reservations.get"
