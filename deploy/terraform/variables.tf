variable "project" {
  description = "The ID of the project that has the service, the queues and the database."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{4,28}[a-z0-9]$", var.project))
    error_message = "It has to be a project's ID, such as my-project-123."
  }
}

variable "region" {
  description = "Where the service, its queues and its schedule are, such as europe-west1. Choose that of the database."
  type        = string

  validation {
    condition     = can(regex("^[a-z]+-[a-z]+[0-9]+$", var.region))
    error_message = "It has to be a region, such as europe-west1."
  }
}

variable "name" {
  description = "The name of the service, and the beginning of the names of all that belongs to it."
  type        = string
  default     = "scattermap"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,20}$", var.name))
    error_message = "It has to be 2 to 21 lower-case letters, digits and hyphens, as service accounts have its name."
  }
}

variable "image" {
  description = "The container's image, with its tag or, better, its digest."
  type        = string
}

variable "database" {
  description = "The ID of the database, in Datastore mode. Empty is the default one."
  type        = string
  default     = ""
}

variable "queues" {
  description = "The names of the queues, the first of which is the default one."
  type        = list(string)
  default     = ["mapper"]

  validation {
    condition     = length(var.queues) > 0 && alltrue([for q in var.queues : can(regex("^[A-Za-z0-9-]{1,100}$", q))])
    error_message = "It has to be one name at least, of letters, digits and hyphens."
  }
}

variable "instances" {
  description = "How many instances the service has at most. With concurrency it is how many tasks run at once, over all queues."
  type        = number
  default     = 10

  validation {
    condition     = var.instances >= 1 && var.instances <= 1000
    error_message = "It has to be in [1, 1000]."
  }
}

variable "concurrency" {
  description = "How many tasks an instance does at once. Mappers that compute need few, and those that wait for others many."
  type        = number
  default     = 20

  validation {
    condition     = var.concurrency >= 1 && var.concurrency <= 1000
    error_message = "It has to be in [1, 1000]."
  }
}

variable "cpu" {
  description = "The CPUs of an instance, such as 1 or 2."
  type        = string
  default     = "1"
}

variable "memory" {
  description = "The memory of an instance: that of the process, some 25 MB, and a page's entities for each of concurrency tasks."
  type        = string
  default     = "512Mi"
}

variable "auth" {
  description = "Who verifies tokens: on is the service itself, and iam Cloud Run's own check in front of it, which then needs roles/run.invoker of operators, too."
  type        = string
  default     = "on"

  validation {
    condition     = contains(["on", "iam"], var.auth)
    error_message = "It has to be on or iam."
  }
}

variable "operators" {
  description = "The e-mail addresses of the accounts that may start, see and control jobs. With iap_audience it may be empty: everybody may whom the proxy lets through."
  type        = list(string)

  validation {
    condition     = alltrue([for o in var.operators : can(regex("^[^@[:space:]]+@[^@[:space:]]+$", o))])
    error_message = "They have to be e-mail addresses."
  }
}

variable "iap_audience" {
  description = "The audience of Identity-Aware Proxy's assertions, if operators come through it; docs/operations.md says where it stands. Empty: they come with tokens of their own."
  type        = string
  default     = ""

  validation {
    condition     = var.iap_audience == "" || can(regex("^/projects/[0-9]+/(locations/[^/]+/services|(global|regions/[^/]+)/backendServices)/[^/[:space:]]+$", var.iap_audience))
    error_message = "It has to be like /projects/NUMBER/locations/REGION/services/SERVICE or /projects/NUMBER/global/backendServices/ID."
  }
}

variable "revive_minutes" {
  description = "How many minutes there are between two calls of /mapper/revive, which brings back jobs whose every task is lost, and tells of jobs that are stuck."
  type        = number
  default     = 5

  validation {
    condition     = var.revive_minutes >= 1 && var.revive_minutes <= 60
    error_message = "It has to be in [1, 60]."
  }
}

variable "collector" {
  description = "Whether an OpenTelemetry collector runs beside the service, and sends its metrics and traces to Google Cloud. Without it there are the alarms that need only logs and the queues' own metrics."
  type        = bool
  default     = false
}

variable "collector_image" {
  description = "The image of the collector, which has the exporters googlemanagedprometheus and googlecloud."
  type        = string
  default     = "us-docker.pkg.dev/cloud-ops-agents-artifacts/google-cloud-opentelemetry-collector/otelcol-google:0.130.0"
}

variable "notification_channels" {
  description = "The names of the channels that alarms are sent to: projects/PROJECT/notificationChannels/ID."
  type        = list(string)
  default     = []
}

variable "playbook" {
  description = "Where the playbook is that alarms link to: the URL of docs/operations.md as the team reads it."
  type        = string
  default     = "https://github.com/scattermap/scattermap/blob/main/docs/operations.md"
}

variable "idle_minutes" {
  description = "After how many minutes in which a job that runs has committed nothing there is an alarm."
  type        = number
  default     = 15

  validation {
    condition     = var.idle_minutes >= 10
    error_message = "It has to be at least 10: what a process knows of others is some minutes old, see docs/telemetry.md."
  }
}

variable "failure_share" {
  description = "Which share of the entities may fail within 15 minutes, in (0, 1), before there is an alarm."
  type        = number
  default     = 0.05

  validation {
    condition     = var.failure_share > 0 && var.failure_share < 1
    error_message = "It has to be in (0, 1)."
  }
}

variable "task_age_minutes" {
  description = "How many minutes tasks that are due may wait for their delivery before there is an alarm."
  type        = number
  default     = 10

  validation {
    condition     = var.task_age_minutes >= 1
    error_message = "It has to be at least 1."
  }
}
