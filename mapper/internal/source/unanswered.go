package source

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Patience is how long somebody who asks for an answer waits for the database. The client would try
// each call again for a minute, and then say no more than that it took too long.
const Patience = 20 * time.Second

// Answered asks the database what somebody waits for. The error of one that does not answer within
// 20 seconds names it.
func Answered(ctx context.Context, ask func(context.Context) error) error {
	asking, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	return Unanswered(ctx, ask(asking))
}

// Unanswered names, in the error of a call that has no answer, the database that was asked, unless
// who has asked did not wait.
func Unanswered(ctx context.Context, err error) error {
	code := status.Code(err)
	if ctx.Err() != nil || code != codes.Unavailable && code != codes.DeadlineExceeded &&
		!errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	at := "Datastore itself, as $DATASTORE_EMULATOR_HOST is not set"
	if host := os.Getenv("DATASTORE_EMULATOR_HOST"); host != "" {
		at = fmt.Sprintf("%s, which $DATASTORE_EMULATOR_HOST names", host)
	}
	return fmt.Errorf("the database does not answer (it is %s, unless the client was made for another address): %w", at,
		err)
}
