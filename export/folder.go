package export

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"

	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"

	"github.com/scattermap/scattermap/mapper"
)

// A place is the folder to which one run of an export writes. No other run writes to it, even if it
// has the same ID. So late writes and deletions of one run do not affect another.
type place struct {
	folder string // the export's folder
	run    string
	direct bool // whether an older build has started the run, with its files directly in the export's folder
}

// runPrefix is the prefix of the names of runs' folders.
const runPrefix = "run-"

var runFolder = regexp.MustCompile("^" + runPrefix + "[0-9a-z]{20,32}$")

// newRun returns a random name for a run.
func newRun() string {
	digits := strconv.FormatUint(rand.Uint64(), 36) + strconv.FormatUint(rand.Uint64(), 36)
	return strings.Repeat("0", 26-len(digits)) + digits
}

// name returns the name of a blob of the run relative to the export's folder, as the manifest has
// it. The argument is the name relative to the run's folder.
func (p place) name(of string) string {
	if p.direct {
		return of
	}
	return runPrefix + p.run + "/" + of
}

func (p place) path(of string) string { return p.folder + "/" + p.name(of) }

// parts returns the folder of the run's parts. A part is in a subfolder that is named by the first
// two digits of the part's name. So several tasks can share the work of listing them.
func (p place) parts() string { return p.path("_parts/") }

func (p place) part(name string) string { return p.parts() + name[:2] + "/" + name }

// outcome returns the name of a run's manifest. The creation of this blob decides whether the run
// has succeeded or was discarded.
func (p place) outcome() string { return p.folder + "/" + runPrefix + p.run + "/" + ManifestName }

// A claim is a blob which says that an export owns a folder. Only older builds write claims,
// because their files are directly in the export's folder.
type claim struct {
	Export string `json:"export"` // the ID of the export
	Run    string `json:"run"`
}

// readClaim reads the claim of a folder. If there is none, it returns a zero claim and no error.
func readClaim(ctx context.Context, bucket *blob.Bucket, folder string) (c claim, err error) {
	text, err := bucket.ReadAll(ctx, folder+"/"+StartedName)
	if gcerrors.Code(err) == gcerrors.NotFound {
		return claim{}, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	if err != nil {
		return claim{}, fmt.Errorf("read whose the folder %q is: %w", folder, err)
	}
	return c, nil
}

// dropClaim deletes the claim on the folder if it is the given run's.
func dropClaim(ctx context.Context, bucket *blob.Bucket, p place) error {
	c, err := readClaim(ctx, bucket, p.folder)
	if c.Run != p.run {
		return err
	}
	return remove(ctx, bucket, p.folder+"/"+StartedName)
}

// remove deletes a blob if it exists.
func remove(ctx context.Context, bucket *blob.Bucket, key string) error {
	if err := bucket.Delete(ctx, key); err != nil && gcerrors.Code(err) != gcerrors.NotFound {
		return fmt.Errorf("delete %s: %w", key, err)
	}
	return nil
}

// checkOld returns an error if an unfinished export of an older build owns the folder, or a folder
// above it. The end of such an export may delete everything else there.
func (r *Run) checkOld(ctx context.Context, folder string) error {
	for i := range len(folder) + 1 {
		if i < len(folder) && folder[i] != '/' {
			continue
		}
		above := folder[:i]
		c, err := readClaim(ctx, r.bucket, above)
		if err != nil {
			return err
		}
		if c == (claim{}) {
			continue
		}
		other := &Run{ID: c.Export, engine: r.engine, bucket: r.bucket}
		switch err := other.load(ctx, ""); {
		case other.place == place{above, c.Run, true}:
			return fmt.Errorf("%w: an older build has begun export %q in the folder %q, and its end may delete what "+
				"else is there: wait for its end, discard it, or choose another folder",
				mapper.ErrInvalidArgument, c.Export, above)
		case err != nil && !errors.Is(err, mapper.ErrNoSuchJob):
			return err
		}
		// Either a refused start has left the claim, or the export belongs to another database.
		switch _, err := r.bucket.List(&blob.ListOptions{Prefix: above + "/_parts/"}).Next(ctx); {
		case err == nil:
			return fmt.Errorf("%w: in the folder %q are parts of export %q of an older build, and there is no such "+
				"job in this database: if it does not go on elsewhere, delete %s there, or choose another folder",
				mapper.ErrInvalidArgument, above, c.Export, StartedName)
		case !errors.Is(err, io.EOF):
			return fmt.Errorf("look into the folder %q: %w", above, err)
		}
	}
	return nil
}

// checkFolder returns an error if a path can't be an export's folder.
func checkFolder(folder string) error {
	for element := range strings.SplitSeq(folder, "/") {
		if runFolder.MatchString(element) {
			return fmt.Errorf("the folder %q is inside %q, the folder of a run: its export deletes what it "+
				"does not know there", folder, element)
		}
	}
	return checkPath("the folder", folder)
}

// checkPath returns an error unless a path consists of names separated by slashes. Errors call the
// path by the text in what.
func checkPath(what, path string) error {
	for element := range strings.SplitSeq(path, "/") {
		if element == "" || element == "." || element == ".." || strings.HasPrefix(element, "_") ||
			!printable(element) {
			return fmt.Errorf("%s %q is no path of names, without a slash at its ends, and without a name that is "+
				"dots alone, begins with '_' or has control characters", what, path)
		}
	}
	return nil
}

// printable reports whether a name is valid UTF-8 without control characters.
func printable(name string) bool {
	return strings.IndexFunc(strings.ToValidUTF8(name, "\x00"), func(r rune) bool { return r < ' ' || r == 0x7f }) < 0
}
