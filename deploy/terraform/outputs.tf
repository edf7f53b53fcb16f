output "url" {
  description = "The URL of the service, and the audience of operators' tokens."
  value       = local.url
}

output "login" {
  description = "The command that logs the command line in. Empty: operators use a browser, through Identity-Aware Proxy."
  value       = local.login
}

output "operators_account" {
  description = "With auth = \"on\", the service account that people impersonate. Empty: they impersonate none."
  value       = local.impersonated ? google_service_account.team[0].email : ""
}

output "dashboard" {
  description = "The command that serves the dashboard at http://localhost:8080/dashboard/. Empty: the dashboard needs Identity-Aware Proxy."
  value       = var.auth == "iam" ? "gcloud run services proxy ${var.name} --project=${var.project} --region=${var.region} --port=8080" : ""
}

output "ttl" {
  description = "The commands that let old records expire: terraform output -raw ttl | sh. Terraform can't, because a database in Datastore mode refuses google_firestore_field."
  value = join("\n", [for kind in local.expiring :
    "gcloud firestore fields ttls update expires --collection-group=${kind} --enable-ttl --async --project=${local.database_project} --database='${local.database}'"
  ])
}

output "service_account" {
  description = "The e-mail address of the service's account: grant it the other roles that your mappers need."
  value       = google_service_account.service.email
}

output "tasks_service_account" {
  description = "The e-mail address of the account whose tokens tasks carry."
  value       = google_service_account.tasks.email
}

output "queues" {
  description = "The full names of the queues."
  value       = [for q in var.queues : google_cloud_tasks_queue.queues[q].id]
}
