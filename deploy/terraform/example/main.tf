# A service with one queue, its alarms by mail, and a collector beside it.

terraform {
  required_version = ">= 1.6"
}

provider "google" {
  project = var.project

  # The API of budgets needs the project that pays for its calls.
  billing_project       = var.project
  user_project_override = var.budget > 0
}

variable "project" {
  description = "The ID of the project."
  type        = string
}

variable "region" {
  description = "The region of the service. Choose the database's region."
  type        = string
  default     = "europe-west1"
}

variable "image" {
  description = "The image, such as europe-west1-docker.pkg.dev/PROJECT/services/credit@sha256:..."
  type        = string
}

variable "name" {
  description = "The name of the service. Names of its accounts and other resources start with it."
  type        = string
  default     = "credit"
}

variable "queue" {
  description = "The name of the queue."
  type        = string
  default     = "mapper"
}

variable "operator" {
  description = "The e-mail address of the person who starts jobs and receives alarms."
  type        = string
}

variable "budget" {
  description = "The monthly amount for the project: mails warn at 50%, 90% and 100%. 0: no budget."
  type        = number
  default     = 0
}

variable "billing_account" {
  description = "The ID of the budget's billing account, such as 012345-6789AB-CDEF01."
  type        = string
  default     = ""
}

module "credit" {
  source = "./.."

  project         = var.project
  region          = var.region
  name            = var.name
  queues          = [var.queue]
  image           = var.image
  operators       = [var.operator]
  alarm_emails    = [var.operator]
  collector       = true
  budget          = var.budget
  billing_account = var.billing_account
}

output "url" {
  description = "The URL of the service."
  value       = module.credit.url
}

output "login" {
  description = "The command that logs the command line in."
  value       = module.credit.login
}

output "dashboard" {
  description = "The command that serves the dashboard at http://localhost:8080/dashboard/."
  value       = module.credit.dashboard
}

output "ttl" {
  description = "The commands that let old records expire."
  value       = module.credit.ttl
}
