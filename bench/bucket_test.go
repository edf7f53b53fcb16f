package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/blob/driver"
	"gocloud.dev/gcerrors"
)

// The times of a bucket's calls are assumptions, in the order of what a bucket in the same region
// takes. A listing has up to 1,000 names.
const (
	perBlobRead   = 30 * time.Millisecond
	perBlobWrite  = 60 * time.Millisecond
	perBlobDelete = 30 * time.Millisecond
	perList       = 40 * time.Millisecond
	blobRate      = 100 << 20 // bytes a second of one reader or writer
	listed        = 1000
)

var (
	errNoBlob  = errors.New("there is no such blob")
	errHasBlob = errors.New("there is such a blob")
)

// A slowBucket is a bucket in memory whose calls take time.
type slowBucket struct {
	mu      sync.Mutex
	blobs   map[string][]byte
	written map[string]time.Time
	calls   map[string]int
}

func newSlowBucket() *slowBucket {
	return &slowBucket{blobs: make(map[string][]byte), written: make(map[string]time.Time), calls: make(map[string]int)}
}

func (s *slowBucket) open() *blob.Bucket { return blob.NewBucket(s) }

// call waits for a call's time, and then carries it out alone.
func (s *slowBucket) call(ctx context.Context, what string, took time.Duration, f func() error) error {
	time.Sleep(took)
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[what]++
	return f()
}

// wroteLast returns when the last blob with a suffix was written.
func (s *slowBucket) wroteLast(suffix string) (last time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, at := range s.written {
		if strings.HasSuffix(name, suffix) && at.After(last) {
			last = at
		}
	}
	return last
}

func (s *slowBucket) ErrorCode(err error) gcerrors.ErrorCode {
	switch {
	case errors.Is(err, errNoBlob):
		return gcerrors.NotFound
	case errors.Is(err, errHasBlob):
		return gcerrors.FailedPrecondition
	case errors.Is(err, context.Canceled):
		return gcerrors.Canceled
	}
	return gcerrors.Unknown
}

func (s *slowBucket) As(any) bool             { return false }
func (s *slowBucket) ErrorAs(error, any) bool { return false }
func (s *slowBucket) Close() error            { return nil }

func (s *slowBucket) Attributes(ctx context.Context, key string) (*driver.Attributes, error) {
	var a driver.Attributes
	return &a, s.call(ctx, "attributes", perBlobRead, func() error {
		text, there := s.blobs[key]
		if !there {
			return errNoBlob
		}
		a.Size = int64(len(text))
		return nil
	})
}

func (s *slowBucket) ListPaged(ctx context.Context, o *driver.ListOptions) (*driver.ListPage, error) {
	page := new(driver.ListPage)
	return page, s.call(ctx, "list", perList, func() error {
		names := slices.Sorted(maps.Keys(s.blobs))
		from := max(o.Prefix, string(o.PageToken))
		for _, name := range names[sort.SearchStrings(names, from):] {
			if !strings.HasPrefix(name, o.Prefix) {
				break
			}
			if len(page.Objects) == listed {
				page.NextPageToken = []byte(name)
				break
			}
			page.Objects = append(page.Objects, &driver.ListObject{Key: name, Size: int64(len(s.blobs[name]))})
		}
		return nil
	})
}

type slowReader struct {
	io.Reader
	size int64
}

func (r *slowReader) Close() error { return nil }
func (r *slowReader) As(any) bool  { return false }
func (r *slowReader) Attributes() *driver.ReaderAttributes {
	return &driver.ReaderAttributes{Size: r.size}
}

func (s *slowBucket) NewRangeReader(
	ctx context.Context, key string, offset, _ int64, _ *driver.ReaderOptions,
) (driver.Reader, error) {
	r := new(slowReader)
	err := s.call(ctx, "read", perBlobRead, func() error {
		text, there := s.blobs[key]
		if !there {
			return errNoBlob
		}
		r.size, r.Reader = int64(len(text)), bytes.NewReader(text[offset:])
		return nil
	})
	time.Sleep(transfer(int(r.size)))
	return r, err
}

// transfer returns how long a number of bytes takes.
func transfer(n int) time.Duration { return time.Duration(n) * time.Second / blobRate }

type slowWriter struct {
	bytes.Buffer
	close func(text []byte) error
}

func (w *slowWriter) Write(p []byte) (int, error) {
	time.Sleep(transfer(len(p)))
	return w.Buffer.Write(p)
}

func (w *slowWriter) Close() error { return w.close(w.Bytes()) }

func (s *slowBucket) NewTypedWriter(
	ctx context.Context, key, _ string, o *driver.WriterOptions,
) (driver.Writer, error) {
	return &slowWriter{close: func(text []byte) error {
		return s.call(ctx, "write", perBlobWrite, func() error {
			if _, there := s.blobs[key]; there && o.IfNotExist {
				return errHasBlob
			}
			s.blobs[key], s.written[key] = text, time.Now()
			return nil
		})
	}}, nil
}

func (s *slowBucket) Copy(context.Context, string, string, *driver.CopyOptions) error {
	return fmt.Errorf("copy: %w", errors.ErrUnsupported)
}

func (s *slowBucket) Delete(ctx context.Context, key string, _ *driver.DeleteOptions) error {
	return s.call(ctx, "delete", perBlobDelete, func() error {
		if _, there := s.blobs[key]; !there {
			return errNoBlob
		}
		delete(s.blobs, key)
		return nil
	})
}

func (s *slowBucket) SignedURL(context.Context, string, *driver.SignedURLOptions) (string, error) {
	return "", fmt.Errorf("sign: %w", errors.ErrUnsupported)
}
