package webhook

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/scattermap/scattermap/internal/operator"
	"github.com/scattermap/scattermap/mapper"
)

// Options are the settings of a [Sender]. The zero value has all defaults.
type Options struct {
	// Filter reports whether a change is sent. [Stopped] is such a function. Defaults to all
	// changes.
	Filter func(mapper.StateChange) bool

	// Logger receives a warning for each message that could not be sent. Defaults to
	// slog.Default().
	Logger *slog.Logger

	// Transport sends the requests, for example through a proxy or with other certificates. Defaults
	// to http.DefaultTransport.
	Transport http.RoundTripper
}

// Stopped reports whether a job has ended, has failed, or was paused, by a caller or by one of its
// limits. Use it as [Options].Filter, to send no starts, resumes and retries.
func Stopped(c mapper.StateChange) bool { return c.To != mapper.StateRunning }

// Limits of sending messages.
const (
	maxWaiting  = 100              // messages that are not sent yet
	maxParallel = 4                // requests at once
	patience    = 2 * time.Second  // how long Send waits
	totalTime   = 30 * time.Second // for all attempts of a message
)

// A Sender posts changes of jobs to a URL. It is safe for concurrent use.
type Sender struct {
	filter   func(mapper.StateChange) bool
	log      *slog.Logger
	post     post
	parallel chan struct{} // has an element for each request

	mu      sync.Mutex
	waiting int           // messages that are not sent yet
	late    int           // those for which Send no longer waits
	idle    chan struct{} // closed when no message is waiting
}

// New returns a sender that posts to a URL. The URL must start with https://, or with http:// for
// this machine (localhost). The secret signs the messages. It is 24 to 64 random bytes in base64, as
// "openssl rand -base64 32" prints them, and may start with "whsec_". If it is empty, messages are
// not signed: chat services do not verify signatures. White space around both is ignored, but a
// secret of only white space is an error. A nil o has all defaults.
func New(address, secret string, o *Options) (*Sender, error) {
	to, err := parseURL(strings.TrimSpace(address))
	if err != nil {
		return nil, err
	}
	var key []byte
	if secret != "" {
		if key, err = keyOf(secret); err != nil {
			return nil, err
		}
	}
	var opts Options
	if o != nil {
		opts = *o
	}
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	return &Sender{filter: opts.Filter, log: opts.Logger, post: newPost(to, key, opts.Transport),
		parallel: make(chan struct{}, maxParallel)}, nil
}

// parseURL parses the URL of a receiver. No error contains the URL, which may have a token.
func parseURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case text == "":
		return nil, errors.New("webhook: the URL is empty")
	case err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "":
		return nil, errors.New("webhook: the URL has to be like https://HOST/PATH")
	case u.User != nil || u.Fragment != "":
		return nil, errors.New("webhook: the URL has a user or a fragment: leave them out")
	case u.Scheme == "http" && !loopback(u.Hostname()):
		return nil, errors.New("webhook: the URL has to start with https://: http:// is only for this machine")
	}
	return u, nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Send sends a change, if [Options].Filter allows it. It is the function for
// [mapper.EngineOptions].OnStateChange. It returns when the message is sent, and after 2 s at the
// latest. It does not wait at all while an earlier message takes longer than that. Up to 100
// messages wait to be sent; further ones are dropped, and logged. The context's end has no effect.
func (s *Sender) Send(ctx context.Context, c mapper.StateChange) {
	if s.filter != nil && !s.filter(c) {
		return
	}
	if !s.enter() {
		s.drop(ctx, c, 0, fmt.Sprintf("%d messages are waiting", maxWaiting))
		return
	}
	sent := make(chan struct{})
	late := false // guarded by s.mu
	go func() {
		defer func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.leave(late)
			close(sent)
		}()
		s.deliver(context.WithoutCancel(ctx), c)
	}()
	s.mu.Lock()
	wait := patience
	if s.late > 0 {
		wait = 0
	}
	s.mu.Unlock()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-sent:
		return
	case <-timer.C:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-sent:
	default:
		late = true
		s.late++
	}
}

// enter counts a message that waits to be sent. It reports false if there are too many.
func (s *Sender) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting == maxWaiting {
		return false
	}
	if s.waiting++; s.idle == nil {
		s.idle = make(chan struct{})
	}
	return true
}

// leave does the reverse of enter. The caller holds s.mu.
func (s *Sender) leave(late bool) {
	if late {
		s.late--
	}
	if s.waiting--; s.waiting == 0 {
		close(s.idle)
		s.idle = nil
	}
}

// Wait waits until all messages are sent or given up. Call it at the end of the process, after
// [mapper.Engine.Drain]. If the context ends first, the error says how many messages were waiting.
func (s *Sender) Wait(ctx context.Context) error {
	for {
		s.mu.Lock()
		waiting, idle := s.waiting, s.idle
		s.mu.Unlock()
		if waiting == 0 {
			return nil
		}
		select {
		case <-idle:
		case <-ctx.Done():
			return fmt.Errorf("webhook: %s not sent: %w", operator.Counted(int64(waiting), "message", "messages"),
				ctx.Err())
		}
	}
}

// deliver makes attempts to send a change until one succeeds, or another one would be of no use.
func (s *Sender) deliver(ctx context.Context, c mapper.StateChange) {
	limited, cancel := context.WithTimeout(ctx, totalTime)
	defer cancel()
	select {
	case s.parallel <- struct{}{}:
		defer func() { <-s.parallel }()
	case <-limited.Done():
		s.drop(ctx, c, 0, "earlier messages took too long")
		return
	}
	attempts := 0
	defer func() {
		if recover() != nil { // the panic's text may contain the URL
			s.drop(ctx, c, attempts, "Options.Transport has panicked")
		}
	}()
	id, m := newID(), newMessage(c)
	for {
		attempts++
		err := s.post(limited, id, m)
		if err == nil {
			return
		}
		wait, again := err.retry(attempts)
		if again {
			again = pause(limited, wait)
		}
		if !again {
			s.drop(ctx, c, attempts, err.text)
			return
		}
	}
}

// pause sleeps. It returns false at once if the context will end before.
func pause(ctx context.Context, d time.Duration) bool {
	if end, ok := ctx.Deadline(); ok && time.Until(end) <= d {
		return false
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// drop logs that a change was not sent.
func (s *Sender) drop(ctx context.Context, c mapper.StateChange, attempts int, problem string) {
	s.log.LogAttrs(ctx, slog.LevelWarn, "a webhook was not told of a change", slog.String("job", c.ID),
		slog.String("mapper", c.Mapper), slog.String("to", string(c.To)), slog.Int("attempts", attempts),
		slog.String("problem", problem))
}
