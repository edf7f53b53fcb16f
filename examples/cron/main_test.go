package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
)

// cron runs the command, and returns its result.
func cron(t *testing.T, args ...string) (r result, err error) {
	t.Helper()
	c, err := parse(append(args, "-json"), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := run(t.Context(), c, &out); err != nil {
		return r, err
	}
	return r, json.Unmarshal(out.Bytes(), &r)
}

func TestNights(t *testing.T) {
	for _, overlap := range overlaps {
		for _, n := range []int{1, 100, 2000} {
			t.Run(fmt.Sprintf("%s/%d", overlap, n), func(t *testing.T) {
				r, err := cron(t, "-overlap", overlap, "-subscriptions", fmt.Sprint(n), "-nights", "4")
				if err != nil {
					t.Fatal(err)
				}
				runs, second := 4, map[string]string{"skip": "skipped", "queue": "queued", "replace": "started"}[overlap]
				if overlap == "skip" {
					runs = 3
				}
				if n == 1 && overlap != "skip" {
					runs = r.Runs // the first run may replace nothing
				}
				if r.Runs != runs || r.Calls != 4*calls || fmt.Sprint(r.Became) != fmt.Sprintf("[started %s started started]", second) || r.Refused != 1 {
					t.Errorf("%+v, want %d runs", r, runs)
				}
			})
		}
	}
}

// TestGoogle has nights pass on Google's emulators, where they are installed.
func TestGoogle(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short leaves Google's emulators out")
	}
	for _, name := range []string{"google", "firestore"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := cron(t, "-datastore", name, "-subscriptions", "300", "-nights", "2")
			if errors.Is(err, emulator.ErrNotInstalled) {
				t.Skipf("left out: %v", err)
			}
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestShards has every key be in one of n shards, each of which is split in two when there are twice as many.
func TestShards(t *testing.T) {
	var sizes [4]int
	for i := range 10_000 {
		key := datastore.IDKey("Subscription", int64(i+1), nil)
		of4, of8 := shardOf(key, 4), shardOf(key, 8)
		if of4 < 0 || of4 >= 4 || of8%4 != of4 {
			t.Fatalf("%v is in shard %d of 4, and in shard %d of 8", key, of4, of8)
		}
		sizes[of4]++
	}
	for i, n := range sizes {
		if n < 2300 || n > 2700 {
			t.Errorf("shard %d has %d of 10,000 keys", i, n)
		}
	}
}

// TestShardsStopped has the shards end when they are told to.
func TestShardsStopped(t *testing.T) {
	e := emulator.ForTest(t, nil)
	client, err := e.Datastore(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := fill(t.Context(), client, 500); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := visitByShards(ctx, client, firstNight, 500); err == nil {
		t.Error("it was told to end before it began, and says nothing")
	}
}

func TestFlags(t *testing.T) {
	for args, want := range map[string]string{
		"-subscriptions 0": "-subscriptions",
		"-nights 101":      "-nights",
		"-overlap wait":    `-overlap is "wait"`,
		"-workers 0":       "-workers",
		"more":             `"more"`,
	} {
		if _, err := parse(strings.Fields(args), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", args, err, want)
		}
	}
}
