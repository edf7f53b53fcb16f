package export

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"cloud.google.com/go/datastore"
	"gocloud.dev/blob"
	"google.golang.org/api/iterator"

	"github.com/scattermap/scattermap/mapper"
)

// The kinds of entities that an export keeps until it has succeeded: for each part, and for each file.
const (
	partKind = "ScattermapPart"
	fileKind = "ScattermapFile"
)

// A part is what the records of a page were written to. Its key has the name of the page.
type part struct {
	Records int64 `datastore:",noindex"`
	Bytes   int64 `datastore:",noindex"`
}

// Names of counters of the job over the entities.
const (
	recordsCounter = "export/records"
	bytesCounter   = "export/bytes"
	partsCounter   = "export/parts"
)

// partsFolder returns where the parts of an export are. Folders have the first two digits of their names, so that parts can be listed
// in stretches.
func partsFolder(folder string) string { return folder + "/_parts/" }

func partPath(folder, name string) string { return partsFolder(folder) + name[:2] + "/" + name }

// entityName returns the name of an entity of a run. That is hashed, as it is longer than a key's name may be.
func entityName(run, name string) string {
	h := sha256.Sum256([]byte(run))
	return hex.EncodeToString(h[:12]) + "/" + name
}

// writePart writes the records of a page.
func (x *Export[P]) writePart(ctx context.Context, p *mapper.Page[any], folder string) error {
	text, err := x.coder.part(p.Records)
	if err != nil {
		return mapper.Permanent(fmt.Errorf("a part can't be written: %w", err))
	}
	path := partPath(folder, p.Name())
	p.OnLost(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		_ = x.bucket.Delete(ctx, path) // otherwise the last stage does
	})
	if err := x.bucket.WriteAll(ctx, path, text, &blob.WriterOptions{IfNotExist: true, DisableContentTypeDetection: true}); err != nil {
		return fmt.Errorf("write part %s: %w", path, err)
	}
	n := int64(len(p.Records))
	p.Put(datastore.NameKey(partKind, entityName(p.Run(), p.Name()), nil), &part{n, int64(len(text))})
	p.Count(recordsCounter, n)
	p.Count(bytesCounter, int64(len(text)))
	p.Count(partsCounter, 1)
	return nil
}

// eachPart calls f for the recorded parts of a run in a stretch, in the order of their names.
func eachPart(ctx context.Context, client *datastore.Client, run string, s stretch, f func(name string, p part) error) error {
	to := s.To
	if to == "" {
		to = lastName
	}
	q := datastore.NewQuery(partKind).Order("__key__").
		FilterField("__key__", ">=", datastore.NameKey(partKind, entityName(run, s.From), nil)).
		FilterField("__key__", "<", datastore.NameKey(partKind, entityName(run, to), nil))
	if s.From == "" {
		q = datastore.NewQuery(partKind).Order("__key__").
			FilterField("__key__", ">", datastore.NameKey(partKind, entityName(run, ""), nil)).
			FilterField("__key__", "<", datastore.NameKey(partKind, entityName(run, to), nil))
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for it := client.Run(ctx, q); ; {
		var p part
		key, err := it.Next(&p)
		if errors.Is(err, iterator.Done) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the parts: %w", err)
		}
		_, name, _ := strings.Cut(key.Name, "/")
		if err := f(name, p); err != nil {
			return err
		}
	}
}

// checkFolder returns an error for what can't be a folder.
func checkFolder(folder string) error {
	for _, element := range strings.Split(folder, "/") {
		if element == "" || element == "." || element == ".." || strings.HasPrefix(element, "_") {
			return fmt.Errorf("the folder %q is no path of names, without a slash at its ends and without a name that begins with a dot alone or '_'", folder)
		}
	}
	return nil
}

// checkEmpty returns an error if there is anything in a folder.
func (x *Export[P]) checkEmpty(ctx context.Context, folder string) error {
	it := x.bucket.List(&blob.ListOptions{Prefix: folder + "/"})
	found, err := it.Next(ctx)
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return fmt.Errorf("look into the folder %q: %w", folder, err)
	}
	return fmt.Errorf("%w: the folder %q is not empty, it has %q: choose another one, or delete what is in it", mapper.ErrArguments, folder, found.Key)
}
