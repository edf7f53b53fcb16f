package planner

import (
	"context"
	"slices"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/split"
)

// planSpaces plans a range that may have several spaces. A space is one kind in one namespace. It
// either cuts the range between spaces, or makes the task process one space after the other.
//
// If the bool settled is true, found is the final plan: the range is cut between spaces, or the
// next page is the rest of a space. Otherwise the next page lies within one space, and the caller
// plans it as usual.
func (p *Planner) planSpaces(ctx context.Context, s split.Piece, root bool) (found Plan, settled bool, err error) {
	r := p.record
	if r.Kind != "" && !root {
		return found, false, nil
	}
	if root {
		pieces, err := p.listSpaces(ctx, s)
		if err != nil || len(pieces) > 1 {
			p.listed = "" // so that the first piece, which the task keeps, may be cut again
			return Plan{Pieces: func() ([]split.Piece, error) { return pieces, nil }, First: true}, true, err
		}
	}
	size, err := p.pageSize(r.PageLimit())
	if err != nil {
		return found, false, err
	}
	at, err := p.ahead(p.keys.Peek(size + 1))
	if err != nil || len(at) == 0 {
		return found, err == nil, err
	}
	local := at[0].Space()
	n := slices.IndexFunc(at, func(p *keyspace.Position) bool { return p.Space() != local })
	switch {
	case n > 0 && n <= size: // the rest of this space fits into the page
		return Plan{At: at[:n], Next: at[n]}, true, nil
	case len(at) <= size:
		return Plan{At: at}, true, nil
	case r.Kind != "":
		return found, false, nil
	}
	// One of the next entities may kill its process. Up to a page of them stay in one range.
	if r.Solo {
		wide, err := p.ahead(p.keys.Peek(int(p.job.PageSize) + 1))
		if err != nil {
			return found, false, err
		}
		if len(wide) <= int(p.job.PageSize) || wide[len(wide)-1].Space() != local {
			return Plan{At: at[:size], Next: at[size]}, true, nil
		}
	}
	own, rest := s, s.From(local.End(), 0)
	own.End, own.Space, own.Resample, rest.Resample = local.End(), local, true, true
	if r.End != nil && keyspace.Compare(r.End, own.End) <= 0 {
		r.In(local)
		return found, false, nil
	}
	return Plan{First: true, Pieces: func() ([]split.Piece, error) { return []split.Piece{own, rest}, nil }}, true, nil
}

// listSpaces lists the pairs of kind and namespace in a range, and cuts the range between them. It
// does this only once for a range. If the range should not be cut in this way, it returns no
// pieces.
func (p *Planner) listSpaces(ctx context.Context, s split.Piece) (pieces []split.Piece, err error) {
	r := p.record
	if r.Solo || r.Kind != "" || p.listed == r.ID || p.divided && s.Workers <= 1 {
		return nil, nil
	}
	p.listed = r.ID
	if r.ID == p.job.Root() {
		s.Workers = p.job.Workers
	}
	return p.cutSpaces(ctx, s)
}

// mostSpaces is the largest number of spaces (a kind in a namespace) that one task lists.
const mostSpaces = 10_000

// cutSpaces cuts a range between its spaces: the pairs of kind and namespace. Each piece gets about
// the same number of spaces.
func (p *Planner) cutSpaces(ctx context.Context, s split.Piece) (pieces []split.Piece, err error) {
	var all []keyspace.Space
	next := p.Source.Spaces(ctx, p.Query, s.Start, s.End)
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

// Constants for ranges over several spaces (pairs of kind and namespace). A range is cut into
// spacesPerWorker pieces for each worker, because the sizes of spaces are unknown. One task
// processes up to longWalk spaces in turn.
const (
	spacesPerWorker = 4
	longWalk        = 1000
)
