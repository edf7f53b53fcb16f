# The module creates no database, so a destroy deletes no data. scattermap needs no composite index. If a query of yours
# needs one, the start of its job names it.

locals {
  database_project = var.database_project == "" ? var.project : var.database_project
  database         = var.database == "" ? "(default)" : var.database

  # Records of these kinds may expire, by their property expires: see Job.CleanUp.
  expiring = ["ScattermapJob", "ScattermapRange", "ScattermapUndoBatch"]
}
