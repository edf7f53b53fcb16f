# A service with one queue, its alarms by mail, and a collector beside it.

terraform {
  required_version = ">= 1.6"
}

provider "google" {
  project = var.project
}

variable "project" {
  description = "The ID of the project."
  type        = string
}

variable "image" {
  description = "The image, such as europe-west1-docker.pkg.dev/PROJECT/services/credit@sha256:..."
  type        = string
}

variable "operator" {
  description = "The e-mail address of whoever starts jobs and gets the alarms."
  type        = string
}

resource "google_monitoring_notification_channel" "mail" {
  project      = var.project
  display_name = "Operators of credit"
  type         = "email"

  labels = {
    email_address = var.operator
  }
}

module "credit" {
  source = "./.."

  project               = var.project
  region                = "europe-west1"
  name                  = "credit"
  image                 = var.image
  operators             = [var.operator]
  collector             = true
  notification_channels = [google_monitoring_notification_channel.mail.name]
}

output "url" {
  description = "Where the service is."
  value       = module.credit.url
}
