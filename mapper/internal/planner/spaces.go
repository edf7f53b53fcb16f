package planner

import (
	"context"
	"slices"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/split"
)

// planSpaces plans a range that may have entities of several spaces. A space is one kind in one
// namespace. Either it cuts the range between spaces, or the task processes one space after the
// other.
//
// If the result settled is true, found is the final plan: the range is cut, or what remains of a
// space is one page. Otherwise the next page is in one space, and the caller plans it like any
// other.
func (p *Planner) planSpaces(ctx context.Context, s split.Piece, root bool) (found Plan, settled bool, err error) {
	r := p.record
	if r.Kind != "" && !root {
		return found, false, nil
	}
	if root {
		pieces, err := p.listSpaces(ctx, s)
		if err != nil || len(pieces) > 1 {
			p.listed = "" // the part that the range keeps may be cut again
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
	case n > 0 && n <= size: // all of a space
		return Plan{At: at[:n], Next: at[n]}, true, nil
	case len(at) <= size:
		return Plan{At: at}, true, nil
	case r.Kind != "":
		return found, false, nil
	}
	if r.Solo { // the entities on a page of the job's size are suspected, and stay together
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

// listSpaces lists the kinds and namespaces of a range, and cuts the range between them. It does
// that once for a range. It returns no pieces if the range should not be cut there.
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

// cutSpaces cuts a range between its spaces, so that each piece has about the same number of
// spaces.
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

// Constants for ranges over several kinds and namespaces, called spaces. A range is cut into
// spacesPerWorker pieces for each worker, because their sizes are unknown. One task processes up to
// longWalk spaces one after the other.
const (
	spacesPerWorker = 4
	longWalk        = 1000
)
