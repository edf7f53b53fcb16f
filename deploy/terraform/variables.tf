variable "project" {
  description = "The ID of the project that has the service, its queues and, unless database_project says otherwise, the database."
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
    condition     = can(regex("^[a-z][a-z0-9-]{0,19}[a-z0-9]$", var.name))
    error_message = "It has to be 2 to 21 lower-case letters, digits and hyphens, with none at the end, as service accounts have its name."
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

variable "database_project" {
  description = "The ID of the project that has the database, if it is another one. The account that applies has to be allowed to grant roles there. Empty: project."
  type        = string
  default     = ""

  validation {
    condition     = var.database_project == "" || can(regex("^[a-z][a-z0-9-]{4,28}[a-z0-9]$", var.database_project))
    error_message = "It has to be a project's ID, such as my-project-123, or empty."
  }
}

variable "queues" {
  description = "The names of the queues, the first of which is the default one."
  type        = list(string)
  default     = ["mapper"]

  validation {
    condition     = length(var.queues) > 0 && length(distinct(var.queues)) == length(var.queues) && alltrue([for q in var.queues : can(regex("^[A-Za-z0-9-]{1,100}$", q))])
    error_message = "It has to be one name at least, each once, of letters, digits and hyphens."
  }
}

variable "instances" {
  description = "How many instances the service has at most. Times concurrency it is how many requests it takes at once: nine tenths are for tasks, and the rest is for operators."
  type        = number
  default     = 10

  validation {
    condition     = var.instances >= 1 && var.instances <= 1000
    error_message = "It has to be in [1, 1000]."
  }
}

variable "concurrency" {
  description = "How many requests an instance takes at once. Mappers that compute need few, and those that wait for others many."
  type        = number
  default     = 20

  validation {
    condition     = var.concurrency >= 1 && var.concurrency <= 1000
    error_message = "It has to be in [1, 1000]."
  }
}

variable "cpu" {
  description = "The CPUs of an instance: 1, 2, 4, 6 or 8. Cloud Run needs 2Gi of memory for 4, and 4Gi for more."
  type        = string
  default     = "1"

  validation {
    condition     = contains(["1", "2", "4", "6", "8"], var.cpu)
    error_message = "It has to be 1, 2, 4, 6 or 8: Cloud Run gives an instance with less than one CPU one request at once."
  }
}

variable "memory" {
  description = "The memory of an instance: that of the process, some 25 MB, and a page's entities for each of concurrency tasks."
  type        = string
  default     = "512Mi"
}

variable "auth" {
  description = "Who verifies tokens: with iam it is Cloud Run's own check in front of the service, for which operators get roles/run.invoker; with on the service itself, and Cloud Run lets everything through."
  type        = string
  default     = "iam"

  validation {
    condition     = contains(["on", "iam"], var.auth)
    error_message = "It has to be on or iam."
  }
}

variable "operators" {
  description = "The e-mail addresses of the people and service accounts that may start, see and control jobs. It may be empty with operator_groups, and with iap_audience: everybody may whom the proxy lets through."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for o in var.operators : can(regex("^[^@[:space:]]+@[^@[:space:]]+$", o))])
    error_message = "They have to be e-mail addresses."
  }
}

variable "operator_groups" {
  description = "The e-mail addresses of Google groups whose members may do what operators may. They need auth = \"iam\": a token does not say in which groups its account is."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for g in var.operator_groups : can(regex("^[^@[:space:]]+@[^@[:space:]]+$", g))])
    error_message = "They have to be e-mail addresses."
  }
}

variable "iap_audience" {
  description = "The audience of Identity-Aware Proxy's assertions, if operators come through it; docs/operate.md says where it stands. Empty: they come with tokens of their own."
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
    condition     = contains([1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60], var.revive_minutes)
    error_message = "It has to divide 60: 1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30 or 60. Others, such as */45, begin anew with each hour."
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

variable "alarm_emails" {
  description = "The e-mail addresses that alarms are sent to."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for a in var.alarm_emails : can(regex("^[^@[:space:]]+@[^@[:space:]]+$", a))])
    error_message = "They have to be e-mail addresses."
  }
}

variable "notification_channels" {
  description = "The names of channels that exist and that alarms are sent to, too: projects/PROJECT/notificationChannels/ID."
  type        = list(string)
  default     = []
}

variable "budget" {
  description = "What the whole project may cost in a month, in whole units of the billing account's currency, before mails say so: at 50%, 90% and 100%. It stops nothing. 0 is no budget."
  type        = number
  default     = 0

  validation {
    condition     = var.budget >= 0 && floor(var.budget) == var.budget
    error_message = "It has to be a whole number, and not negative."
  }
}

variable "billing_account" {
  description = "The ID of the billing account that the budget belongs to, such as 012345-6789AB-CDEF01. Only with budget."
  type        = string
  default     = ""

  validation {
    condition     = var.billing_account == "" || can(regex("^[0-9A-F]{6}-[0-9A-F]{6}-[0-9A-F]{6}$", var.billing_account))
    error_message = "It has to be like 012345-6789AB-CDEF01."
  }
}

variable "playbook" {
  description = "Where the playbook is that alarms link to: the URL of docs/operate.md as the team reads it."
  type        = string
  default     = "https://github.com/scattermap/scattermap/blob/main/docs/operate.md"
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
