package export

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"

	"gocloud.dev/blob/memblob"

	"github.com/scattermap/scattermap/internal/testflag"
)

// TestReadAhead reads blobs of random sizes ahead. They must come in order, and the limits of blobs
// in memory must hold. If a read fails, next must return the error in place of that blob.
func TestReadAhead(t *testing.T) {
	rng := testflag.Rand(t)
	for most, n := range map[int]int{100: 100, aheadBytes / 10: 30, 2 * aheadBytes: 30} { // n blobs
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bucket := memblob.OpenBucket(nil)
				defer bucket.Close()
				sizes, missing := make([]int, n), rng.IntN(n)
				for i := range sizes {
					sizes[i] = rng.IntN(most)
					if i == missing {
						continue
					}
					text := bytes.Repeat([]byte{byte(i)}, sizes[i])
					if err := bucket.WriteAll(t.Context(), fmt.Sprint(i), text, nil); err != nil {
						t.Fatal(err)
					}
				}
				ctx, cancel := context.WithCancel(t.Context())
				r := newReadAhead(ctx, bucket)
				asked := 0
				go func() {
					defer close(r.reads)
					for i, size := range sizes {
						if r.read(fmt.Sprint(i), int64(size)) != nil {
							return
						}
						asked++
					}
				}()
				for i := range missing {
					synctest.Wait()
					held := 0
					for _, size := range sizes[i:asked] {
						held += size
					}
					if ahead := asked - i; ahead > aheadParts || ahead > 1 && held > aheadBytes || ahead == 0 {
						t.Fatalf("%d blobs of %d bytes are held, want up to %d and %d, or one", ahead, held, aheadParts,
							aheadBytes)
					}
					body, err := r.next()
					if err != nil {
						t.Fatal(err)
					}
					if inMemory := body.(*heldBlob).body == nil; inMemory != (sizes[i] <= aheadBytes) {
						t.Fatalf("blob %d has %d bytes, and is in memory: %t", i, sizes[i], inMemory)
					}
					text, err := io.ReadAll(body)
					if err != nil || !bytes.Equal(text, bytes.Repeat([]byte{byte(i)}, sizes[i])) {
						t.Fatalf("blob %d has %d bytes, %v, want %d", i, len(text), err, sizes[i])
					}
					if err := body.Close(); err != nil {
						t.Fatal(err)
					}
				}
				if _, err := r.next(); err == nil || errors.Is(err, io.EOF) {
					t.Errorf("blob %d is missing, and the error is %v", missing, err)
				}
				cancel()
				r.wait()
			})
		})
	}
}

// TestReadAheadEnds asks for parts after the context was canceled. Each call returns an error, and
// nothing is read ahead.
func TestReadAheadEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r := newReadAhead(ctx, memblob.OpenBucket(nil))
	cancel()
	for range aheadParts {
		if err := r.read("none", aheadBytes); !errors.Is(err, context.Canceled) {
			t.Fatalf("%v, want an error", err)
		}
	}
	close(r.reads)
	r.wait()
}
