// Package cloudstandin simulates Google Cloud for the commands of the documentation, so that a test
// can run them. The commands are gcloud, Terraform, curl, git, and the parts of the go command that
// need a network.
//
// Start returns a Cloud: an empty project, and programs with these names. The programs only pass
// their arguments to the Cloud, which has a small model of the project: APIs, databases, accounts,
// roles, queues, images, services, schedules, alarms. It refuses what a real project would refuse:
// a resource that was not created, enabled or granted before, a flag that gcloud does not have, a
// missing location.
//
// As much as possible is real. The Datastore and Cloud Tasks are those in package emulator, and
// each call to them is checked against the roles of the service's account. A deployed service is
// built, and runs as a process of its own. Requests to it go through a front that checks tokens and
// roles as Cloud Run does, over TLS if the command expects that. Terraform's files are read and
// evaluated, and the Cloud creates the resources that they declare.
//
// It does not simulate delays until a change is seen everywhere, quotas, prices, organisation
// policies, the Dockerfile, buildpacks, and mail. Its answers resemble the real ones as far as the
// documentation shows them.
package cloudstandin
