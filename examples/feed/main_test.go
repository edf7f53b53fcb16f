package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/blob/memblob"

	"github.com/scattermap/scattermap/emulator/google"
	"github.com/scattermap/scattermap/examples/internal/cloud"
	"github.com/scattermap/scattermap/export"
	"github.com/scattermap/scattermap/internal/nightly"
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

// TestFeeds writes feeds of several sizes and numbers of regions, and checks that they keep all
// rules.
func TestFeeds(t *testing.T) {
	for args, shards := range map[string][2]int{ // minimum and maximum number of shards of the availability feed
		"-merchants 1":                               {1, 1},
		"-merchants 2 -regions 3":                    {3, 3}, // one region has no merchants
		"-merchants 120 -max-bytes 10000":            {10, 20},
		"-merchants 300 -regions 2 -max-bytes 15000": {12, 20},
		"-merchants 8 -regions 4 -max-shards 4":      {4, 4},
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			r, err := feed(t, strings.Fields(args)...)
			if err != nil {
				t.Fatal(err)
			}
			if f := r.Feeds[2]; len(r.Feeds) != 3 || f.Shards < shards[0] || f.Shards > shards[1] {
				t.Errorf("%+v, want three feeds, the last one of %d to %d shards", r.Feeds, shards[0], shards[1])
			}
		})
	}
}

