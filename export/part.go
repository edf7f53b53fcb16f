package export

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"cloud.google.com/go/datastore"
	"gocloud.dev/blob"
	"google.golang.org/api/iterator"

	"github.com/scattermap/scattermap/internal/names"
	"github.com/scattermap/scattermap/mapper"
)

// Kinds of the entities that an export keeps until it has succeeded. There is one entity for each
// part, and one for each file.
const (
	partKind = "ScattermapPart"
	fileKind = "ScattermapFile"
)

// A part is the record of one part of an export, which is a blob with the records of a page. The
// key has the page's unique name.
type part struct {
	Records int64 `datastore:",noindex"`
	Bytes   int64 `datastore:",noindex"`
}

// OwnRecord implements [names.Record].
func (*part) OwnRecord(names.Own) {}

// Names of counters of the export's first job.
const (
	recordsCounter = "export/records"
	bytesCounter   = "export/bytes"
	partsCounter   = "export/parts"
)

// entityName returns the name of an entity of a run. It is a hash, because the plain name may
// exceed the limit of a key's name.
func entityName(run, name string) string {
	h := sha256.Sum256([]byte(run))
	return hex.EncodeToString(h[:12]) + "/" + name
}

// writePart writes the records of a page as a part. It is the page function of the first job.
//
// With AllowFailures, failures may be retried after the files are joined. A part that is written
// then would be in no file.
func (x *Export[P]) writePart(ctx context.Context, p *mapper.Page[any], s startParams[P]) error {
	if x.opts.AllowFailures {
		begun, err := hasBegun(ctx, mapper.EngineFromContext(ctx).Client(), s.Export+joinSuffix)
		if err != nil {
			return err
		}
		if begun {
			return mapper.Permanent(errors.New("the export has been written without this entity, as it " +
				"allows failures: start another one"))
		}
	}
	if err := x.opts.checkCoding(s.Coding); err != nil {
		return err
	}
	text, err := x.coder.part(p.Records)
	if err != nil {
		return mapper.Permanent(fmt.Errorf("a part can't be written: %w", err))
	}
	path := (place{s.Folder, s.Run, s.Layout == 0}).part(p.UniqueName())
	p.OnRollback(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		_ = x.bucket.Delete(ctx, path) // if that fails, the last stage deletes it
	})
	if err := x.bucket.WriteAll(ctx, path, text, &blob.WriterOptions{IfNotExist: true,
		DisableContentTypeDetection: true, BufferSize: max(partBuffer, len(text)+1)}); err != nil {
		return fmt.Errorf("write part %s: %w", path, err)
	}
	n := int64(len(p.Records))
	p.Put(datastore.NameKey(partKind, entityName(s.Run, p.UniqueName()), nil), &part{n, int64(len(text))})
	p.Count(recordsCounter, n)
	p.Count(bytesCounter, int64(len(text)))
	p.Count(partsCounter, 1)
	return nil
}

// partBuffer is the size of the buffer, in bytes, for writing a part that fits into it. S3 allows
// no smaller one. The default for Google Cloud Storage is 16 MiB.
const partBuffer = 5 << 20

// eachPart calls f for the recorded parts of a run whose names are in a stretch, in the order of
// names.
func eachPart(
	ctx context.Context, client *datastore.Client, run string, s stretch, f func(name string, p part) error,
) error {
	to := s.To
	if to == "" {
		to = lastName
	}
	q := datastore.NewQuery(partKind).Order("__key__").
		FilterField("__key__", ">=", datastore.NameKey(partKind, entityName(run, s.From), nil)).
		FilterField("__key__", "<", datastore.NameKey(partKind, entityName(run, to), nil))
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
