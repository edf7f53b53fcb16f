// Package auth says who has sent a request: for the handlers of jobs and of dashboards, and for
// those of queues.
//
// A [Func] returns who has sent a request, or an error for one that is not allowed. The jobs API
// and the dashboard each take one, and allow nobody anything without it. [Verifier.Authenticate] is
// one: it takes the accounts that prove themselves by a token that Google has signed. [NewOIDC] is
// for the tokens of service accounts, and [NewIAP] for people whom Identity-Aware Proxy lets
// through. [Claimed] is for a service of Cloud Run that verifies them itself, [Loopback] for what
// runs on one machine, and [Anybody] for emulators. A deployer's own function is one as well.
package auth
