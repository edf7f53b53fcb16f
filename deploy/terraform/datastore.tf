# The database exists before: whoever deletes a service does not delete its data. scattermap needs no composite index: what a
# query of yours needs is named when its job starts.

locals {
  database_project = var.database_project == "" ? var.project : var.database_project
  database         = var.database == "" ? "(default)" : var.database

  # The kinds of records that may expire, by their property expires: see Job.CleanUp.
  expiring = ["ScattermapJob", "ScattermapRange", "ScattermapUndoBatch"]
}
