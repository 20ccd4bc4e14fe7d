# The minimum permissions of the controller of TPUNodeGroups in Google Cloud, in one project. Apply this once for each
# project of ALLOWED_PROJECTS.
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
  description = "The project that groups are made in."
  validation {
    condition     = can(regex("^([a-z0-9.-]+:)?[a-z][-a-z0-9]{4,28}[a-z0-9]$", var.project_id))
    error_message = "project_id must be a project's id, such as my-project, not its number or name."
  }
}

variable "member" {
  type        = string
  description = "The identity of the controller: the service account of the machine that it runs on, or of its key, or a principal of Workload Identity Federation."
  validation {
    condition     = can(regex("^(serviceAccount:[^@[:space:]]+@[^@[:space:]]+\\.gserviceaccount\\.com|principal(Set)?://iam\\.googleapis\\.com/[^[:space:]]+)$", var.member))
    error_message = "member must be serviceAccount:ADDRESS, or principal://iam.googleapis.com/..."
  }
}

variable "node_service_accounts" {
  type        = set(string)
  default     = []
  description = "E-mail addresses of the service accounts that the machines of groups run as: those of spec.instanceConfig.serviceAccounts and of templates of your own."
  validation {
    condition     = alltrue([for account in var.node_service_accounts : can(regex("^[^@[:space:]]+@[^@[:space:]]+\\.gserviceaccount\\.com$", account))])
    error_message = "node_service_accounts must be addresses such as tpu-nodes@my-project.iam.gserviceaccount.com."
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

resource "google_project_iam_custom_role" "controller" {
  project     = var.project_id
  role_id     = "tpuNodeGroups${var.role_suffix}"
  title       = "TPU node groups"
  description = "Create and delete workload policies, instance templates and managed instance groups, and let their machines join."
  permissions = [
    "compute.disks.create",
    "compute.globalOperations.get",
    "compute.images.useReadOnly",
    "compute.instanceGroupManagers.create",
    "compute.instanceGroupManagers.delete",
    "compute.instanceGroupManagers.get",
    "compute.instanceGroupManagers.list",
    "compute.instanceTemplates.create",
    "compute.instanceTemplates.delete",
    "compute.instanceTemplates.get",
    "compute.instanceTemplates.useReadOnly",
    "compute.instances.create",
    "compute.instances.delete",
    "compute.instances.list",
    "compute.instances.setMetadata",
    "compute.instances.setServiceAccount",
    "compute.instances.setTags",
    "compute.regionOperations.get",
    "compute.resourcePolicies.create",
    "compute.resourcePolicies.delete",
    "compute.resourcePolicies.get",
    "compute.resourcePolicies.use",
    "compute.subnetworks.use",
    "compute.zoneOperations.get",
  ]
}

resource "google_project_iam_member" "controller" {
  project = var.project_id
  role    = google_project_iam_custom_role.controller.id
  member  = var.member
}

# On the machines' accounts, not on the project: an identity that may act as an account has its permissions.
resource "google_project_iam_custom_role" "act_as" {
  project     = var.project_id
  role_id     = "tpuNodeGroupsActAs${var.role_suffix}"
  title       = "TPU node groups: act as the machines' accounts"
  permissions = ["iam.serviceAccounts.actAs"]
}

resource "google_service_account_iam_member" "act_as" {
  for_each           = var.node_service_accounts
  service_account_id = "projects/-/serviceAccounts/${each.value}"
  role               = google_project_iam_custom_role.act_as.id
  member             = var.member
}
