# The minimum permissions of the provisioner in Google Cloud. Apply this where you manage the cluster's project.
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
  validation {
    condition     = can(regex("^([a-z0-9.-]+:)?[a-z][-a-z0-9]{4,28}[a-z0-9]$", var.project_id))
    error_message = "project_id must be a project's id, such as my-project, not its number or name."
  }
}

variable "node_service_account" {
  type        = string
  description = "E-mail address of the one service account that TPU nodes run as."
  validation {
    condition     = can(regex("^[^@[:space:]]+@[^@[:space:]]+\\.gserviceaccount\\.com$", var.node_service_account))
    error_message = "node_service_account must be an address such as tpu-nodes@my-project.iam.gserviceaccount.com."
  }
}

variable "google_service_account" {
  type        = string
  default     = ""
  description = "E-mail address of an existing Google service account to act as; empty: a direct principal."
  validation {
    condition     = var.google_service_account == "" || can(regex("^[^@[:space:]]+@[^@[:space:]]+\\.gserviceaccount\\.com$", var.google_service_account))
    error_message = "google_service_account must be empty, or an address such as tpu-provisioner@my-project.iam.gserviceaccount.com."
  }
}

variable "google_service_account_id" {
  type        = string
  default     = ""
  description = "Create a Google service account with this id in the project and act as it; empty: create none."
  validation {
    condition     = var.google_service_account_id == "" || can(regex("^[a-z][-a-z0-9]{4,28}[a-z0-9]$", var.google_service_account_id))
    error_message = "google_service_account_id must be empty, or 6 to 30 lower-case letters, digits and dashes, such as tpu-provisioner."
  }
}

variable "namespace" {
  type        = string
  default     = "tpu-provisioner-system"
  description = "The namespace that the controller is installed in."
  validation {
    condition     = can(regex("^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$", var.namespace))
    error_message = "namespace must be the name of a Kubernetes namespace."
  }
}

variable "role_suffix" {
  type        = string
  default     = ""
  description = "Suffix of the roles' ids, for a second installation in the project, or for 37 days after the roles were deleted."
  validation {
    condition     = can(regex("^[A-Za-z0-9_.]{0,40}$", var.role_suffix))
    error_message = "role_suffix must consist of letters, digits, underscores and dots."
  }
}

variable "tpu7x" {
  type        = bool
  default     = false
  description = "Also let the controller create the workload policies that multi-host tpu7x pools name."
}

data "google_project" "this" {
  project_id = var.project_id
}

locals {
  subject   = "ns/${var.namespace}/sa/tpu-provisioner-controller-manager"
  pool      = "${var.project_id}.svc.id.goog"
  principal = "principal://iam.googleapis.com/projects/${data.google_project.this.number}/locations/global/workloadIdentityPools/${local.pool}/subject/${local.subject}"
  made      = one(google_service_account.controller[*].email)
  account   = local.made == null ? var.google_service_account : local.made
  acts_as   = var.google_service_account != "" || var.google_service_account_id != ""
  member    = local.acts_as ? "serviceAccount:${local.account}" : local.principal
}

resource "google_service_account" "controller" {
  count        = var.google_service_account_id == "" ? 0 : 1
  project      = var.project_id
  account_id   = var.google_service_account_id
  display_name = "TPU provisioner"
}

# GKE has no separate permissions for node pools: they are updates of the cluster.
resource "google_project_iam_custom_role" "controller" {
  project     = var.project_id
  role_id     = "tpuProvisioner${var.role_suffix}"
  title       = "TPU provisioner"
  description = "Create and delete node pools."
  permissions = [
    "container.clusters.get",
    "container.clusters.update",
    "container.operations.get",
  ]
}

resource "google_project_iam_member" "controller" {
  project = var.project_id
  role    = google_project_iam_custom_role.controller.id
  member  = local.member
}

# On one service account, not on the project: an identity that may act as an account has its permissions.
resource "google_project_iam_custom_role" "act_as" {
  project     = var.project_id
  role_id     = "tpuProvisionerActAs${var.role_suffix}"
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
  role_id     = "tpuProvisionerTpu7x${var.role_suffix}"
  title       = "TPU provisioner: workload policies of tpu7x"
  permissions = ["compute.resourcePolicies.create", "compute.resourcePolicies.get"]
}

resource "google_project_iam_member" "tpu7x" {
  count   = var.tpu7x ? 1 : 0
  project = var.project_id
  role    = google_project_iam_custom_role.tpu7x[0].id
  member  = local.member
}

# Only with a Google service account: the Kubernetes ServiceAccount may act as it.
resource "google_service_account_iam_member" "workload_identity" {
  count              = local.acts_as ? 1 : 0
  service_account_id = "projects/-/serviceAccounts/${local.account}"
  role               = "roles/iam.workloadIdentityUser"
  member             = "serviceAccount:${local.pool}[${var.namespace}/tpu-provisioner-controller-manager]"
}

output "member" {
  value       = local.member
  description = "The identity that creates the node pools, as it is named in audit logs and policies."
}
