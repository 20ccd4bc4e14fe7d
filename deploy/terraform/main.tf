# What the provisioner may do in Google Cloud: the least that works. Apply it where the cluster's project is managed.
terraform {
  required_version = ">= 1.5"
  required_providers {
    google = {
      source  = "hashicorp/google"
      version = ">= 5.0"
    }
  }
}

variable "project_id" {
  type        = string
  description = "The cluster's project."
}

variable "node_service_account" {
  type        = string
  description = "E-mail address of the one service account that TPU nodes run as."
}

variable "google_service_account" {
  type        = string
  default     = ""
  description = "E-mail address of a Google service account to act as; empty: a direct principal."
}

variable "tpu7x" {
  type        = bool
  default     = false
  description = "Also let the controller make the workload policies that multi-host tpu7x pools name."
}

data "google_project" "this" {
  project_id = var.project_id
}

locals {
  subject   = "ns/tpu-provisioner-system/sa/tpu-provisioner-controller-manager"
  pool      = "${var.project_id}.svc.id.goog"
  principal = "principal://iam.googleapis.com/projects/${data.google_project.this.number}/locations/global/workloadIdentityPools/${local.pool}/subject/${local.subject}"
  member    = var.google_service_account == "" ? local.principal : "serviceAccount:${var.google_service_account}"
}

# GKE has no permissions of its own for node pools: they are updates of the cluster.
resource "google_project_iam_custom_role" "controller" {
  project     = var.project_id
  role_id     = "tpuProvisioner"
  title       = "TPU provisioner"
  description = "Make and delete node pools."
  permissions = [
    "container.clusters.get",
    "container.clusters.update",
    "container.operations.get",
    "container.operations.list",
  ]
}

resource "google_project_iam_member" "controller" {
  project = var.project_id
  role    = google_project_iam_custom_role.controller.id
  member  = local.member
}

# On one service account, not on the project: whoever may act as an account has its rights.
resource "google_project_iam_custom_role" "act_as" {
  project     = var.project_id
  role_id     = "tpuProvisionerActAs"
  title       = "TPU provisioner: act as the nodes' account"
  permissions = ["iam.serviceAccounts.actAs"]
}

resource "google_service_account_iam_member" "act_as" {
  service_account_id = "projects/-/serviceAccounts/${var.node_service_account}"
  role               = google_project_iam_custom_role.act_as.id
  member             = local.member
}

resource "google_project_iam_custom_role" "tpu7x" {
  count       = var.tpu7x ? 1 : 0
  project     = var.project_id
  role_id     = "tpuProvisionerTpu7x"
  title       = "TPU provisioner: workload policies of tpu7x"
  permissions = ["compute.resourcePolicies.create", "compute.resourcePolicies.get"]
}

resource "google_project_iam_member" "tpu7x" {
  count   = var.tpu7x ? 1 : 0
  project = var.project_id
  role    = google_project_iam_custom_role.tpu7x[0].id
  member  = local.member
}

# Only with a Google service account: the Kubernetes one may act as it.
resource "google_service_account_iam_member" "workload_identity" {
  count              = var.google_service_account == "" ? 0 : 1
  service_account_id = "projects/-/serviceAccounts/${var.google_service_account}"
  role               = "roles/iam.workloadIdentityUser"
  member             = "serviceAccount:${local.pool}[tpu-provisioner-system/tpu-provisioner-controller-manager]"
}

output "member" {
  value       = local.member
  description = "Who makes the node pools, as it is named in audit logs and policies."
}
