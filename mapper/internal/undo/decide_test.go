package undo

import (
	"testing"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
)

// TestDecide tries all combinations of an entity's versions before the commit, just after it, and
// now. The commit has version 5. Version 0 means that the entity does not exist.
func TestDecide(t *testing.T) {
	version := func(v int64) *pb.EntityResult {
		if v == 0 {
			return nil
		}
		return &pb.EntityResult{Version: v}
	}
	for _, c := range []struct {
		name              string
		before, with, now int64
		want              decision
		asked             bool // whether decide must call with
	}{
		{"changed", 3, 5, 5, undone, false},
		{"put", 0, 5, 5, undone, false},
		{"deleted", 3, 0, 0, undone, true},
		{"not written", 3, 3, 3, nothing, false},
		{"never there", 0, 0, 0, nothing, false},
		{"changed since", 3, 5, 8, changed, true},
		{"deleted since", 3, 5, 0, changed, true},
		{"deleted, and put since", 3, 0, 8, changed, true},
		{"not written, and changed since", 3, 3, 8, nothing, true},
		{"not written, and deleted since", 3, 3, 0, nothing, true},
		{"not there, and put since", 0, 0, 8, nothing, true},
		{"put, and deleted since", 0, 5, 0, nothing, false},
		{"not written, but by others in the same microsecond", 3, 6, 6, nothing, true},
	} {
		asked := false
		got := decide(5, version(c.before), version(c.now), func() *pb.EntityResult {
			asked = true
			return version(c.with)
		})
		if got != c.want || asked != c.asked {
			t.Errorf("%s: %d, asked %v, want %d, %v", c.name, got, asked, c.want, c.asked)
		}
	}
}
