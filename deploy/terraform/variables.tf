variable "project" {
  description = "The ID of the project of the service and its queues, and of the database unless you set database_project."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{4,28}[a-z0-9]$", var.project))
    error_message = "It has to be a project's ID, such as my-project-123."
  }
}

variable "region" {
  description = "The region of the service, its queues and its schedule, such as europe-west1. Choose the database's region."
  type        = string

  validation {
    condition     = can(regex("^[a-z]+-[a-z]+[0-9]+$", var.region))
    error_message = "It has to be a region, such as europe-west1."
  }
}

variable "name" {
  description = "The name of the service. Names of its accounts and other resources start with it."
  type        = string
  default     = "scattermap"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,19}[a-z0-9]$", var.name))
    error_message = "It has to have 2 to 21 lower-case letters, digits and hyphens, start with a letter and not end with a hyphen: names of service accounts start with it."
  }
}

variable "image" {
  description = "The container's image, with its tag or, for reproducible deployments, its digest."
  type        = string
}

variable "database" {
  description = "The ID of the database, in Datastore mode. Empty: the default database."
  type        = string
  default     = ""

  validation {
    condition     = var.database == "" || can(regex("^[a-z][a-z0-9-]{2,61}[a-z0-9]$", var.database))
    error_message = "It has to be a database's ID, such as jobs, or empty for the database (default)."
  }
}

variable "database_project" {
  description = "The ID of the database's project, if it is not project. Your account needs the permission to grant roles there. Empty: project."
  type        = string
  default     = ""

  validation {
    condition     = var.database_project == "" || can(regex("^[a-z][a-z0-9-]{4,28}[a-z0-9]$", var.database_project))
    error_message = "It has to be a project's ID, such as my-project-123, or empty."
  }
}

variable "queues" {
  description = "The names of the queues. The first is the default queue."
  type        = list(string)
  default     = ["mapper"]

  validation {
    condition     = length(var.queues) > 0 && length(distinct(var.queues)) == length(var.queues) && alltrue([for q in var.queues : can(regex("^[A-Za-z0-9-]{1,100}$", q))])
    error_message = "It has to have at least one name. Names have letters, digits and hyphens, and differ."
  }
}

variable "instances" {
  description = "The maximum number of instances. The service takes instances × concurrency requests at once: nine tenths for tasks, the rest for operators."
  type        = number
  default     = 10

  validation {
    condition     = var.instances >= 1 && var.instances <= 1000 && floor(var.instances) == var.instances
    error_message = "It has to be a whole number in [1, 1000]."
  }
}

variable "concurrency" {
  description = "The number of requests that an instance takes at once. Choose few if mappers compute, many if they wait for other services."
  type        = number
  default     = 20

  validation {
    condition     = var.concurrency >= 1 && var.concurrency <= 1000 && floor(var.concurrency) == var.concurrency
    error_message = "It has to be a whole number in [1, 1000]."
  }
}

variable "cpu" {
  description = "The CPUs of an instance: 1, 2, 4, 6 or 8. Cloud Run needs 2Gi of memory for 4, and 4Gi for more."
  type        = string
  default     = "1"

  validation {
    condition     = contains(["1", "2", "4", "6", "8"], var.cpu)
    error_message = "It has to be 1, 2, 4, 6 or 8. An instance with less than one CPU takes only one request at once."
  }
}

variable "memory" {
  description = "The memory of an instance. The process takes about 25 MB, and each task the entities of two pages."
  type        = string
  default     = "512Mi"
}

variable "secrets" {
  description = "The names of secrets in Secret Manager, by variables of the service's environment, such as { WEBHOOK_URL = \"webhook-url\" }. Before you set it, grant the output service_account roles/secretmanager.secretAccessor on them."
  type        = map(string)
  default     = {}

  validation {
    condition     = alltrue([for name, secret in var.secrets : contains(["WEBHOOK_URL", "WEBHOOK_SECRET"], name) && can(regex("^[A-Za-z0-9_-]{1,255}$", secret))])
    error_message = "The variables can be WEBHOOK_URL and WEBHOOK_SECRET. Names of secrets have letters, digits, hyphens and underscores."
  }
}

variable "auth" {
  description = "Who verifies tokens. iam: Cloud Run, in front of the service; operators get roles/run.invoker. on: the service; Cloud Run lets everything through."
  type        = string
  default     = "iam"

  validation {
    condition     = contains(["on", "iam"], var.auth)
    error_message = "It has to be on or iam."
  }
}

