package executor

import (
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/page"
	"github.com/scattermap/scattermap/mapper/internal/undolog"
)

// wrote returns what the commit of a page writes, for an undo.
func wrote(o *page.Outcome) []byte {
	settled := time.Now().Add(-settledFor)
	var fresh []*datastore.Key
	for i, key := range o.Own {
		if at := o.OwnAt[i]; at == 0 || at > settled.UnixMicro() {
			fresh = append(fresh, key)
		}
	}
	w := undolog.Wrote{
		Own: undolog.KeysOf(o.Own, len(o.Own) == o.Reached), Written: int64(len(o.Own)),
		Gone:  undolog.KeysOf(o.Gone, len(o.Gone) == len(o.Own)),
		Fresh: undolog.KeysOf(fresh, len(fresh) == len(o.Own)), Settled: settled, Others: o.Others,
	}
	return w.Encode()
}

// settledFor is how long an entity has been left alone, by this process's clock, that was as it is
// a whole minute ago: behind an hour an undo reads whole minutes.
const settledFor = 2 * time.Minute
