terraform {
  required_version = ">= 1.6"

  required_providers {
    google = {
      source  = "hashicorp/google"
      version = ">= 6.50, < 7.0" # schema.txt is that of 6.50
    }
  }
}