variable "operators" {
  description = "The e-mail addresses of the people and service accounts that may start, see and control jobs. They may be empty if you set operator_groups, or iap_audience, which then allows everybody that the proxy lets through."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for o in var.operators : can(regex("^[^@[:space:]]+@[^@[:space:]]+$", o))])
    error_message = "They have to be e-mail addresses."
  }
}

variable "operator_groups" {
  description = "The e-mail addresses of Google groups whose members are operators. They need auth = \"iam\": a token does not list the groups of its account."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for g in var.operator_groups : can(regex("^[^@[:space:]]+@[^@[:space:]]+$", g))])
    error_message = "They have to be e-mail addresses."
  }
}

variable "iap_audience" {
  description = "The audience of Identity-Aware Proxy's assertions, if operators use the proxy: see docs/operate.md. Empty: operators send tokens."
  type        = string
  default     = ""

  validation {
    condition     = var.iap_audience == "" || can(regex("^/projects/[0-9]+/(locations/[^/]+/services|(global|regions/[^/]+)/backendServices)/[^/[:space:]]+$", var.iap_audience))
    error_message = "It has to be like /projects/NUMBER/locations/REGION/services/SERVICE or /projects/NUMBER/global/backendServices/ID."
  }
}

variable "revive_minutes" {
  description = "The minutes between two calls of /mapper/revive, which revives jobs that lost all their tasks, and measures how long jobs have been stuck."
  type        = number
  default     = 5

  validation {
    condition     = contains([1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60], var.revive_minutes)
    error_message = "It has to divide 60: 1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30 or 60. A schedule such as */45 restarts with each hour."
  }
}

variable "collector" {
  description = "Whether an OpenTelemetry collector runs beside the service and sends its metrics and traces to Google Cloud. Without it, there are only the alarms that need logs and Google's own metrics."
  type        = bool
  default     = false
}

variable "collector_image" {
  description = "The image of the collector. It needs the exporters googlemanagedprometheus and googlecloud."
  type        = string
  default     = "us-docker.pkg.dev/cloud-ops-agents-artifacts/google-cloud-opentelemetry-collector/otelcol-google:0.130.0"
}

variable "alarm_emails" {
  description = "The e-mail addresses that receive alarms."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for a in var.alarm_emails : can(regex("^[^@[:space:]]+@[^@[:space:]]+$", a))])
    error_message = "They have to be e-mail addresses."
  }
}

variable "notification_channels" {
  description = "The names of existing channels that also receive alarms: projects/PROJECT/notificationChannels/ID."
  type        = list(string)
  default     = []
}

variable "budget" {
  description = "The monthly amount for the whole project, in whole units of the billing account's currency. Mails warn at 50%, 90% and 100%; nothing is stopped. 0: no budget."
  type        = number
  default     = 0

  validation {
    condition     = var.budget >= 0 && floor(var.budget) == var.budget
    error_message = "It has to be a whole number, at least 0."
  }
}

variable "billing_account" {
  description = "The ID of the budget's billing account, such as 012345-6789AB-CDEF01. Required with budget."
  type        = string
  default     = ""

  validation {
    condition     = var.billing_account == "" || can(regex("^[0-9A-F]{6}-[0-9A-F]{6}-[0-9A-F]{6}$", var.billing_account))
    error_message = "It has to be like 012345-6789AB-CDEF01."
  }
}

variable "playbook" {
  description = "The URL that alarms link to: docs/operate.md, where your team reads it."
  type        = string
  default     = "https://github.com/scattermap/scattermap/blob/main/docs/operate.md"
}

variable "idle_minutes" {
  description = "The alarm fires if a running job commits nothing for this number of minutes."
  type        = number
  default     = 15

  validation {
    condition     = var.idle_minutes >= 10
    error_message = "It has to be at least 10: the metric can be some minutes too high, see docs/metrics.md."
  }
}

variable "failure_share" {
  description = "The alarm fires if more than this share of a mapper's entities fails within 15 minutes, in (0, 1)."
  type        = number
  default     = 0.05

  validation {
    condition     = var.failure_share > 0 && var.failure_share < 1
    error_message = "It has to be in (0, 1)."
  }
}

variable "task_age_minutes" {
  description = "The alarm fires if a tenth of the tasks waits longer than this number of minutes after they were due."
  type        = number
  default     = 10

  validation {
    condition     = var.task_age_minutes >= 1
    error_message = "It has to be at least 1."
  }
}
