package executor

import (
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/page"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// keep has the record of a page keep what its commit writes, for an undo, and what that has left.
func keep(mode function.Mode, r *record.Range, o *page.Outcome) {
	record.Leave(r, o.Left)
	if mode != function.Update {
		return
	}
	w := record.Wrote{Others: o.Others}
	w.Own(o.Own, len(o.Own) == o.Reached && o.Reached > 0)
	r.Wrote = w.Encode()
}
