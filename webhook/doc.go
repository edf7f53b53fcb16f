// Package webhook tells operators when jobs change their state: it posts each change to a URL, for
// example to an incoming webhook of Slack or Google Chat. Pass [Sender.Send] to the engine:
//
//	hook, err := webhook.New(os.Getenv("WEBHOOK_URL"), os.Getenv("WEBHOOK_SECRET"), nil)
//	...
//	engine, err := mapper.NewEngine(client, queue, &mapper.EngineOptions{OnStateChange: hook.Send, ...})
//	...
//	err = hook.Wait(ctx) // at the end of the process, after Engine.Drain
//
// The body of a request is the JSON of a [Message]. Chat services show its field "text", one plain
// line without links or mentions. Google Chat refuses other fields, so it gets only this one. A
// message has no key, content or error text of an entity.
//
// # Signature
//
// With a secret, requests are signed as the Standard Webhooks specification says, for which there
// are libraries in many languages (https://www.standardwebhooks.com). Receivers in Go use [Verify].
//
//	Webhook-Id         a random ID, the same in all attempts to send a message
//	Webhook-Timestamp  when the attempt started, in seconds since 1970
//	Webhook-Signature  "v1," and the HMAC-SHA256 of ID.TIMESTAMP.BODY in base64
//
// # Delivery
//
// A message is sent up to four times within 30 s: again after a failed connection, no answer within
// 5 s, and the answers 429 and 5xx. A Retry-After is obeyed if it fits into the 30 s. Redirects are
// not followed. If a message can't be sent, the log has a warning, and the job continues.
//
// [Sender.Send] returns when the message is sent, and after 2 s at the latest. The attempts then
// continue in the background. So a slow receiver hardly delays [mapper.Job.Pause] and other
// methods, and on Cloud Run, which may stop the CPU between requests, messages are usually sent
// before the request ends.
//
// A message may be lost, sent twice, or arrive after a later one: Webhook-Id and the field "time"
// help. If you must not miss a change, see [mapper.EngineOptions].
//
// The URL and the secret are never logged, printed or part of an error.
package webhook