// TestText checks the text that a run without problems prints.
func TestText(t *testing.T) {
	c, err := parse([]string{"-merchants", "3", "-regions", "2"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := run(t.Context(), c, &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`(?m)^3 merchants in 2 region\(s\); files of up to 200000000 bytes, 20 at most\.$`,
		`(?m)^All feeds are of \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ, whatever changes later\.$`,
		`(?m)^availability feed, shards of 2: region-0 writes 0, region-1 writes 1\.$`,
		`(?m)^merchant +\d{10} +\d+ +2 +3 `,
		`(?m)^All rules of sharded feeds hold\.$`,
	} {
		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("it has no line like %q:\n%s", want, &out)
		}
	}
}

// TestWidth checks that the output for feeds with long nonces and many records fits into 80
// columns.
func TestWidth(t *testing.T) {
	r := Report{Feeds: []FeedReport{{Name: "availability_feed_1524606581", Kind: "availability",
		Nonce: "18446744073709551615", Timestamp: published, Shards: 20, Records: 20_000_000, Bytes: 3_999_000_000,
		Largest: 1.02}}}
	var out bytes.Buffer
	if err := r.print(&out, false); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out.String()) {
		if n := len(strings.TrimSpace(line)); n > 80 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

// A written is a file of a feed, decoded as a reader would.
type written struct {
	Metadata     map[string]json.RawMessage `json:"metadata"`
	Merchant     []map[string]any           `json:"merchant"`
	Service      []map[string]any           `json:"service"`
	Availability []struct {
		Availability []map[string]any `json:"availability"`
	} `json:"service_availability"`
}

// readFeeds reads all files of feeds, by name.
func readFeeds(t *testing.T, dir string) map[string]written {
	t.Helper()
	files := make(map[string]written)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".json.gz") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		z, err := gzip.NewReader(bytes.NewReader(text))
		if err != nil {
			return err
		}
		var w written
		err = json.NewDecoder(z).Decode(&w)
		files[d.Name()] = w
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestWritten reads the files of two regions as another program would. It checks the documented
// metadata, the recommended names, and the fields of records. All feeds must have the same time and
// data of that time, and each must have its own nonce.
func TestWritten(t *testing.T) {
	dir, before := t.TempDir(), time.Now().Unix()
	if _, err := feed(t, "-merchants", "5", "-regions", "2", "-out", dir); err != nil {
		t.Fatal(err)
	}
	nonces, times, open := make(map[string]string), make(map[string]bool), make(map[string]int)
	files, services := readFeeds(t, dir), 0
	for name, f := range files {
		m := shardName.FindStringSubmatch(name)
		if m == nil {
			t.Fatalf("a file is named %q", name)
		}
		var number int
		fmt.Sscanf(m[3], "%d", &number)
		for field, want := range map[string]string{"processing_instruction": `"PROCESS_AS_COMPLETE"`,
			"shard_number": fmt.Sprint(number - 1), "total_shards": "2", "generation_timestamp": m[2]} {
			if got := string(f.Metadata[field]); got != want {
				t.Errorf("the %s of %s is %s, want %s", field, name, got, want)
			}
		}
		nonce := string(f.Metadata["nonce"])
		kind := nonces[nonce]
		if !regexp.MustCompile(`^"[1-9][0-9]*"$`).MatchString(nonce) || kind != "" && kind != m[1] {
			t.Errorf("the nonce of %s is %s, as is %q's: want a different string of digits for each feed", name, nonce,
				kind)
		}
		nonces[nonce], times[m[2]] = m[1], true
		services += len(f.Service)
		wantNothingOfLater(t, name, f)
		wantAvailability(t, name, f, open)
	}
	// The first slot of the first merchant in each region was booked after the time of the feeds.
	if len(files) != 6 || services != 10 || len(nonces) != 3 || len(times) != 1 ||
		open["merchant-000000"] != 2 || open["merchant-000001"] != 3 {
		t.Errorf("%d files, %d services, %d nonces, %d times, spots %v, want 6, 10, 3, 1, and 2 and 3 of the first "+
			"merchants", len(files), services, len(nonces), len(times), open)
	}
	for at := range times {
		if at < fmt.Sprint(before) || at > fmt.Sprint(time.Now().Unix()) {
			t.Errorf("the time of the feeds is %s, want one between %d and now", at, before)
		}
	}
}

// wantNothingOfLater checks that a file has nothing that was written after the time of the feeds.
func wantNothingOfLater(t *testing.T, name string, f written) {
	t.Helper()
	for _, r := range f.Merchant {
		if strings.HasPrefix(r["merchant_id"].(string), "opened-later") {
			t.Errorf("%s has a merchant of later: %v", name, r)
		}
	}
	for _, r := range f.Service {
		micros := r["price"].(map[string]any)["price_micros"].(float64)
		if strings.HasPrefix(r["merchant_id"].(string), "opened-later") || micros == laterCents*10_000 {
			t.Errorf("%s has a service of later: %v", name, r)
		}
	}
}

// wantAvailability checks the types in the records of a file. It adds the free places of today's
// slots of the first service to open.
func wantAvailability(t *testing.T, name string, f written, open map[string]int) {
	t.Helper()
	for _, a := range f.Availability {
		for _, r := range a.Availability {
			for field, zero := range map[string]any{"spots_total": 0.0, "spots_open": 0.0, "duration_sec": 0.0,
				"start_sec": 0.0, "service_id": "", "merchant_id": "", "confirmation_mode": ""} {
				if fmt.Sprintf("%T", r[field]) != fmt.Sprintf("%T", zero) {
					t.Fatalf("a record of %s is %v, want %s like %#v", name, r, field, zero)
				}
			}
			if r["service_id"] == "service-0" && r["start_sec"].(float64) < float64(time.Now().Unix()+24*3600) {
				open[r["merchant_id"].(string)] = int(r["spots_open"].(float64))
			}
		}
	}
}

// TestAgain writes two sets of feeds to one folder. Each set must be complete, and the second one
// must have its own settings. In the two sets, a merchant is in different shards.
func TestAgain(t *testing.T) {
	dir := t.TempDir()
	for i, regions := range []string{"1", "2"} {
		r, err := feed(t, "-merchants", fmt.Sprint(3-i), "-regions", regions, "-out", dir)
		if err != nil || len(r.Feeds) != 3*(i+1) {
			t.Errorf("%+v, %v, want %d feeds", r, err, 3*(i+1))
		}
	}
	shards := make(map[string]string) // the shard of a merchant, by the number of shards in the feed
	for _, f := range readFeeds(t, dir) {
		for _, r := range f.Merchant {
			if r["merchant_id"] == "merchant-000001" {
				shards[string(f.Metadata["total_shards"])] += string(f.Metadata["shard_number"])
			}
		}
	}
	if want := map[string]string{"1": "0", "2": "1"}; !maps.Equal(shards, want) {
		t.Errorf("the shards of a merchant, by how many there are, are %v, want %v", shards, want)
	}
}

// TestGoogle writes feeds from Google's Firestore emulator if it is installed, and at night also
// from the classic emulator.
func TestGoogle(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short leaves Google's emulators out")
	}
	for _, name := range []string{"google", "firestore"} {
		t.Run(name, func(t *testing.T) {
			if name == "google" {
				nightly.Leave(t)
			}
			t.Parallel()
			_, err := feed(t, "-datastore", name, "-merchants", fmt.Sprint(testflag.Size(t, 0, 20, 50)), "-regions",
				fmt.Sprint(testflag.Size(t, 0, 1, 2))) // each region has an emulator of its own
			if errors.Is(err, google.ErrNotInstalled) {
				t.Skipf("left out: %v", err)
			}
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// inBubble runs a test in virtual time, with a region whose database has some merchants.
func inBubble(t *testing.T, merchants int, maxBytes int64, o *mappertest.Options,
	test func(t *testing.T, w *mappertest.Env, r *region, bucket *blob.Bucket)) {
	bucket := memblob.OpenBucket(nil)
	defer bucket.Close()
	all, err := newFeeds(bucket, maxBytes)
	if err != nil {
		t.Fatal(err)
	}
	mappertest.Run(t, all.mappers(), o, func(t *testing.T, w *mappertest.Env) {
		if err := fill(t.Context(), w.Client, config{merchants: merchants, regions: 1}, 0, time.Now()); err != nil {
			t.Fatal(err)
		}
		r := &region{name: "late", all: all, on: &cloud.Cloud{Client: w.Client, Engine: w.Engine},
			runs: make([]*export.Run, len(kinds)), need: make([]int, len(kinds))}
		test(t, w, r, bucket)
	})
}

var plain = func() config {
	c, err := parse(nil, io.Discard)
	if err != nil {
		panic(err)
	}
	return c
}()

// TestLateRegion lets a region read its database long after the time of the feeds. Within an hour
// this must work. Later it needs point-in-time recovery, and a time that is a whole minute. Without
// that, an error must say so, and nothing may be written. After a region has counted its shards, it
// can write them at any time, because it does not read the database again.
func TestLateRegion(t *testing.T) {
	const gone = "can't be read as it was"
	for what, test := range map[string]struct {
		recovery     bool
		second       int           // the second in the time of the feeds
		count, write time.Duration // delays before the region counts and writes
		want         string
	}{
		"within the hour":               {false, 7, 55 * time.Minute, 0, ""},
		"written a day later":           {false, 7, 55 * time.Minute, 24 * time.Hour, ""},
		"after the hour":                {false, 0, 61 * time.Minute, 0, gone},
		"with recovery":                 {true, 0, 20 * time.Hour, time.Hour, ""},
		"with recovery, no full minute": {true, 7, 20 * time.Hour, 0, gone},
		"after a week":                  {true, 0, 8 * 24 * time.Hour, 0, gone},
	} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, 3, maxShardBytes, &mappertest.Options{PointInTimeRecovery: test.recovery},
				func(t *testing.T, w *mappertest.Env, r *region, bucket *blob.Bucket) {
					at := time.Now().Truncate(time.Minute).Add(time.Minute + time.Duration(test.second)*time.Second)
					time.Sleep(time.Until(at) + time.Second)
					set := newFeedSet(at)
					if err := meddle(t.Context(), w.Client, 0); err != nil {
						t.Fatal(err)
					}
					time.Sleep(test.count)
					err := r.start(t.Context(), plain, set)
					if err == nil {
						err = r.count(t.Context())
					}
					if test.want != "" {
						if err == nil || !strings.Contains(err.Error(), test.want) {
							t.Errorf("the count: %v, want an error with %q", err, test.want)
						}
						checkNothing(t, bucket)
						return
					}
					if err != nil {
						t.Fatal(err)
					}
					time.Sleep(test.write)
					agreed, err := agree(set, []*region{r}, maxShards)
					if err == nil {
						err = r.write(t.Context(), agreed[0])
					}
					if err != nil {
						t.Fatal(err)
					}
					report := checked(t, copied(t, bucket))
					report.expect(config{merchants: 3}, set)
					if len(report.Problems) > 0 {
						t.Errorf("the problems are %q", report.Problems)
					}
				})
		})
	}
}

// checkNothing checks that a bucket has no file of a feed.
func checkNothing(t *testing.T, bucket *blob.Bucket) {
	t.Helper()
	for it := bucket.List(nil); ; {
		found, err := it.Next(t.Context())
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if shardName.MatchString(filepath.Base(found.Key)) {
			t.Errorf("%s was written", found.Key)
		}
	}
}

// copied copies the blobs of a bucket to a folder, and returns the folder.
func copied(t *testing.T, bucket *blob.Bucket) string {
	t.Helper()
	dir := t.TempDir()
	for it := bucket.List(nil); ; {
		found, err := it.Next(t.Context())
		if errors.Is(err, io.EOF) {
			return dir
		}
		var content []byte
		if err == nil {
			content, err = bucket.ReadAll(t.Context(), found.Key)
		}
		path := filepath.Join(dir, found.Key)
		err = errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, 0o644))
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestOutlasted lets a region read for longer than the database keeps the time. The region must
// fail and say why, and no region may write a shard. New feeds, with a new time and new nonces,
// must succeed.
func TestOutlasted(t *testing.T) {
	inBubble(t, 20, maxShardBytes, nil, func(t *testing.T, w *mappertest.Env, r *region, bucket *blob.Bucket) {
		time.Sleep(time.Second)
		set := newFeedSet(time.Now().Truncate(time.Second))
		time.Sleep(time.Second)
		c := plain
		c.Page = 1
		if err := r.start(t.Context(), c, set); err != nil {
			t.Fatal(err)
		}
		job := r.runs[2].Jobs()[0]
		if err := job.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(61 * time.Minute)
		if err := job.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		err := r.count(t.Context())
		if err == nil || !strings.Contains(err.Error(), "can't be read as it was") {
			t.Errorf("the count: %v, want an error that says the time is gone", err)
		}
		checkNothing(t, bucket)
		if err := discard(t.Context(), []*region{r}); err != nil {
			t.Errorf("discard: %v", err)
		}
		set = newFeedSet(time.Now().Truncate(time.Second).Add(-time.Second))
		if err := r.start(t.Context(), plain, set); err != nil {
			t.Fatal(err)
		}
		if err := r.count(t.Context()); err != nil {
			t.Fatal(err)
		}
		agreed, err := agree(set, []*region{r}, maxShards)
		if err == nil {
			err = r.write(t.Context(), agreed[0])
		}
		if err != nil {
			t.Fatal(err)
		}
		report := checked(t, copied(t, bucket))
		report.expect(config{merchants: 20}, set)
		if len(report.Problems) > 0 {
			t.Errorf("the problems are %q", report.Problems)
		}
	})
}

// TestAgree checks the numbers of the regions' shards. They must have no gaps, for any number that
// each region needs, up to the limit.
func TestAgree(t *testing.T) {
	needing := func(needs ...int) (regions []*region) {
		for i, n := range needs {
			regions = append(regions, &region{name: fmt.Sprint("region-", i), need: []int{1, 1, n}})
		}
		return regions
	}
	set := newFeedSet(time.Unix(published, 0))
	for _, needs := range [][]int{{1}, {20}, {7, 5}, {1, 18, 1}, {10, 10}, {19, 1}, {1, 1, 1, 1, 16}} {
		agreed, err := agree(set, needing(needs...), 20)
		if err != nil {
			t.Errorf("%v: %v", needs, err)
			continue
		}
		first, total := 0, 0
		for _, n := range needs {
			total += n
		}
		for i, n := range needs {
			if g := agreed[i][2]; g != (Generation{set.nonces[2], published, first, total}) {
				t.Errorf("%v: region %d has %+v, want the shards from %d on, of %d", needs, i, g, first, total)
			}
			first += n
		}
	}
	_, err := agree(set, needing(12, 9), 20)
	const want = "needs 21 shards (region-0 12, region-1 9), and -max-shards is 20"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("21 shards of 20: %v", err)
	}
}

