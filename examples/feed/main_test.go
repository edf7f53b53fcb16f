package main

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/export"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
)

// feed runs the command, and returns its report.
func feed(t *testing.T, args ...string) (r Report, err error) {
	t.Helper()
	c, err := parse(append(args, "-json"), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := run(t.Context(), c, &out); err != nil {
		return r, fmt.Errorf("%w\n%s", err, &out)
	}
	return r, json.Unmarshal(out.Bytes(), &r)
}

func TestFeeds(t *testing.T) {
	for _, args := range []string{"-merchants 1", "-merchants 100 -regions 3", "-merchants 200 -max-bytes 20000"} {
		t.Run(args, func(t *testing.T) {
			if _, err := feed(t, strings.Fields(args)...); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestGoogle writes feeds from Google's emulators, where they are installed.
func TestGoogle(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short leaves Google's emulators out")
	}
	for _, name := range []string{"google", "firestore"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := feed(t, "-datastore", name, "-merchants", "50")
			if errors.Is(err, emulator.ErrNotInstalled) {
				t.Skipf("left out: %v", err)
			}
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestBalanced writes 100,000 records to files of up to 1 MB, while calls fail and workers crash.
func TestBalanced(t *testing.T) {
	const most = 1_000_000
	dir, c := t.TempDir(), config{merchants: 5_000, regions: 1}
	bucket, err := openFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer bucket.Close()
	all := newFeeds(bucket, most, maxShards)
	mappertest.Run(t, all.mappers(), &mappertest.Options{Seed: testflag.Seed(t), Workers: 30}, func(t *testing.T, w *mappertest.World) {
		g := Generation{Nonce: 7, Timestamp: time.Now().Unix()}
		if err := fill(t.Context(), w.Client, c, 0, g); err != nil {
			t.Fatal(err)
		}
		run, err := all[2].Start(t.Context(), w.Engine, queries()[2], g, &export.StartOptions{StartOptions: mapper.StartOptions{ID: "feed"}})
		if err != nil {
			t.Fatal(err)
		}
		w.Trouble()
		if _, err = run.Wait(t.Context()); err != nil {
			w.Calm()
			_, err = run.Wait(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	r, err := checkFolder(dir, most, maxShards)
	if err != nil || len(r.Problems) > 0 || len(r.Feeds) != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	if f := r.Feeds[0]; f.Records != 100_000 || f.Shards < 2 || f.Largest > 1.15 {
		t.Errorf("%+v, want 100,000 records in several shards, of which none has more than 1.15 times the mean", f)
	}
}

// TestTooLarge has a feed that would need too many files be refused before one is written.
func TestTooLarge(t *testing.T) {
	dir := t.TempDir()
	_, err := feed(t, "-merchants", "300", "-max-bytes", "20000", "-max-shards", "3", "-out", dir)
	if err == nil || !strings.Contains(err.Error(), "Options.MaxFiles is 3") {
		t.Errorf("%v, want an error that names the maximum", err)
	}
	found, _ := filepath.Glob(dir + "/*/availability*/*/*.gz")
	if len(found) > 0 {
		t.Errorf("there are %q", found)
	}
}

// TestLimits has the arithmetic of the real limits: 2.9 GB fit 15 files of up to 200 MB, and more than 4 GB fit none of 20.
func TestLimits(t *testing.T) {
	if k := kinds[2]; k.shardName(Metadata{ShardNumber: 0, TotalShards: 2, GenerationTimestamp: 1574117613}) != "availability_feed_1574117613_001_of_002.json.gz" {
		t.Errorf("a shard is named %q", k.shardName(Metadata{TotalShards: 2, GenerationTimestamp: 1574117613}))
	}
	for _, test := range []struct {
		bytes int64
		want  int
	}{{0, 1}, {maxShardBytes - 20_000, 1}, {maxShardBytes + 1, 2}, {2_900_000_000, 15}, {3_999_000_000, 20}, {4_000_000_001, 21}} {
		if got := export.FilesFor(test.bytes, 10_000, maxShardBytes); got != test.want {
			t.Errorf("%d bytes take %d files, want %d", test.bytes, got, test.want)
		}
	}
}

// TestCheck has the validator find each rule that is broken.
func TestCheck(t *testing.T) {
	const good = `{"metadata":{"processing_instruction":"PROCESS_AS_COMPLETE","shard_number":0,"total_shards":1,"nonce":5,"generation_timestamp":1574117613},"merchant":[{"merchant_id":"a"},{"merchant_id":"b"}]}`
	const name = "merchant_feed_1574117613_001_of_001.json.gz"
	for what, test := range map[string]struct{ name, from, to, want string }{
		"nothing":          {"", "", "", ""},
		"the name":         {"merchants.json.gz", "", "", "its name"},
		"an unknown feed":  {"people_feed_1574117613_001_of_001.json.gz", "", "", `"people"`},
		"the number":       {"merchant_feed_1574117613_002_of_001.json.gz", "", "", "not what its name says"},
		"the time":         {"", "1574117613", "1574117614", "not what its name says"},
		"the instruction":  {"", "COMPLETE", "INCREMENTAL", "processing_instruction"},
		"a gap":            {"merchant_feed_1574117613_001_of_002.json.gz", `"total_shards":1`, `"total_shards":2`, "no shard_number 1"},
		"a record twice":   {"", `"b"`, `"a"`, "has a record 2 times"},
		"no nonce":         {"", `,"nonce":5`, "", "no nonce"},
		"a null nonce":     {"", `"nonce":5`, `"nonce":null`, "nonce: it is null"},
		"a nonce of 0":     {"", `"nonce":5`, `"nonce":0`, "nonce is 0"},
		"no shard_number":  {"", `"shard_number":0,`, "", "no shard_number"},
		"another case":     {"", `"shard_number"`, `"Shard_Number"`, `"Shard_Number"`},
		"a property more":  {"", `"nonce":5`, `"nonce":5,"x":1`, `"x"`},
		"a property twice": {"", `"nonce":5`, `"nonce":4,"nonce":5`, `"nonce" twice`},
		"no list":          {"", `,"merchant":[{"merchant_id":"a"},{"merchant_id":"b"}]`, "", `no "merchant"`},
		"a null list":      {"", `[{"merchant_id":"a"},{"merchant_id":"b"}]`, "null", "want ["},
		"a number":         {"", `{"merchant_id":"a"}`, "1", "record 0 is no object"},
		"a null":           {"", `{"merchant_id":"b"}`, "null", "record 1 is no object"},
		"no UTF-8":         {"", `"a"`, "\"\xff\"", "record 0 is no UTF-8"},
		"another folder":   {"_parts", "", "", "its name"},
		"another end":      {"merchant_feed_1574117613_001_of_001.JSON.GZ", "", "", "its name"},
		"another list":     {"", `"merchant":`, `"merchants":`, `"merchants"`},
		"half a record":    {"", `"b"}]}`, `"b"`, "EOF"},
		"something more":   {"", `"b"}]}`, `"b"}]} {}`, "behind its value"},
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			file := name
			if test.name != "" {
				file = test.name
			}
			writeGzip(t, filepath.Join(dir, file), strings.Replace(good, test.from, test.to, 1))
			r, err := checkFolder(dir, maxShardBytes, maxShards)
			if err != nil {
				t.Fatal(err)
			}
			problems := strings.Join(r.Problems, "\n")
			if test.want == "" && problems != "" || !strings.Contains(problems, test.want) {
				t.Errorf("the problems are %q, want %q", problems, test.want)
			}
		})
	}
	uneven, of2 := t.TempDir(), strings.Replace(good, `"total_shards":1`, `"total_shards":2`, 1)
	var many []string
	for i := range 20_000 {
		many = append(many, fmt.Sprintf(`{"merchant_id":"%x"}`, sha256.Sum256(fmt.Append(nil, i))))
	}
	writeGzip(t, filepath.Join(uneven, "merchant_feed_1574117613_001_of_002.json.gz"), strings.Replace(of2, `{"merchant_id":"b"}`, strings.Join(many, ","), 1))
	writeGzip(t, filepath.Join(uneven, "merchant_feed_1574117613_002_of_002.json.gz"), strings.Replace(strings.Replace(of2, `"a"`, `"c"`, 1), `"shard_number":0`, `"shard_number":1`, 1))
	if r, err := checkFolder(uneven, maxShardBytes, maxShards); err != nil || len(r.Problems) != 1 || !strings.Contains(r.Problems[0], "not filled evenly") {
		t.Errorf("a feed of one large and one small shard: %+v, %v", r, err)
	}
	if r, err := checkFolder(t.TempDir(), 1, 1); err != nil || len(r.Problems) != 1 {
		t.Errorf("an empty folder: %+v, %v", r, err)
	}
}

func writeGzip(t *testing.T, path, text string) {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	io.WriteString(z, text)
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestFlags(t *testing.T) {
	for args, want := range map[string]string{
		"-merchants 0":     "-merchants",
		"-regions 11":      "-regions",
		"-max-bytes 1":     "-max-bytes",
		"-max-shards 1000": "-max-shards",
		"-datastore cloud": `-datastore is "cloud"`,
		"more":             `"more"`,
	} {
		if _, err := parse(strings.Fields(args), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", args, err, want)
		}
	}
}
