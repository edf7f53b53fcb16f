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

// join writes a file from its parts, and returns the file's record with its size and hash. If the
// file exists, an earlier attempt has written it, and join does not change it. All attempts join
// the same parts, which exist until every file is recorded, unless failures are retried at the same
// time. So the record says what the file really contains.
func (x *Export[P]) join(ctx context.Context, e *mapper.Entity[plannedFile], s stage) (plannedFile, error) {
	f := e.Value
	if err := x.opts.checkCoding(s.Coding); err != nil {
		return f, err
	}
	if f.Plan != s.Plan {
		return f, mapper.Permanent(fmt.Errorf("file %d of run %s was planned by another Export.Write than the one "+
			"that has begun: discard the run, and start another export", f.Index, s.Run))
	}
	writing, cancel := context.WithCancel(ctx)
	defer cancel() // if the context ends before Close, the bucket discards the write
	name := x.fileName(s, f)
	path := s.Folder + "/" + name
	w, err := x.bucket.NewWriter(writing, path, &blob.WriterOptions{IfNotExist: true,
		DisableContentTypeDetection: true})
	if err != nil {
		return f, fmt.Errorf("write a file: %w", err)
	}
	written := &counter{w: w, sum: sha256.New()}
	err = x.joinParts(ctx, mapper.EngineFromContext(ctx).Client(), written, &f, s)
	if err != nil {
		cancel()
		_ = w.Close() // Close fails, because the context of the write has ended
		return f, err
	}
	err = w.Close()
	if written.isThere || gcerrors.Code(err) == gcerrors.FailedPrecondition {
		joined := written
		written, err = x.readBack(ctx, path)
		if err == nil && !bytes.Equal(joined.sum.Sum(nil), written.sum.Sum(nil)) {
			err = s.otherFile(path)
		}
	}
	if err != nil {
		return f, fmt.Errorf("write a file: %w", err)
	}
	f.Written, f.Bytes, f.SHA256 = true, written.n, hex.EncodeToString(written.sum.Sum(nil))
	return f, nil
}

// otherFile returns an error about an existing file whose bytes differ from the bytes of its parts.
// It returns nil if the file is right despite that.
func (s stage) otherFile(path string) error {
	switch {
	case s.Layout == 0: // the folder may have files of other runs
		return mapper.Permanent(fmt.Errorf("there is another file %s already: an earlier run or an older build has "+
			"written it; delete it if nobody reads it, and retry this job, or start another export", path))
	// a retry may have recorded a part since the file was written, so nobody knows its number of
	// records
	case s.Failures > 0:
		return mapper.Permanent(fmt.Errorf("an attempt before has written %s of other parts, as failures were "+
			"retried meanwhile: discard the run, and start another export", path))
	}
	return nil
}

// readBack reads a file that exists, to count and hash its bytes.
func (x *Export[P]) readBack(ctx context.Context, path string) (*counter, error) {
	r, err := x.bucket.NewReader(ctx, path, nil)
	if err != nil {
		return nil, err
	}
	c := &counter{w: io.Discard, sum: sha256.New()}
	_, err = io.Copy(c, r)
	return c, errors.Join(err, r.Close())
}

// joinParts writes the parts of a file to w, one after the other. Meanwhile it reads the next
// parts.
func (x *Export[P]) joinParts(
	ctx context.Context, client *datastore.Client, w io.Writer, f *plannedFile, s stage,
) error {
	ctx, cancel := context.WithCancel(ctx)
	r := newReadAhead(ctx, x.bucket)
	listed := make(chan error, 1)
	go func() {
		defer close(r.reads)
		listed <- eachPart(ctx, client, s.Run, stretch{From: f.From, To: f.To}, func(name string, p part) error {
			f.Records += p.Records
			f.Parts++
			return r.read(s.place().part(name), p.Bytes)
		})
	}()
	defer r.wait() // after this call, no goroutine writes to f
	defer cancel()
	return x.coder.join(w, x.file(s, f.Index), func() (io.ReadCloser, error) {
		part, err := r.next()
		if errors.Is(err, io.EOF) {
			err = cmp.Or(<-listed, io.EOF)
		}
		return part, err
	})
}

// A counter counts and hashes the bytes that are written to it. If w fails because its file exists
// already, the counter continues without w. Cloud Storage finds this out after 16 MiB.
type counter struct {
	w       io.Writer
	isThere bool // whether the file exists already
	n       int64
	sum     hash.Hash
}

func (c *counter) Write(p []byte) (n int, err error) {
	if n = len(p); !c.isThere {
		n, err = c.w.Write(p)
		if c.isThere = gcerrors.Code(err) == gcerrors.FailedPrecondition; c.isThere {
			n, err = len(p), nil
		}
	}
	c.n += int64(n)
	c.sum.Write(p[:n])
	return n, err
}

// putJoined stores the records of the files that a page of the second stage has written.
func putJoined(_ context.Context, p *mapper.Page[plannedFile], s stage) error {
	for _, f := range p.Records {
		p.Put(fileKey(s.Run, f.Index), &f)
	}
	return nil
}
