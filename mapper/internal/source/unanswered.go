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

// Patience is how long a start waits for the database. The client would try each call again for a minute,
// and then say no more than that it took too long.
const Patience = 20 * time.Second

// Unanswered names, in the error of a call that has no answer, the database that was asked.
func Unanswered(err error) error {
	if code := status.Code(err); code != codes.Unavailable && code != codes.DeadlineExceeded && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	at := "Datastore itself, as $DATASTORE_EMULATOR_HOST is not set"
	if host := os.Getenv("DATASTORE_EMULATOR_HOST"); host != "" {
		at = fmt.Sprintf("%s, which $DATASTORE_EMULATOR_HOST names", host)
	}
	return fmt.Errorf("the database does not answer (it is %s, unless the client was made for another address): %w", at, err)
}