// TestBalanced writes 20,000 records to files of up to 200 kB, while calls fail and processes
// crash.
func TestBalanced(t *testing.T) {
	const most = 200_000
	seed := testflag.Seed(t)
	inBubble(t, 1_000, most, &mappertest.Options{Seed: seed, Workers: 30},
		func(t *testing.T, w *mappertest.Env, r *region, bucket *blob.Bucket) {
			set := newFeedSet(time.Now().Add(time.Second).Truncate(time.Second))
			time.Sleep(2 * time.Second)
			x, ctx := r.all.exports[2], t.Context()
			c := plain
			c.maxBytes = most
			early := Generation{Timestamp: set.at.Unix()}
			run, err := x.Start(ctx, w.Engine, queries(set.at)[2], early, &export.StartOptions{Hold: true,
				StartOptions: mapper.StartOptions{ID: "feed", PageSize: c.pageSize()}})
			if err != nil {
				t.Fatal(err)
			}
			inTrouble := func(f func() error) {
				t.Helper()
				w.ResumeFaults()
				err := f()
				w.PauseFaults()
				if err != nil { // an injected fault has hit a call of the test
					err = f()
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			g := Generation{Nonce: set.nonces[2], Timestamp: set.at.Unix()}
			inTrouble(func() error { g.Total, err = x.Count(ctx, run); return err })
			inTrouble(func() error { return x.Write(ctx, run, g.Total, g) })
			inTrouble(func() error { _, err := run.Wait(ctx); return err })
			report, err := checkFolder(copied(t, bucket), most, maxShards, time.Now())
			if err != nil || len(report.Problems) > 0 || len(report.Feeds) != 1 {
				t.Fatalf("%+v, %v", report, err)
			}
			if f := report.Feeds[0]; f.Records != 20_000 || f.Shards < 2 || f.Largest > 1.15 {
				t.Errorf("%+v, want 20,000 records in several shards, none above 1.15 times the mean", f)
			}
		})
}

// TestTooLarge checks that a feed that needs too many files is refused before any file is written.
func TestTooLarge(t *testing.T) {
	dir := t.TempDir()
	_, err := feed(t, "-merchants", "300", "-max-bytes", "20000", "-max-shards", "5", "-regions", "2", "-out", dir)
	if err == nil || !regexp.MustCompile(`availability feed needs \d+ shards \(region-0 \d+, region-1 \d+\), and `+
		`-max-shards is 5: nothing was written`).MatchString(err.Error()) {
		t.Errorf("%v, want an error that names the shards of each region, and the maximum", err)
	}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		// the manifest only marks the feed as discarded
		if err == nil && !d.IsDir() && d.Name() != export.ManifestName {
			t.Errorf("there is %s", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestLimits calculates the number of files for the real limits. With parts of a typical size, 1 GB
// fits into 6 files of up to 200 MB, and 2.9 GB fit into 15. More than 4 GB do not fit into 20
// files.
func TestLimits(t *testing.T) {
	m := Metadata{ShardNumber: 0, TotalShards: 2, GenerationTimestamp: 1574117613}
	if got := kinds[2].shardName(m); got != "availability_feed_1574117613_001_of_002.json.gz" {
		t.Errorf("a shard is named %q", got)
	}
	for _, test := range []struct {
		bytes int64
		want  int
	}{
		{0, 1}, {maxShardBytes - 20_000, 1}, {maxShardBytes + 1, 2}, {999_900_000, 5}, {1_000_000_000, 6},
		{2_900_000_000, 15}, {3_999_000_000, 20}, {4_000_000_001, 21},
	} {
		if got := export.FilesFor(test.bytes, 10_000, maxShardBytes); got != test.want {
			t.Errorf("%d bytes take %d files, want %d", test.bytes, got, test.want)
		}
	}
}

// TestFlags checks that errors name flags with impossible values. If the feeds can't fit, the
// command must fail before it does any work.
func TestFlags(t *testing.T) {
	for args, want := range map[string]string{
		"-merchants 0":                        "-merchants",
		"-regions 11":                         "-regions",
		"-regions 5 -max-shards 4":            "-max-shards has to be in [5, 999]",
		"-max-bytes 1":                        "-max-bytes",
		"-max-bytes 200000001":                "-max-bytes",
		"-max-shards 1000":                    "-max-shards",
		"-datastore cloud":                    `-datastore is "cloud"`,
		"more":                                `"more"`,
		"-merchants 1000 -max-bytes 10000":    "20 shards of up to 10000 bytes hold 200000: lower -merchants, or raise",
		"-merchants 1000000 -max-bytes 10000": "1000000 merchants have 20000000 times",
	} {
		if _, err := parse(strings.Fields(args), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", args, err, want)
		}
	}
}
