package mapper

import (
	"context"
	"slices"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
)

// planSpaces plans a range of a query that is over several spaces: it is cut between them, or
// done one after the other, until its entities are in one. That is planned like others, unless
// it is one page: then, and if the range is cut, the plan is settled.
func (w *work) planSpaces(ctx context.Context, s stretch, root bool) (p page, settled bool, err error) {
	r := w.record
	if r.Kind != "" && !root {
		return p, false, nil
	}
	if root && !r.Solo && r.Kind == "" && w.listed != r.ID && (!w.divided || s.workers > 1) {
		w.listed = r.ID
		if r.ID == w.job.root() {
			s.workers = w.job.Workers
		}
		pieces, err := w.cutSpaces(ctx, s)
		if err != nil || len(pieces) > 1 {
			w.listed = "" // what it keeps may be cut once more
			return page{pieces: func() ([]stretch, error) { return pieces, nil }, first: true}, true, err
		}
	}
	size, err := w.pacedSize(r.pageSize())
	if err != nil {
		return p, false, err
	}
	found, err := w.ahead(w.keys.peek(size + 1))
	if err != nil || len(found) == 0 {
		return p, err == nil, err
	}
	local := found[0].Space()
	n := slices.IndexFunc(found, func(p *keyspace.Position) bool { return p.Space() != local })
	switch {
	case n > 0 && n <= size: // all of a space
		return page{at: found[:n], next: found[n]}, true, nil
	case len(found) <= size:
		return page{at: found}, true, nil
	case r.Kind != "":
		return p, false, nil
	}
	if r.Solo { // those on a page of the usual size are suspected, and stay together
		wide, err := w.ahead(w.keys.peek(int(w.job.PageSize) + 1))
		if err != nil {
			return p, false, err
		}
		if len(wide) <= int(w.job.PageSize) || wide[len(wide)-1].Space() != local {
			return page{at: found[:size], next: found[size]}, true, nil
		}
	}
	own, rest := s, s.from(local.End(), 0)
	own.end, own.space, own.survey, rest.survey = local.End(), local, true, true
	if r.End != nil && keyspace.Compare(r.End, own.end) <= 0 {
		r.in(local)
		return p, false, nil
	}
	return page{first: true, pieces: func() ([]stretch, error) { return []stretch{own, rest}, nil }}, true, nil
}

// mostSpaces is how many spaces a task lists at once.
const mostSpaces = 10_000

// cutSpaces cuts a range between spaces, evenly.
func (w *work) cutSpaces(ctx context.Context, s stretch) (pieces []stretch, err error) {
	var all []keyspace.Space
	next := w.engine.spaces(ctx, w.query, s.start, s.end)
	for len(all) < mostSpaces {
		sp, ok, err := next()
		if err != nil {
			return nil, err
		}
		if !ok {
			break
		}
		all = append(all, sp)
	}
	n := 1
	if workers := max(1, s.workers); workers > 1 || len(all) > longWalk {
		n = min(len(all), maxFanOut, int(spacesPerWorker*workers))
	}
	rest := s
	rest.workers = max(1, s.workers/int64(max(1, n)))
	for i := 1; i < n; i++ {
		at := &keyspace.Position{Namespace: all[len(all)*i/n].Namespace, Kind: all[len(all)*i/n].Kind}
		piece := rest
		piece.end, piece.survey = at, true
		pieces, rest = append(pieces, piece), rest.from(at, 0)
	}
	rest.survey = true
	return append(pieces, rest), nil
}

// spacesPerWorker is into how many ranges of spaces a range is cut for each worker: how large
// they are is not known. longWalk is how many spaces a task goes through one after the other.
const (
	spacesPerWorker = 4
	longWalk        = 1000
)
