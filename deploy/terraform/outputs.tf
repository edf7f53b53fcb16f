output "url" {
  description = "The URL of the service: operators send their requests to URL/jobs, with a token for this audience."
  value       = local.url
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
