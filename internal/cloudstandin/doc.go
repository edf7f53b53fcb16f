// Package cloudstandin simulates Google Cloud for the commands in the documentation, so that a test
// can run them. The commands are gcloud, Terraform, curl, git, and the parts of the go command that
// need a network.
//
// Start returns a Cloud: an empty project, and simulated programs with these names. A simulated
// program only passes its arguments to the Cloud. The Cloud has a small model of the project: APIs,
// databases, accounts, roles, queues, images, services, schedules and alerts. It refuses what a
// real project would refuse: a missing resource, API or role, a flag that gcloud does not have, a
// missing location.
//
// The rest is as real as possible. Datastore and Cloud Tasks are the emulators of package emulator,
// and each call to them is checked against the roles of the service's account. A deployed service
// is built, and runs as a process of its own. Requests to it go through a proxy, the front. It
// checks tokens and roles as Cloud Run does, and uses TLS if the command expects this. Terraform's
// files are read and evaluated, and the Cloud creates the resources that they declare.
//
// It does not simulate these: the delay until a change has an effect everywhere, quotas, prices,
// organisation policies, the Dockerfile, buildpacks, and mail. Its answers resemble the real ones
// as far as the documentation shows them.
package cloudstandin
