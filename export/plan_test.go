package export

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/scattermap/scattermap/internal/testflag"
)

// TestEven checks that every part is in exactly one stretch, and that the sizes of stretches differ
// by at most one part.
func TestEven(t *testing.T) {
	rng := testflag.Rand(t)
	for range 300 {
		n, files := rng.IntN(300), 1+rng.IntN(20)
		parts, total, largest := randomSizes(rng, n)
		if rng.IntN(10) == 0 { // no entity has a record, so all parts are empty
			total, largest = 0, 0
			for i := range parts {
				parts[i].records, parts[i].bytes = 0, 0
			}
		}
		all := even(parts, files)
		sum := stretch{}
		seen := 0
		for i, s := range all {
			in := stretch{}
			for _, p := range parts {
				if s.holds(p.name) {
					in.Records += p.records
					in.Bytes += p.bytes
					seen++
				}
			}
			if in.Bytes != s.Bytes || in.Records != s.Records {
				t.Fatalf("file %d of %d, [%q, %q): %d bytes and %d records are there, want %d and %d", i, files, s.From,
					s.To, in.Bytes, in.Records, s.Bytes, s.Records)
			}
			if share := total / int64(files); s.Bytes > share+largest+1 || s.Bytes < share-largest-1 {
				t.Fatalf("file %d of %d has %d bytes, an even share is %d, and the largest part %d", i, files, s.Bytes,
					share, largest)
			}
			sum.Bytes += s.Bytes
		}
		if sum.Bytes != total || seen != n {
			t.Fatalf("%d bytes of %d parts are in files, want %d of %d", sum.Bytes, seen, total, n)
		}
		if most := total/int64(files) + largest; n > 0 {
			for i, s := range even(parts, numberOf(total, largest, most, 0)) {
				if s.Bytes > most {
					t.Fatalf("file %d has %d bytes, above the maximum of %d", i, s.Bytes, most)
				}
			}
		}
	}
}

func randomSizes(rng *rand.Rand, n int) (parts []size, total, largest int64) {
	for i := range n {
		p := size{fmt.Sprintf("%04x", i*7+1), 1 + rng.Int64N(500), 1 + rng.Int64N(10_000)}
		switch rng.IntN(5) {
		case 0: // all entities of the page were skipped, so the part has at most an empty compressed text
			p.records, p.bytes = 0, 20*rng.Int64N(2)
		case 1:
			p.records = 0
		}
		parts = append(parts, p)
		total, largest = total+p.bytes, max(largest, p.bytes)
	}
	return parts, total, largest
}

// TestEqual checks that stretches of equal length cover all names, without gaps and overlaps.
func TestEqual(t *testing.T) {
	for _, n := range []int{1, 2, 3, 7, 1000, 4096} {
		all := equal(n)
		if all[0].From != "" || all[n-1].To != "" {
			t.Errorf("%d: from %q to %q", n, all[0].From, all[n-1].To)
		}
		for i := 1; i < n; i++ {
			if all[i].From != all[i-1].To || all[i].From <= all[i-1].From {
				t.Fatalf("%d: stretch %d starts at %q, after [%q, %q)", n, i, all[i].From, all[i-1].From, all[i-1].To)
			}
		}
	}
}

// TestTiles checks that checkTiles accepts files of one plan, and returns an error for files of two
// plans.
func TestTiles(t *testing.T) {
	rng := testflag.Rand(t)
	planned := func(parts []size, n int) []plannedFile {
		files := make([]plannedFile, n)
		for i, s := range even(parts, n) {
			files[i] = plannedFile{From: s.From, To: s.To, Index: int64(i), Name: fmt.Sprint(i)}
		}
		return files
	}
	of := stage{Layout: layoutRuns}
	for range 300 {
		n := 1 + rng.IntN(20)
		parts, _, _ := randomSizes(rng, rng.IntN(100))
		files := planned(parts, n)
		if err := checkTiles(of, files); err != nil {
			t.Fatalf("%d parts in %d files: %v", len(parts), n, err)
		}
		i := rng.IntN(n)
		broken := func(what string, file plannedFile) {
			t.Helper()
			before := files[i]
			files[i] = file
			if err := checkTiles(of, files); err == nil {
				t.Errorf("%d parts in %d files, and file %d has %s: no error", len(parts), n, i, what)
			}
			files[i] = before
		}
		f := files[i]
		f.From += "0"
		broken("another beginning", f)
		f = files[i]
		f.To += "0"
		broken("another end", f)
		f = files[i]
		f.Index++
		broken("another number", f)
		f.Index -= 2
		broken("another number", f)
		f = files[i]
		f.Plan = "other"
		broken("another plan", f)
		old := slices.Clone(files) // records of an older build, which have no names of files
		for j := range old {
			old[j].Name = ""
		}
		if err := checkTiles(of, old); err != nil {
			t.Errorf("files without names: %v", err)
		}
		if f = files[i]; n > 1 {
			f.Name = files[(i+1)%n].Name
			broken("the name of another", f)
		}
	}
}

// TestFileNames plans files whose names Options.Name returns. Names that an export can't use must
// be refused.
func TestFileNames(t *testing.T) {
	for name, want := range map[string]string{
		"a/b-%d.csv":                            "",
		"../%d":                                 "is no path of names",
		"_%d":                                   "is no path of names",
		ManifestName:                            "is the manifest's",
		"one":                                   `returns "one" for both file 0 and file 1`,
		strings.Repeat("a", longestPath) + "%d": "get too long",
	} {
		x := define(t, Options{Name: func(f File) string {
			if !strings.Contains(name, "%d") {
				return name
			}
			return fmt.Sprintf(name, f.Index)
		}})
		err := x.checkNames(stage{Folder: "f", Run: runA, Layout: layoutRuns}, 2)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%.30s: %v, want %q", name, err, want)
		}
	}
}
