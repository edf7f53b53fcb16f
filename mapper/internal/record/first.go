package record

import "github.com/scattermap/scattermap/mapper/internal/split"

// First is what a start has found out about the entities of its job: how the root is cut. The zero
// value is nothing: the root's task finds out.
type First struct {
	Pieces     []split.Piece // the root's own piece, then its first children's
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
