package export

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"

	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"

	"github.com/scattermap/scattermap/mapper"
)

// A claim says whose a folder is. It is there from an export's start to its end, as [StartedName].
type claim struct {
	Export string `json:"export"` // the ID
	Run    string `json:"run"`    // what tells it from others of that ID
}

// claimed reads the claim of a folder, and returns nil if there is none.
func claimed(ctx context.Context, bucket *blob.Bucket, folder string) (*claim, error) {
	text, err := bucket.ReadAll(ctx, folder+"/"+StartedName)
	if gcerrors.Code(err) == gcerrors.NotFound {
		return nil, nil
	}
	c := new(claim)
	if err == nil {
		err = json.Unmarshal(text, c)
	}
	if err != nil {
		return nil, fmt.Errorf("read whose the folder %q is: %w", folder, err)
	}
	return c, nil
}

// claimFolder has a folder be an export's alone, with all below it: what is there and not in the manifest is deleted in the end. It
// returns the run, which is that of an earlier start of the same ID if that has got no further than here.
//
// Each start first makes its claim, and then looks above and below for others'. So of two that are in each other's way at least one sees the
// other, and perhaps both.
func claimFolder(ctx context.Context, bucket *blob.Bucket, folder, id string) (run string, err error) {
	c := &claim{id, strconv.FormatUint(rand.Uint64(), 36) + strconv.FormatUint(rand.Uint64(), 36)}
	text, err := json.Marshal(c)
	if err != nil {
		return "", err
	}
	err = bucket.WriteAll(ctx, folder+"/"+StartedName, text, &blob.WriterOptions{IfNotExist: true, ContentType: "application/json"})
	switch {
	case gcerrors.Code(err) == gcerrors.FailedPrecondition:
		if c, err = claimed(ctx, bucket, folder); err != nil {
			return "", err
		}
		if c == nil {
			return "", fmt.Errorf("another export has just had the folder %q: try again", folder)
		}
		if c.Export != id {
			return "", fmt.Errorf("%w: the folder %q is that of export %q, which has not succeeded: choose another one, or discard that export (Run.Discard)", mapper.ErrArguments, folder, c.Export)
		}
	case err != nil:
		return "", fmt.Errorf("claim the folder %q: %w", folder, err)
	default:
		defer func() {
			if err != nil {
				err = errors.Join(err, dropClaim(context.WithoutCancel(ctx), bucket, folder, c.Run))
			}
		}()
	}
	if err := checkAbove(ctx, bucket, folder); err != nil {
		return "", err
	}
	return c.Run, checkBelow(ctx, bucket, folder)
}

// dropClaim gives up a folder that is a run's.
func dropClaim(ctx context.Context, bucket *blob.Bucket, folder, run string) error {
	c, err := claimed(ctx, bucket, folder)
	if err != nil || c == nil || c.Run != run {
		return err
	}
	if err := bucket.Delete(ctx, folder+"/"+StartedName); err != nil && gcerrors.Code(err) != gcerrors.NotFound {
		return fmt.Errorf("give up the folder %q: %w", folder, err)
	}
	return nil
}

// checkAbove returns an error if a folder is in that of another export.
func checkAbove(ctx context.Context, bucket *blob.Bucket, folder string) error {
	for i, r := range folder {
		if r != '/' {
			continue
		}
		for _, name := range []string{StartedName, ManifestName} {
			there, err := bucket.Exists(ctx, folder[:i]+"/"+name)
			if err != nil {
				return fmt.Errorf("look for an export above the folder %q: %w", folder, err)
			}
			if there {
				return fmt.Errorf("%w: the folder %q is in that of another export, %q", mapper.ErrArguments, folder, folder[:i])
			}
		}
	}
	return nil
}

// checkBelow returns an error if there is anything in a folder but a claim.
func checkBelow(ctx context.Context, bucket *blob.Bucket, folder string) error {
	for it := bucket.List(&blob.ListOptions{Prefix: folder + "/"}); ; {
		found, err := it.Next(ctx)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("look into the folder %q: %w", folder, err)
		case found.Key != folder+"/"+StartedName:
			return fmt.Errorf("%w: the folder %q is not empty, it has %q: choose another one, or delete what is in it", mapper.ErrArguments, folder, found.Key)
		}
	}
}

// checkFolder returns an error for what can't be a folder.
func checkFolder(folder string) error {
	for element := range strings.SplitSeq(folder, "/") {
		if element == "" || element == "." || element == ".." || strings.HasPrefix(element, "_") || !printable(element) {
			return fmt.Errorf("the folder %q is no path of names, without a slash at its ends, and without a name that is dots alone, begins with '_' or has control characters", folder)
		}
	}
	return nil
}

// printable reports whether a name is UTF-8 without control characters.
func printable(name string) bool {
	return strings.IndexFunc(strings.ToValidUTF8(name, "\x00"), func(r rune) bool { return r < ' ' || r == 0x7f }) < 0
}
