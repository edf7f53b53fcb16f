package executor

import (
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/page"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// keep has the record of a page keep what its commit writes, for an undo, and what that has left; and the delivery, what it used.
func keep(d *delivery, r *record.Range, o *page.Outcome) {
	record.Leave(r, o.Left)
	record.Exemplify(r, o.Examples[:min(len(o.Examples), record.PageExamples)])
	used := usageOf(d, float64(o.Reached), float64(o.Writes()))
	d.used = &used
	if d.planner.Mode != function.Update {
		return
	}
	w := record.Wrote{Others: o.Others, Lost: o.Apart}
	w.Own(o.Own, len(o.Own) == o.Reached && o.Reached > 0)
	r.Wrote = w.Encode()
}
