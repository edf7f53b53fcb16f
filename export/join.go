package export

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"

	"cloud.google.com/go/datastore"
	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"

	"github.com/scattermap/scattermap/mapper"
)

// join writes a file of its parts, unless it is there: then it is what an attempt before this one
// has written, and stays. All attempts have the same parts, which are there until each file is
// recorded, unless failures are retried meanwhile. What is recorded is what the file has.
func (x *Export[P]) join(ctx context.Context, e *mapper.Entity[plannedFile], s stage) (plannedFile, error) {
	f := e.Value
	if err := x.opts.checkCoding(s.Coding); err != nil {
		return f, err
	}
	if f.Plan != s.Plan {
		return f, mapper.Permanent(fmt.Errorf("file %d of run %s was planned by another Export.Write than the one "+
			"that has begun: discard the run, and start another export", f.Index, s.Run))
	}
	f.Records, f.Parts, f.Bytes = 0, 0, 0
	writing, cancel := context.WithCancel(ctx)
	defer cancel() // before Close it drops what was written
	name := x.fileName(s, f)
	path := s.Folder + "/" + name
	// In the folder of an older build's run may be the file of another one, which it writes over,
	// as that build did.
	w, err := x.bucket.NewWriter(writing, path, &blob.WriterOptions{IfNotExist: s.Layout != 0,
		DisableContentTypeDetection: true})
	if err != nil {
		return f, fmt.Errorf("write a file: %w", err)
	}
	written := &counter{w: w, sum: sha256.New()}
	err = x.joinParts(ctx, mapper.EngineFromContext(ctx).Client(), written, &f, s)
	if err != nil {
		cancel()
		_ = w.Close() // which fails, as its context has ended
		return f, err
	}
	err = w.Close()
	if gcerrors.Code(err) == gcerrors.FailedPrecondition {
		joined := written
		written, err = x.readBack(ctx, path)
		// A failure that was retried in between may have recorded a part, so how many records the
		// file has is not known.
		if err == nil && s.Failures > 0 && !bytes.Equal(joined.sum.Sum(nil), written.sum.Sum(nil)) {
			err = mapper.Permanent(fmt.Errorf("an attempt before has written %s of other parts, as failures were "+
				"retried meanwhile: discard the run, and start another export", path))
		}
	}
	if err != nil {
		return f, fmt.Errorf("write a file: %w", err)
	}
	if s.Layout != 0 {
		f.Name = name
	}
	f.Written, f.Bytes, f.SHA256 = true, written.n, hex.EncodeToString(written.sum.Sum(nil))
	return f, nil
}

// readBack counts and sums what a file has.
func (x *Export[P]) readBack(ctx context.Context, path string) (*counter, error) {
	r, err := x.bucket.NewReader(ctx, path, nil)
	if err != nil {
		return nil, err
	}
	c := &counter{w: io.Discard, sum: sha256.New()}
	_, err = io.Copy(c, r)
	return c, errors.Join(err, r.Close())
}

// joinParts writes the parts of a file, one behind the other.
func (x *Export[P]) joinParts(
	ctx context.Context, client *datastore.Client, w io.Writer, f *plannedFile, s stage,
) error {
	parts, errs := make(chan string, 16), make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer close(parts)
		errs <- eachPart(ctx, client, s.Run, stretch{From: f.From, To: f.To}, func(name string, p part) error {
			select {
			case parts <- name:
				f.Records += p.Records
				f.Parts++
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	next := func() (io.ReadCloser, error) {
		name, ok := <-parts
		if !ok {
			return nil, cmp.Or(<-errs, io.EOF)
		}
		return x.bucket.NewReader(ctx, s.place().part(name), nil)
	}
	err := x.coder.join(w, x.file(s, f.Index), next)
	cancel()
	for range parts { // so that nobody changes f any more
	}
	return err
}

// A counter counts and sums what is written.
type counter struct {
	w   io.Writer
	n   int64
	sum hash.Hash
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	c.sum.Write(p[:n])
	return n, err
}

// putJoined records files that were written.
func putJoined(_ context.Context, p *mapper.Page[plannedFile], s stage) error {
	for _, f := range p.Records {
		p.Put(fileKey(s.Run, f.Index), &f)
	}
	return nil
}
