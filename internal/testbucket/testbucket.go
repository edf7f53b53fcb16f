// Package testbucket has an object store in memory for tests. It replaces a bucket of Cloud
// Storage.
package testbucket

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

// A Bucket is an object store in memory. A test can see each call of the program, delay the call's
// effect, and choose the result.
type Bucket struct {
	// Hook, if it is not nil, is called in place of the effect of each call. It may call the effect
	// at any time, or never. The program gets the error that Hook returns.
	Hook func(*Call) error
	// Lag, if it is not nil, makes listings outdated: a listing shows the content that a blob had
	// this long ago. So it can miss recent writes.
	Lag func(key string) time.Duration
	// Chunk, if it is not 0, is a number of bytes. If a program writes more to a name that must not
	// exist, and it exists, a call of Write fails. Otherwise Close fails. In Cloud Storage a chunk
	// has 16 MiB.
	Chunk int

	mu    sync.Mutex
	blobs map[string][]version // the versions of each blob, by its name; the oldest comes first
}

// A version is the content that a blob has from a time on.
type version struct {
	at   time.Time
	text []byte // the content; nil if the blob was deleted
}

// A Call is one call of a program to a bucket.
type Call struct {
	context.Context
	// Op is read, open, write, delete or list. A program makes two calls to write a blob: open,
	// before its text is known, and then write.
	Op     string
	Key    string // the name of the blob; for list, the prefix
	Text   []byte // the text of a write
	Effect func() error
}

// listed is the maximum number of names that a call of list returns, as in Cloud Storage.
const listed = 1000

// Errors that calls of a bucket return.
var (
	ErrNotThere = errors.New("there is no such blob")
	ErrIsThere  = errors.New("there is such a blob")
)

// New returns an empty bucket.
func New() *Bucket { return &Bucket{blobs: make(map[string][]version)} }

// Open returns the bucket in the form that the program uses.
func (b *Bucket) Open() *blob.Bucket { return blob.NewBucket(served{b}) }

// A served implements the driver interface of package blob for a Bucket.
type served struct{ *Bucket }

func (b *Bucket) do(ctx context.Context, op, key string, text []byte, effect func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if b.Hook == nil {
		return effect()
	}
	return b.Hook(&Call{ctx, op, key, text, effect})
}

// at returns the content of a blob at a time, or nil if it did not exist then.
func (b *Bucket) at(key string, t time.Time) []byte {
	var text []byte
	for _, v := range b.blobs[key] {
		if !v.at.After(t) {
			text = v.text
		}
	}
	return text
}

// Now returns the current contents of all blobs, by name.
func (b *Bucket) Now() map[string][]byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := make(map[string][]byte)
	for key := range b.blobs {
		if text := b.at(key, time.Now()); text != nil {
			all[key] = text
		}
	}
	return all
}

// Names returns the names of all current blobs, sorted.
func (b *Bucket) Names() []string { return slices.Sorted(maps.Keys(b.Now())) }

// Overwritten returns the names of all blobs that were written while they already existed.
func (b *Bucket) Overwritten() (all []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for name, versions := range b.blobs {
		for i := 1; i < len(versions); i++ {
			if versions[i].text != nil && versions[i-1].text != nil {
				all = append(all, name)
				break
			}
		}
	}
	return all
}

// Put stores a blob without a call of Hook.
func (b *Bucket) Put(key string, text []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.blobs[key] = append(b.blobs[key], version{time.Now(), text})
}

// Get returns the content of a blob, or nil if it does not exist. It does not call Hook.
func (b *Bucket) Get(key string) []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.at(key, time.Now())
}

func (b served) ErrorCode(err error) gcerrors.ErrorCode {
	switch {
	case errors.Is(err, ErrNotThere):
		return gcerrors.NotFound
	case errors.Is(err, ErrIsThere):
		return gcerrors.FailedPrecondition
	case errors.Is(err, context.Canceled):
		return gcerrors.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		return gcerrors.DeadlineExceeded
	}
	return gcerrors.Unknown
}

