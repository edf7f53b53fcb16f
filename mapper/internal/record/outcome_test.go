package record

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/split"
	"github.com/scattermap/scattermap/mapper/internal/tally"
	"github.com/scattermap/scattermap/mapper/internal/undolog"
)

// ids returns the positions of keys with the given IDs.
func ids(all ...int64) (p []*keyspace.Position) {
	for _, id := range all {
		p = append(p, at(id))
	}
	return p
}

// said describes a range as a short text.
func said(r *Range) string {
	text := string(r.State) + " ["
	if r.Start != nil {
		text += fmt.Sprint(r.Start.Key.ID)
	}
	text += ","
	if r.End != nil {
		text += fmt.Sprint(r.End.Key.ID)
	}
	text += ")"
	if r.Alone {
		text = string(r.State) + " " + fmt.Sprint(r.Start.Key.ID)
	}
	for _, is := range []struct {
		what string
		true bool
	}{
		{"full", r.Full}, {"continued", r.Continued}, {"suspected", r.Solo}, {"to survey", r.Resample},
		{"of another job", r.Job != "j"}, {fmt.Sprint("in ", r.Kind), r.Kind != ""},
		{fmt.Sprint("with ", r.Entities, " entities"), r.Entities > 0},
		{fmt.Sprint("pages of ", r.PageSize), r.PageSize != 100 && !r.Alone},
		{fmt.Sprint("halved to ", r.Narrowed), r.Narrowed > 0 && r.State == Pending},
		{"waits until " + r.NotBefore.Sub(noon).String(), !r.NotBefore.IsZero()},
		{fmt.Sprint("after ", r.Refusals, " attempts"), r.Refusals > 0}, {"failed: " + r.Error, r.Error != ""},
		{fmt.Sprint(r.Retries, " to retry"), r.Retries > 0}, {fmt.Sprint(r.Recorded, " recorded"), r.Recorded > 0},
	} {
		if is.true {
			text += " " + is.what
		}
	}
	return text
}

