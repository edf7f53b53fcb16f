output "url" {
  description = "The URL of the service, which is also the audience of operators' tokens."
  value       = local.url
}

output "login" {
  description = "The command after which the command line needs no token. Empty: operators come in a browser, through Identity-Aware Proxy."
  value       = local.login
}

output "operators_account" {
  description = "The service account that operators who are people impersonate, with auth = \"on\". Empty: they need none."
  value       = local.impersonated ? google_service_account.team[0].email : ""
}

output "dashboard" {
  description = "The command after which http://localhost:8080/dashboard/ is the service's dashboard. Empty: it needs Identity-Aware Proxy."
  value       = var.auth == "iam" ? "gcloud run services proxy ${var.name} --project=${var.project} --region=${var.region} --port=8080" : ""
}

output "ttl" {
  description = "The commands that let old records expire, one a line: terraform output -raw ttl | sh. Terraform can't: a database in Datastore mode refuses google_firestore_field."
  value = join("\n", [for kind in local.expiring :
    "gcloud firestore fields ttls update expires --collection-group=${kind} --enable-ttl --async --project=${local.database_project} --database='${local.database}'"
  ])
}

output "service_account" {
  description = "The e-mail address of the service's account, for what else its mappers need."
  value       = google_service_account.service.email
}

output "tasks_service_account" {
  description = "The e-mail address of the account whose tokens tasks carry."
  value       = google_service_account.tasks.email
}

output "queues" {
  description = "The names of the queues in full."
  value       = [for q in var.queues : google_cloud_tasks_queue.queues[q].id]
}
