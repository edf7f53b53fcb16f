# A service with one queue, its alarms by mail, and a collector beside it.

terraform {
  required_version = ">= 1.6"
}

provider "google" {
  project = var.project

  # The API of budgets asks for the project that its calls count on.
  billing_project       = var.project
  user_project_override = var.budget > 0
}

variable "project" {
  description = "The ID of the project."
  type        = string
}

variable "region" {
  description = "The region of the service: the same as the database's."
  type        = string
  default     = "europe-west1"
}

variable "image" {
  description = "The image, such as europe-west1-docker.pkg.dev/PROJECT/services/credit@sha256:..."
  type        = string
}

variable "operator" {
  description = "The e-mail address of the person who starts jobs and gets the alarms."
  type        = string
}

variable "budget" {
  description = "What the project may cost in a month before mails say so, see the module. 0 is no budget."
  type        = number
  default     = 0
}

variable "billing_account" {
  description = "The ID of the billing account that the budget belongs to, such as 012345-6789AB-CDEF01."
  type        = string
  default     = ""
}

module "credit" {
  source = "./.."

  project         = var.project
  region          = var.region
  name            = "credit"
  image           = var.image
  operators       = [var.operator]
  alarm_emails    = [var.operator]
  collector       = true
  budget          = var.budget
  billing_account = var.billing_account
}

output "url" {
  description = "Where the service is."
  value       = module.credit.url
}

output "login" {
  description = "The command to log in with."
  value       = module.credit.login
}

output "dashboard" {
  description = "The command after which http://localhost:8080/dashboard/ is the dashboard."
  value       = module.credit.dashboard
}

output "ttl" {
  description = "The commands that let old records expire."
  value       = module.credit.ttl
}
