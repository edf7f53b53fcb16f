package mapper

import (
	"context"
	"slices"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/split"
)

// planSpaces plans a range of a query that is over several spaces: it is cut between them, or
// done one after the other, until its entities are in one. That is planned like others, unless
// it is one page: then, and if the range is cut, the plan is made.
func (w *work) planSpaces(ctx context.Context, s split.Piece, root bool) (p page, settled bool, err error) {
	r := w.record
	if r.Kind != "" && !root {
		return p, false, nil
	}
	if root && !r.Solo && r.Kind == "" && w.listed != r.ID && (!w.divided || s.Workers > 1) {
		w.listed = r.ID
		if r.ID == w.job.Root() {
			s.Workers = w.job.Workers
		}
		pieces, err := w.cutSpaces(ctx, s)
		if err != nil || len(pieces) > 1 {
			w.listed = "" // what it keeps may be cut once more
			return page{pieces: func() ([]split.Piece, error) { return pieces, nil }, first: true}, true, err
		}
	}
	size, err := w.pacedSize(r.PageLimit())
	if err != nil {
		return p, false, err
	}
	found, err := w.ahead(w.keys.Peek(size + 1))
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
		wide, err := w.ahead(w.keys.Peek(int(w.job.PageSize) + 1))
		if err != nil {
			return p, false, err
		}
		if len(wide) <= int(w.job.PageSize) || wide[len(wide)-1].Space() != local {
			return page{at: found[:size], next: found[size]}, true, nil
		}
	}
	own, rest := s, s.From(local.End(), 0)
	own.End, own.Space, own.Resample, rest.Resample = local.End(), local, true, true
	if r.End != nil && keyspace.Compare(r.End, own.End) <= 0 {
		r.In(local)
		return p, false, nil
	}
	return page{first: true, pieces: func() ([]split.Piece, error) { return []split.Piece{own, rest}, nil }}, true, nil
}

// mostSpaces is how many spaces a task lists at once.
const mostSpaces = 10_000

// cutSpaces cuts a range between spaces, evenly.
func (w *work) cutSpaces(ctx context.Context, s split.Piece) (pieces []split.Piece, err error) {
	var all []keyspace.Space
	next := w.source.Spaces(ctx, w.query, s.Start, s.End)
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
	if workers := max(1, s.Workers); workers > 1 || len(all) > longWalk {
		n = min(len(all), split.MaxFanOut, int(spacesPerWorker*workers))
	}
	rest := s
	rest.Workers = max(1, s.Workers/int64(max(1, n)))
	for i := 1; i < n; i++ {
		at := &keyspace.Position{Namespace: all[len(all)*i/n].Namespace, Kind: all[len(all)*i/n].Kind}
		piece := rest
		piece.End, piece.Resample = at, true
		pieces, rest = append(pieces, piece), rest.From(at, 0)
	}
	rest.Resample = true
	return append(pieces, rest), nil
}

// spacesPerWorker is into how many ranges of spaces a range is cut for each worker: how large
// they are is not known. longWalk is how many spaces a task goes through one after the other.
const (
	spacesPerWorker = 4
	longWalk        = 1000
)
