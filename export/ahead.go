package export

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"sync"

	"gocloud.dev/blob"
	"golang.org/x/sync/semaphore"
)

// Limits of reading ahead: the number of parts that a task holds in memory, and their total size in
// bytes. Reading a part from a bucket takes about 30 ms, mostly waiting.
const (
	aheadParts = 64
	aheadBytes = 4 << 20
)

// A readAhead reads blobs in parallel, before they are needed. The method next returns them in the
// order of the calls of read. Up to aheadParts blobs, with up to aheadBytes in total, are in
// memory. A larger blob is streamed instead.
type readAhead struct {
	ctx    context.Context
	bucket *blob.Bucket
	free   *semaphore.Weighted // limits the bytes that may be read ahead
	reads  chan *aheadRead     // the reads in the order of the calls of read; the caller of read closes it
	group  sync.WaitGroup
}

// An aheadRead is the read of one blob.
type aheadRead struct {
	done chan struct{}
	body io.ReadCloser
	err  error
}

func newReadAhead(ctx context.Context, bucket *blob.Bucket) *readAhead {
	return &readAhead{ctx: ctx, bucket: bucket, free: semaphore.NewWeighted(aheadBytes),
		reads: make(chan *aheadRead, aheadParts)}
}

// read starts to read a blob that has size bytes. It waits if the blobs in memory have reached the
// limits.
func (a *readAhead) read(key string, size int64) error {
	held := min(max(size, aheadBytes/aheadParts), aheadBytes)
	if err := a.free.Acquire(a.ctx, held); err != nil {
		return err
	}
	r := &aheadRead{done: make(chan struct{})}
	select {
	case a.reads <- r:
	case <-a.ctx.Done():
		return a.ctx.Err()
	}
	a.group.Go(func() {
		defer close(r.done)
		b := &heldBlob{free: func() { a.free.Release(held) }}
		r.body = b
		if size > aheadBytes {
			var body *blob.Reader
			if body, r.err = a.bucket.NewReader(a.ctx, key, nil); r.err == nil {
				b.Reader, b.body = body, body
			}
			return
		}
		var text []byte
		text, r.err = a.bucket.ReadAll(a.ctx, key)
		b.Reader = bytes.NewReader(text)
	})
	return nil
}

// next returns the next blob, or io.EOF after the last one. The caller closes the blob.
func (a *readAhead) next() (io.ReadCloser, error) {
	r, ok := <-a.reads
	if !ok {
		return nil, io.EOF
	}
	<-r.done
	if r.err != nil {
		return nil, fmt.Errorf("read a part: %w", r.err)
	}
	return r.body, nil
}

// wait waits until all reads have ended. Before the call, the context must have ended.
func (a *readAhead) wait() {
	for r := range a.reads {
		<-r.done
		_ = r.body.Close()
	}
	a.group.Wait()
}

// A heldBlob is the reader of a blob from a readAhead. Until it is closed, it holds its part of the
// limit aheadBytes.
type heldBlob struct {
	io.Reader
	body io.Closer // closes the blob, if it is streamed
	free func()
}

func (h *heldBlob) Close() error {
	h.free()
	if h.body == nil {
		return nil
	}
	return h.body.Close()
}
