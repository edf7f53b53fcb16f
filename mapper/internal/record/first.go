package record

import "github.com/scattermap/scattermap/mapper/internal/split"

// A First says into which ranges the start of a job cuts the root, which is the range of the whole
// query. If it is zero, the start does not cut the root, but leaves this to the root's task.
type First struct {
	Pieces     []split.Piece // the piece that the root keeps, then the pieces of its first children
	EntitySize int64         // average size of an entity in bytes; 0: unknown
}

// Ranges returns the records of the ranges with which a new job starts: the root (the first range),
// and its first children.
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

// FirstChildren returns the children of the root r that the start of the job has recorded. Their
// records have only the fields from which their tasks can be made.
func (r *Range) FirstChildren() (children []*Range) {
	for n := range r.Given {
		children = append(children, &Range{Job: r.Job, Incarnation: r.Incarnation, ID: RangeID(r.ID, n)})
	}
	return children
}
