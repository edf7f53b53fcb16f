package export_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/blob/driver"
	"gocloud.dev/gcerrors"
)

// A store is a bucket in memory. A test sees each call, and decides when it takes effect and what
// it returns.
type store struct {
	// hook, if set, carries out a call. It runs the call's effect at any time, or never, and
	// returns the result for the caller.
	hook func(*call) error
	// lag returns how old a listing's view of a name is.
	lag func(key string) time.Duration

	mu    sync.Mutex
	blobs map[string][]version // by name, the oldest first
}

// A version is the content of a name from a time on.
type version struct {
	at   time.Time
	text []byte // nil: deleted
}

// A call is a call of a bucket.
type call struct {
	context.Context
	op     string // read, open, write, delete or list; open comes before the write's text is known
	key    string // for a list, the prefix
	text   []byte // of a write
	effect func() error
}

var (
	errNotThere = errors.New("there is no such blob")
	errIsThere  = errors.New("there is such a blob")
	errLost     = errors.New("the connection was lost")
)

func newStore() *store { return &store{blobs: make(map[string][]version)} }

func (s *store) open() *blob.Bucket { return blob.NewBucket(s) }

func (s *store) do(ctx context.Context, op, key string, text []byte, effect func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.hook == nil {
		return effect()
	}
	return s.hook(&call{ctx, op, key, text, effect})
}

// at returns the content of a name at a time.
func (s *store) at(key string, t time.Time) []byte {
	var text []byte
	for _, v := range s.blobs[key] {
		if !v.at.After(t) {
			text = v.text
		}
	}
	return text
}

// now returns all current blobs.
func (s *store) now() map[string][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[string][]byte)
	for key := range s.blobs {
		if text := s.at(key, time.Now()); text != nil {
			all[key] = text
		}
	}
	return all
}

// names returns the names of all current blobs, in order.
func (s *store) names() []string { return slices.Sorted(maps.Keys(s.now())) }

func (s *store) put(key string, text []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blobs[key] = append(s.blobs[key], version{time.Now(), text})
}

func (s *store) get(key string) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at(key, time.Now())
}

func (s *store) ErrorCode(err error) gcerrors.ErrorCode {
	switch {
	case errors.Is(err, errNotThere):
		return gcerrors.NotFound
	case errors.Is(err, errIsThere):
		return gcerrors.FailedPrecondition
	case errors.Is(err, context.Canceled):
		return gcerrors.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		return gcerrors.DeadlineExceeded
	}
	return gcerrors.Unknown
}

func (s *store) As(any) bool             { return false }
func (s *store) ErrorAs(error, any) bool { return false }
func (s *store) Close() error            { return nil }

func (s *store) Attributes(ctx context.Context, key string) (*driver.Attributes, error) {
	var a driver.Attributes
	return &a, s.do(ctx, "read", key, nil, func() error {
		text := s.get(key)
		if text == nil {
			return errNotThere
		}
		a.Size = int64(len(text))
		return nil
	})
}

func (s *store) ListPaged(ctx context.Context, o *driver.ListOptions) (*driver.ListPage, error) {
	page := new(driver.ListPage)
	return page, s.do(ctx, "list", o.Prefix, nil, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		below := make(map[string]*driver.ListObject)
		for key := range s.blobs {
			rest, in := strings.CutPrefix(key, o.Prefix)
			if !in {
				continue
			}
			then := time.Now()
			if s.lag != nil {
				then = then.Add(-s.lag(key))
			}
			text := s.at(key, then)
			if text == nil {
				continue
			}
			if first, _, deeper := strings.Cut(rest, o.Delimiter); o.Delimiter != "" && deeper {
				dir := o.Prefix + first + o.Delimiter
				below[dir] = &driver.ListObject{Key: dir, IsDir: true}
				continue
			}
			below[key] = &driver.ListObject{Key: key, Size: int64(len(text))}
		}
		for _, key := range slices.Sorted(maps.Keys(below)) {
			page.Objects = append(page.Objects, below[key])
		}
		return nil
	})
}

type storeReader struct {
	io.Reader
	size int64
}

func (r *storeReader) Close() error { return nil }
func (r *storeReader) As(any) bool  { return false }
func (r *storeReader) Attributes() *driver.ReaderAttributes {
	return &driver.ReaderAttributes{Size: r.size}
}

func (s *store) NewRangeReader(ctx context.Context, key string, offset, length int64,
	_ *driver.ReaderOptions) (driver.Reader, error) {
	r := new(storeReader)
	return r, s.do(ctx, "read", key, nil, func() error {
		text := s.get(key)
		if text == nil {
			return errNotThere
		}
		r.size = int64(len(text))
		if text = text[offset:]; length >= 0 {
			text = text[:min(length, int64(len(text)))]
		}
		r.Reader = bytes.NewReader(text)
		return nil
	})
}

type storeWriter struct {
	bytes.Buffer
	close func(text []byte) error
}

func (w *storeWriter) Close() error { return w.close(append([]byte{}, w.Bytes()...)) }

func (s *store) NewTypedWriter(ctx context.Context, key, _ string, o *driver.WriterOptions) (driver.Writer, error) {
	if err := s.do(ctx, "open", key, nil, func() error { return nil }); err != nil {
		return nil, err
	}
	return &storeWriter{close: func(text []byte) error {
		return s.do(ctx, "write", key, text, func() error {
			if o.IfNotExist {
				s.mu.Lock()
				defer s.mu.Unlock()
				if s.at(key, time.Now()) != nil {
					return errIsThere
				}
				s.blobs[key] = append(s.blobs[key], version{time.Now(), text})
				return nil
			}
			s.put(key, text)
			return nil
		})
	}}, nil
}

func (s *store) Copy(context.Context, string, string, *driver.CopyOptions) error {
	return fmt.Errorf("copy: %w", errors.ErrUnsupported)
}

func (s *store) Delete(ctx context.Context, key string, _ *driver.DeleteOptions) error {
	return s.do(ctx, "delete", key, nil, func() error {
		if s.get(key) == nil {
			return errNotThere
		}
		s.put(key, nil)
		return nil
	})
}

func (s *store) SignedURL(context.Context, string, *driver.SignedURLOptions) (string, error) {
	return "", fmt.Errorf("sign: %w", errors.ErrUnsupported)
}