func (b served) As(any) bool             { return false }
func (b served) ErrorAs(error, any) bool { return false }
func (b served) Close() error            { return nil }

func (b served) Attributes(ctx context.Context, key string) (*driver.Attributes, error) {
	var a driver.Attributes
	return &a, b.do(ctx, "read", key, nil, func() error {
		text := b.Get(key)
		if text == nil {
			return ErrNotThere
		}
		a.Size = int64(len(text))
		return nil
	})
}

func (b served) ListPaged(ctx context.Context, o *driver.ListOptions) (*driver.ListPage, error) {
	page := new(driver.ListPage)
	return page, b.do(ctx, "list", o.Prefix, nil, func() error {
		b.mu.Lock()
		defer b.mu.Unlock()
		below := make(map[string]*driver.ListObject)
		for key := range b.blobs {
			rest, in := strings.CutPrefix(key, o.Prefix)
			if !in {
				continue
			}
			then := time.Now()
			if b.Lag != nil {
				then = then.Add(-b.Lag(key))
			}
			text := b.at(key, then)
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
			if key < string(o.PageToken) {
				continue
			}
			if len(page.Objects) == listed {
				page.NextPageToken = []byte(key)
				break
			}
			page.Objects = append(page.Objects, below[key])
		}
		return nil
	})
}

type reader struct {
	io.Reader
	size int64
}

func (r *reader) Close() error { return nil }
func (r *reader) As(any) bool  { return false }
func (r *reader) Attributes() *driver.ReaderAttributes {
	return &driver.ReaderAttributes{Size: r.size}
}

func (b served) NewRangeReader(ctx context.Context, key string, offset, length int64,
	_ *driver.ReaderOptions) (driver.Reader, error) {
	r := new(reader)
	return r, b.do(ctx, "read", key, nil, func() error {
		text := b.Get(key)
		if text == nil {
			return ErrNotThere
		}
		r.size = int64(len(text))
		if text = text[offset:]; length >= 0 {
			text = text[:min(length, int64(len(text)))]
		}
		r.Reader = bytes.NewReader(text)
		return nil
	})
}

type writer struct {
	bytes.Buffer
	check func() error // called before each call of Write
	close func(text []byte) error
}

func (w *writer) Write(text []byte) (int, error) {
	if err := w.check(); err != nil {
		return 0, err
	}
	return w.Buffer.Write(text)
}

func (w *writer) Close() error { return w.close(append([]byte{}, w.Bytes()...)) }

func (b served) NewTypedWriter(ctx context.Context, key, _ string, o *driver.WriterOptions) (driver.Writer, error) {
	if err := b.do(ctx, "open", key, nil, func() error { return nil }); err != nil {
		return nil, err
	}
	w := new(writer)
	w.check = func() error {
		if b.Chunk > 0 && w.Len() > b.Chunk && o.IfNotExist && b.Get(key) != nil {
			return ErrIsThere
		}
		return nil
	}
	w.close = func(text []byte) error {
		if err := w.check(); err != nil {
			return err
		}
		return b.do(ctx, "write", key, text, func() error {
			if o.IfNotExist {
				b.mu.Lock()
				defer b.mu.Unlock()
				if b.at(key, time.Now()) != nil {
					return ErrIsThere
				}
				b.blobs[key] = append(b.blobs[key], version{time.Now(), text})
				return nil
			}
			b.Put(key, text)
			return nil
		})
	}
	return w, nil
}

func (b served) Copy(context.Context, string, string, *driver.CopyOptions) error {
	return fmt.Errorf("copy: %w", errors.ErrUnsupported)
}

func (b served) Delete(ctx context.Context, key string, _ *driver.DeleteOptions) error {
	return b.do(ctx, "delete", key, nil, func() error {
		if b.Get(key) == nil {
			return ErrNotThere
		}
		b.Put(key, nil)
		return nil
	})
}

func (b served) SignedURL(context.Context, string, *driver.SignedURLOptions) (string, error) {
	return "", fmt.Errorf("sign: %w", errors.ErrUnsupported)
}
