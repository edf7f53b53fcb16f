package main

import "testing"

// TestExecutor checks that package executor can be read from top to bottom: in the best order of
// its files, no file uses something from an earlier file.
func TestExecutor(t *testing.T) {
	names, uses, err := read("../../mapper/internal/executor")
	if err != nil {
		t.Fatal(err)
	}
	order, upwards := best(uses)
	if len(order) != len(names) || len(names) < 10 || upwards > 0 {
		t.Errorf("%d of %d files have an order, and %d references point upwards: see go run ./internal/arrows "+
			"./mapper/internal/executor", len(order), len(names), upwards)
	}
	if names[order[0]] != "delivery.go" {
		t.Errorf("%s is the first file, want delivery.go", names[order[0]])
	}
}

// TestBest checks three files that use each other in a circle. In the best order, only one
// reference points upwards.
func TestBest(t *testing.T) {
	uses := [][][]string{{nil, {"b"}, nil}, {nil, nil, {"c"}}, {{"a"}, nil, nil}}
	if _, upwards := best(uses); upwards != 1 {
		t.Errorf("%d upwards, want 1", upwards)
	}
}
