package main

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/scattermap/scattermap/mapper"
)

// TestQueryOfFlags starts jobs by the flags that choose entities. It compares the jobs' queries with
// what the flags say.
func TestQueryOfFlags(t *testing.T) {
	newService(t, 10)
	before := time.Now().UTC().Truncate(time.Second)
	for flags, want := range map[string]mapper.Query{
		"--kind Account":                                            {Kind: "Account"},
		"--kinds Account,Ghost":                                     {Kinds: []string{"Account", "Ghost"}},
		"--kind Account --namespace ''":                             {Kind: "Account"},
		"--kind Account --namespaces b,a":                           {Kind: "Account", Namespaces: []string{"a", "b"}},
		"--kind Account --namespaces ,a":                            {Kind: "Account", Namespaces: []string{"", "a"}},
		"--kind Account --all-namespaces":                           {Kind: "Account", AllNamespaces: true},
		"--kind Account --shard-by Balance":                         {Kind: "Account", ShardBy: "Balance"},
		"--kind Account --keys-only":                                {Kind: "Account", KeysOnly: true},
		"--kind Account --read-time " + before.Format(time.RFC3339): {Kind: "Account", ReadTime: before},
	} {
		out, errs, code := command(t, "", words("start count --allow-empty --allow-overlap -o json "+flags)...)
		var status struct{ Query mapper.Query }
		err := json.Unmarshal([]byte(out), &status)
		if err != nil || code != 0 || !reflect.DeepEqual(status.Query, want) {
			t.Errorf("%s: %d %s %v %+v, want %+v", flags, code, errs, err, status.Query, want)
		}
		if _, errs, code := command(t, "", words("plan count --allow-empty "+flags)...); code != 0 {
			t.Errorf("plan %s: %d %s", flags, code, errs)
		}
	}
}

// TestAttemptsOfFlags starts a job with flags for its attempts and times, and reads its settings.
func TestAttemptsOfFlags(t *testing.T) {
	newService(t, 10)
	broken.Store(true)
	t.Cleanup(func() { broken.Store(false) })
	out, errs, code := command(t, "", words("start add-credit --kind Account --params '{\"Amount\": 1}' -o json "+
		"--attempts 7 --page-time 2s --entity-timeout 5s")...)
	var status struct{ Settings mapper.StartOptions }
	if err := json.Unmarshal([]byte(out), &status); err != nil || code != 0 {
		t.Fatalf("%d %s %v", code, errs, err)
	}
	s := status.Settings
	if s.Retries.MaxAttempts != 7 || s.PageTime != 2*time.Second || s.EntityTimeout != 5*time.Second {
		t.Errorf("%+v", s)
	}
}
