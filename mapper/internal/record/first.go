package record

import "github.com/scattermap/scattermap/mapper/internal/split"

// A First says how a start cuts the root of its job, after a look at the entities. The zero value
// cuts nothing: the root's task looks and cuts.
type First struct {
	Pieces     []split.Piece // the root's own piece, then the pieces of its first children
	EntitySize int64         // average, in bytes; 0: unknown
}

// Ranges returns the first ranges of a new job: the root, and its first children.
func (f First) Ranges(j *Job) (root *Range, children []*Range) {
	root = j.RootRange()
	if len(f.Pieces) == 0 {
		return root, nil
	}
	root.EntitySize = f.EntitySize
	children = root.Divide(f.Pieces, root.PageSize, false, root.Created)
	root.Given = root.Children
	return root, children
}

// FirstChildren returns the children of a root that its start has recorded, with as much as their
// first tasks need.
func (r *Range) FirstChildren() (children []*Range) {
	for n := range r.Given {
		children = append(children, &Range{Job: r.Job, Incarnation: r.Incarnation, ID: RangeID(r.ID, n)})
	}
	return children
}