// TestCommit commits different outcomes of a page of the range [10, 20), and checks the resulting
// records.
func TestCommit(t *testing.T) {
	backoff := fault.Backoff{Attempts: 4, First: time.Second, Max: time.Hour}
	bad := errors.New("bad")
	piece := func(from, to int64) split.Piece {
		return split.Piece{Start: at(from), End: at(to), Estimate: to - from}
	}
	kindL := keyspace.Space{Kind: "L"}
	for _, c := range []struct {
		name   string
		change func(r *Range) // prepares the range before the commit
		o      Outcome
		want   []string // the range after the commit, then its children
		cutOff int64
		err    error
	}{
		{
			name: "all is done", o: Outcome{Done: ids(10, 11, 19)},
			want: []string{"done [10,20) with 3 entities"},
		},
		{
			name: "there was nothing", want: []string{"done [10,20)"},
		},
		{
			name: "a full page goes on with what is left",
			o:    Outcome{Done: ids(10, 11), Next: at(15), Full: true, GoesOn: true, NextPage: 50},
			want: []string{"done [10,15) full with 2 entities", "pending [15,20) continued pages of 50"},
		},
		{
			name: "a page that ended early leaves what is left to a task",
			o:    Outcome{Done: ids(10), Next: at(11), NextPage: 100},
			want: []string{"done [10,11) with 1 entities", "pending [11,20)"},
		},
		{
			name: "no entity was dealt with",
			o:    Outcome{Next: at(10), NextPage: 100},
			want: []string{"done [10,10)", "pending [10,20)"},
		},
		{
			name: "the rest is cut in two, and its first part goes on",
			o: Outcome{Done: ids(10, 11), Next: at(12), GoesOn: true, NextPage: 100,
				Cut: []split.Piece{piece(10, 16), piece(16, 20)}},
			want:   []string{"done [10,12) with 2 entities", "pending [16,20)", "pending [12,16) continued"},
			cutOff: 1,
		},
		{
			name: "the page is all that the range keeps",
			o: Outcome{Done: ids(10, 11), Next: at(12), GoesOn: true, NextPage: 100,
				Cut: []split.Piece{piece(10, 12), piece(12, 15), piece(15, 20)}},
			want:   []string{"done [10,12) with 2 entities", "pending [12,15)", "pending [15,20)"},
			cutOff: 2,
		},
		{
			name: "the page reaches beyond its own piece: it is not cut",
			o: Outcome{Done: ids(10, 16), Next: at(17), NextPage: 100,
				Cut: []split.Piece{piece(10, 16), piece(16, 20)}},
			want: []string{"done [10,17) with 2 entities", "pending [17,20)"},
		},
		{
			name: "one piece is none", o: Outcome{Done: ids(10), Cut: []split.Piece{piece(10, 20)}},
			want: []string{"done [10,20) with 1 entities"},
		},
		{
			name: "the page ends after its range", o: Outcome{Done: ids(10, 21)}, err: ErrOverlap,
		},
		{
			name: "an entity is tried again",
			o:    Outcome{Done: ids(10, 11), Failed: []Failure{{At: at(11), Err: bad, Attempts: 2}}},
			want: []string{"done [10,20) with 2 entities 1 to retry", "pending 11 waits until 4s after 2 attempts"},
		},
		{
			name: "an entity asks for time",
			o: Outcome{Done: ids(10), Failed: []Failure{
				{At: at(10), Err: fault.RetryAfter(bad, time.Minute), Attempts: 1}}},
			want: []string{"done [10,20) with 1 entities 1 to retry", "pending 10 waits until 1m0s after 1 attempts"},
		},
		{
			name: "one fails for good, one is tried again: that comes first",
			o: Outcome{Done: ids(10, 11), Failed: []Failure{{At: at(10), Err: bad, Attempts: 1, Permanent: true},
				{At: at(11), Err: bad, Attempts: 1}}},
			want: []string{"done [10,20) with 2 entities 1 to retry 1 recorded",
				"pending 11 waits until 1s after 1 attempts", "done 10 with 1 entities after 1 attempts failed: bad"},
		},
		{
			name: "no attempts are left",
			o:    Outcome{Done: ids(10), Failed: []Failure{{At: at(10), Err: bad, Attempts: 4}}},
			want: []string{"done [10,20) with 1 entities 1 recorded",
				"done 10 with 1 entities after 4 attempts failed: bad"},
		},
		{
			name: "what is left comes before what has failed",
			o: Outcome{Done: ids(10), Next: at(11), NextPage: 100, GoesOn: true,
				Failed: []Failure{{At: at(10), Err: bad, Attempts: 1}}},
			want: []string{"done [10,11) with 1 entities 1 to retry", "pending [11,20) continued",
				"pending 10 waits until 1s after 1 attempts"},
		},
		{
			name: "an entity may have killed its process: it is tried at once, by itself",
			o:    Outcome{Done: ids(10), Failed: []Failure{{At: at(10), Suspected: true}}},
			want: []string{"done [10,20) with 1 entities 1 to retry", "pending 10 suspected"},
		},
		{
			name:   "a range of one entity records its own failure",
			change: func(r *Range) { r.Alone, r.End = true, nil },
			o:      Outcome{Done: ids(10), Failed: []Failure{{At: at(10), Err: bad, Attempts: 4}}},
			want:   []string{"done 10 with 1 entities after 4 attempts failed: bad"},
		},
		{
			name:   "a range of one entity can't be tried again by itself: it has a child",
			change: func(r *Range) { r.Alone, r.End = true, nil },
			o:      Outcome{Done: ids(10), Failed: []Failure{{At: at(10), Err: bad, Attempts: 2}}},
			want:   []string{"done 10 with 1 entities 1 to retry", "pending 10 waits until 4s after 2 attempts"},
		},
		{
			name:   "what a suspected page leaves is suspected, halved, and has a task",
			change: func(r *Range) { r.Solo, r.Narrowed = true, 2 },
			o:      Outcome{Done: ids(10), Next: at(11), NextPage: 100, GoesOn: true},
			want:   []string{"done [10,11) suspected with 1 entities", "pending [11,20) suspected halved to 1"},
		},
		{
			name: "the query is over many spaces: the range is in one, and the rest may not be",
			o: Outcome{Done: ids(10), Next: at(11), NextPage: 100, GoesOn: true, Space: &keyspace.Space{Kind: "K"},
				Beyond: true},
			want: []string{"done [10,11) in K with 1 entities", "pending [11,20) continued to survey"},
		},
		{
			name:   "the range is known to be in one space, and so is the rest",
			change: func(r *Range) { r.Kind = "L" },
			o:      Outcome{Done: ids(10), Next: at(11), NextPage: 100, GoesOn: true, Space: &kindL},
			want:   []string{"done [10,11) in L with 1 entities", "pending [11,20) continued in L"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := root()
			if c.change != nil {
				c.change(r)
			}
			c.o.Backoff, c.o.JobGeneration = backoff, 2
			children, f, err := r.Commit(c.o, noon)
			if !errors.Is(err, c.err) || c.err != nil {
				if !errors.Is(err, c.err) {
					t.Errorf("%v, want %v", err, c.err)
				}
				return
			}
			got := []string{said(r)}
			for i, child := range children {
				got = append(got, said(child))
				if child.ID != RangeID(r.ID, int64(i)) || child.RefusedIn != 2 && child.Alone {
					t.Errorf("child %d is %+v", i, child)
				}
				if continued := f.Next == child; continued != child.Continued || continued && child.Depth != r.Depth {
					t.Errorf("child %d is continued: %v, %+v", i, child.Continued, f)
				}
				if waits, ok := f.Waits[child.ID]; ok != (child.Alone && child.State == Pending) ||
					!waits.Equal(child.NotBefore) {
					t.Errorf("child %d waits until %v, want %v", i, waits, child.NotBefore)
				}
			}
			if strings.Join(got, "\n") != strings.Join(c.want, "\n") {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
			if int64(len(children)) != r.Children || r.Open != "" || !r.Done.Equal(noon) || r.RefusedIn != 2 {
				t.Errorf("%+v", r)
			}
			if f.CutOff != c.cutOff || r.Cut != (c.cutOff > 0) {
				t.Errorf("%d were cut off, want %d", f.CutOff, c.cutOff)
			}
			var single tally.Sum
			for _, child := range children {
				if child.Alone {
					single = single.Plus(child.SingleSum())
				}
			}
			alone := r.Retries+r.Recorded > 0
			if want := single.Bytes(); alone && string(r.Single) != string(want) || !alone && r.Single != nil {
				t.Errorf("single entities: %x, want %x", r.Single, want)
			}
		})
	}
}

// TestCommitIsWhole checks with random outcomes that each key of the range is in exactly one record
// after the commit: in the range's record, or in a child's.
func TestCommitIsWhole(t *testing.T) {
	for from := int64(10); from <= 20; from++ {
		for reached := 0; reached <= int(20-from) && reached <= 4; reached++ {
			for _, cuts := range [][]int64{nil, {13}, {15, 17}, {11}, {19}} {
				r := root()
				var o Outcome
				for i := range int64(reached) {
					o.Done = append(o.Done, at(from+i))
				}
				if next := from + int64(reached); next < 20 {
					o.Next = at(next)
				}
				start := int64(10)
				for _, c := range append(cuts, 20) {
					o.Cut = append(o.Cut, split.Piece{Start: at(start), End: at(c)})
					start = c
				}
				children, _, err := r.Commit(o, noon)
				if err != nil {
					t.Fatalf("%+v: %v", o, err)
				}
				for id := int64(10); id < 20; id++ {
					has := 0
					for _, child := range append(children, r) {
						if child.Contains(at(id)) {
							has++
						}
					}
					if has != 1 {
						t.Errorf("from %d, %d done, cut at %v: key %d is in %d ranges", from, reached, cuts, id, has)
					}
				}
			}
		}
	}
}

// TestLeave checks that LeftOf is set only if an undo's page could not restore some entities.
func TestLeave(t *testing.T) {
	r := &Range{Job: "j"}
	if r.Leave(nil); r.Left != nil || r.LeftOf != "" {
		t.Errorf("of nothing: %+v", r)
	}
	if r.Leave([]undolog.Left{{Why: "it was changed"}}); len(r.Left) == 0 || r.LeftOf != "j" {
		t.Errorf("of something: %+v", r)
	}
}

// TestCommitStores checks that a record stores what its page did. It also checks that the children
// get what is known about their entities, such as the mean size.
func TestCommitStores(t *testing.T) {
	r := root()
	r.Unsharded, r.EntitySize = 3, 1000
	o := Outcome{Done: ids(10, 11), Next: at(12), NextPage: 50, Each: time.Second, EntitySize: 2000, Processed: 2,
		Written: 3, Calls: 4, Conflicts: 5, Ran: 6, Yielded: 7, Full: true, Counters: []byte("c"), Wrote: []byte("w"),
		Left: []undolog.Left{{Why: "x"}}, Examples: []Example{{What: "delete"}},
		Cut: []split.Piece{{Start: at(10), End: at(15)}, {Start: at(15), End: at(20)}}}
	children, _, err := r.Commit(o, noon)
	if err != nil || len(children) != 2 {
		t.Fatalf("%d children, %v", len(children), err)
	}
	for i, c := range children {
		if c.PageSize != 50 || c.EntitySize != 2000 || c.Pace != time.Second {
			t.Errorf("child %d: pages of %d, %d bytes, %v", i, c.PageSize, c.EntitySize, c.Pace)
		}
	}
	got := fmt.Sprintf("%d entities, %d processed, %d written, %d calls, %d conflicts, %d ran, %d yielded, full %v, "+
		"counters %s, wrote %s, %d unsharded, left of %s, examples of %s, pace %v",
		r.Entities, r.Processed, r.Written, r.Calls, r.Conflicts, r.Ran, r.Yielded, r.Full,
		r.Counters, r.Wrote, r.Unsharded, r.LeftOf, r.ExamplesOf, r.Pace)
	const want = "2 entities, 2 processed, 3 written, 4 calls, 5 conflicts, 6 ran, 7 yielded, full true, " +
		"counters c, wrote w, 3 unsharded, left of j, examples of j, pace 1s"
	if got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	if string(r.Keys) != string(KeysDigest(o.Done)) || string(r.Seal) != string(r.Digest()) {
		t.Errorf("the digests of %+v", r)
	}
}

// TestDivide checks that, for a query over several kinds or namespaces, a range gets the kind and
// namespace of its piece.
func TestDivide(t *testing.T) {
	pieces := []split.Piece{{End: at(15), Space: keyspace.Space{Kind: "K"}},
		{Start: at(15), Space: keyspace.Space{Kind: "L"}}}
	for _, many := range []bool{false, true} {
		r := root()
		if children := r.Divide(pieces, 50, many, noon); (r.Kind == "K") != many || len(children) != 1 ||
			children[0].Kind != "L" || children[0].PageSize != 50 {
			t.Errorf("over several spaces %v: in %q, %+v", many, r.Kind, children)
		}
	}
}
