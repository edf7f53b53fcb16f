// Package auth identifies who sent a request, for the handlers of jobs, dashboards and queues.
//
// A [Func] returns the sender of a request, or an error if the request is not allowed. The jobs API
// and the dashboard each take a Func, and refuse all requests without one. Choose one, or write
// your own:
//
//   - [Verifier.Authenticate] of [NewOIDC] accepts tokens of service accounts, signed by Google.
//   - [Verifier.Authenticate] of [NewIAP] accepts people whom Identity-Aware Proxy lets through.
//   - [Claimed] is for a Cloud Run service that requires authentication, so that Cloud Run verifies
//     the tokens.
//   - [Loopback] is for a program that serves only its own machine.
//   - [Anybody] is for emulators.
package auth
