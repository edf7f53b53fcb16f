// Package cloudstandin plays Google's cloud to the commands of the documentation, so that a test
// can run them: gcloud, Terraform, curl, git and the parts of the go command that need a network.
//
// Start returns a Cloud: an empty project, and programs with these names. The programs do nothing
// but hand their arguments to the Cloud, which keeps a small model of the project: APIs, databases,
// accounts, roles, queues, images, services, schedules, alarms. It refuses what a real project
// would refuse: what was not enabled, created or granted before, a flag that gcloud does not have,
// a location that is not named.
//
// What runs is real where that is possible. The Datastore and Cloud Tasks are those of package
// emulator; each of their calls is checked against the roles of the service's account. A service
// that is deployed is built and started as a process of its own. Requests to it pass a front that
// checks tokens and roles as Cloud Run does, over TLS for commands that expect that. Terraform's
// files are read and evaluated: what they declare is what is made.
//
// What it does not play: delays until a change is seen everywhere, quotas, prices, organisation
// policies, the Dockerfile, buildpacks, mail. Its answers resemble the real ones as far as the
// documentation shows them.
package cloudstandin
