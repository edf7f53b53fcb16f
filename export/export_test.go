package export_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"
	"gocloud.dev/blob"
	"gocloud.dev/blob/memblob"

	"github.com/scattermap/scattermap/export"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
)

type order struct {
	N    int64
	Name string
	At   time.Time
}

type line struct {
	N    int64     `json:"n" csv:"n" avro:"n" parquet:"n"`
	Name string    `json:"name" csv:"name" avro:"name" parquet:"name"`
	At   time.Time `json:"at" csv:"at" avro:"at,timestamp-micros" parquet:"at,timestamp(microsecond)"`
}

var begun = time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC)

func lineOf(n int64) line {
	return line{n, fmt.Sprintf("order %d, \"quoted\"", n), begun.Add(time.Duration(n) * time.Microsecond)}
}

// must returns v, or panics if err is not nil.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func newExport(bucket *blob.Bucket, o *export.Options) *export.Export[mapper.NoParams] {
	return must(define(bucket, o))
}

func define(bucket *blob.Bucket, o *export.Options) (*export.Export[mapper.NoParams], error) {
	return export.New("orders", bucket, func(_ context.Context, e *mapper.Entity[order], _ mapper.NoParams) (line,
		error) {
		if e.Value.N < 0 {
			return line{}, mapper.Skip
		}
		return line(e.Value), nil
	}, o)
}

// orders is the number of orders that putOrders puts. An export in pages of 50 has at least 20 pages.
const orders = 1045

// leftOut is the number of these orders that exports leave out.
const leftOut = (orders + 92) / 100

func putOrders(t *testing.T, client *datastore.Client) {
	t.Helper()
	for from := 0; from < orders; from += 500 {
		var keys []*datastore.Key
		var all []order
		for n := from; n < min(from+500, orders); n++ {
			l := lineOf(int64(n))
			if n%100 == 7 {
				l.N = -1 // the entity is left out
			}
			keys, all = append(keys, datastore.NameKey("Order", fmt.Sprint(n*7919%10007, "-", n), nil)),
				append(all, order(l))
		}
		if _, err := client.PutMulti(t.Context(), keys, all); err != nil {
			t.Fatal(err)
		}
	}
}

const folder = "of/today"

// runExport runs an export to its end, and returns its manifest.
func runExport(t *testing.T, w *mappertest.Env, x *export.Export[mapper.NoParams]) *export.Manifest {
	t.Helper()
	start := func() (*export.Run, error) {
		return x.Start(t.Context(), w.Engine, mapper.Query{Kind: "Order"}, mapper.NoParams{}, &export.StartOptions{
			StartOptions: mapper.StartOptions{ID: "orders", PageSize: 50}, Folder: folder})
	}
	w.ResumeFaults()
	run, err := start()
	if err != nil {
		w.PauseFaults()
		if run, err = start(); err != nil {
			t.Fatal(err)
		}
		w.ResumeFaults()
	}
	m, err := run.Wait(t.Context())
	w.PauseFaults()
	if err != nil {
		if m, err = run.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// checkTidy checks that the bucket has only blobs that the manifest names, and that the database
// has no records of parts and files.
func checkTidy(t *testing.T, client *datastore.Client, bucket *blob.Bucket, m *export.Manifest) {
	t.Helper()
	run := folder + "/" + path.Dir(m.Files[0].Name)
	want := []string{run + "/_SUCCESS", run + "/manifest.json", folder + "/manifest.json"}
	for _, f := range m.Files {
		want = append(want, folder+"/"+f.Name)
	}
	got := list(t, bucket)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("in the bucket are %q, want %q", got, want)
	}
	for _, kind := range []string{"ScattermapPart", "ScattermapFile"} {
		if n, err := client.Count(t.Context(), datastore.NewQuery(kind)); err != nil || n > 0 {
			t.Errorf("%d entities of %s are left, %v", n, kind, err)
		}
	}
}

// list returns the names of all blobs in a bucket, in order.
func list(t *testing.T, bucket *blob.Bucket) (names []string) {
	t.Helper()
	for it := bucket.List(nil); ; {
		found, err := it.Next(t.Context())
		if errors.Is(err, io.EOF) {
			return names
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, found.Key)
	}
}

// TestFaults runs exports while calls fail, and while deliveries come twice, late, and to processes
// that crash. The files must have each record once. No other blobs or records may remain.
func TestFaults(t *testing.T) {
	const most = 4000
	first := testflag.Seed(t)
	for i := range uint64(8) {
		t.Run(fmt.Sprint("seed ", first+i), func(t *testing.T) {
			bucket := memblob.OpenBucket(nil)
			defer bucket.Close()
			x := newExport(bucket, &export.Options{Compression: export.Gzip, FileBytes: most})
			mappertest.Run(t, x.Mappers(), &mappertest.Options{Seed: first + i},
				func(t *testing.T, w *mappertest.Env) {
					putOrders(t, w.Client)
					m := runExport(t, w, x)
					checkRecords(t, bucket, m)
					checkTidy(t, w.Client, bucket, m)
					for _, f := range m.Files {
						if f.Bytes > most {
							t.Errorf("%s has %d bytes, want up to %d", f.Name, f.Bytes, most)
						}
					}
					if len(m.Files) < 2 {
						t.Errorf("%d files", len(m.Files))
					}
				})
		})
	}
}

// TestEmpty exports a query without entities: there must be one file, without records.
func TestEmpty(t *testing.T) {
	bucket := memblob.OpenBucket(nil)
	defer bucket.Close()
	x := newExport(bucket, &export.Options{Format: export.JSON})
	mappertest.Run(t, x.Mappers(), nil, func(t *testing.T, w *mappertest.Env) {
		run, err := x.Start(t.Context(), w.Engine, mapper.Query{Kind: "Order"}, mapper.NoParams{}, &export.StartOptions{
			StartOptions: mapper.StartOptions{AllowEmpty: true}, Folder: folder})
		if err != nil {
			t.Fatal(err)
		}
		m, err := run.Wait(t.Context())
		if err != nil || m.Records != 0 || len(m.Files) != 1 {
			t.Fatalf("%+v, %v", m, err)
		}
		if lines := readLines(t, m, bucket, m.Files[0].Name); len(lines) != 0 {
			t.Errorf("%d records", len(lines))
		}
		checkTidy(t, w.Client, bucket, m)
	})
}

// TestFailures checks that an export waits for the retry of failed entities, or continues without
// them if that is allowed.
func TestFailures(t *testing.T) {
	for _, allow := range []bool{false, true} {
		t.Run(fmt.Sprint("allowed ", allow), func(t *testing.T) {
			bucket := memblob.OpenBucket(nil)
			defer bucket.Close()
			broken := true
			x := must(export.New("orders", bucket,
				func(_ context.Context, e *mapper.Entity[order], _ mapper.NoParams) (line,
					error) {
					if broken && e.Value.N%500 == 3 {
						return line{}, mapper.Permanent(errors.New("three"))
					}
					if e.Value.N < 0 {
						return line{}, mapper.Skip
					}
					return line(e.Value), nil
				}, &export.Options{AllowFailures: allow}))
			mappertest.Run(t, x.Mappers(), nil, func(t *testing.T, w *mappertest.Env) {
				putOrders(t, w.Client)
				run, err := x.Start(t.Context(), w.Engine, mapper.Query{Kind: "Order"}, mapper.NoParams{},
					&export.StartOptions{Folder: folder})
				if err != nil {
					t.Fatal(err)
				}
				m, err := run.Wait(t.Context())
				if allow {
					if err != nil || m.Failures != 3 || m.Records != orders-leftOut-3 {
						t.Errorf("%+v, %v", m, err)
					}
					return
				}
				if err == nil || !strings.Contains(err.Error(), "failed on 3 entities") {
					t.Fatalf("%+v, %v", m, err)
				}
				broken = false
				if err := run.Jobs()[0].Retry(t.Context(), nil); err != nil {
					t.Fatal(err)
				}
				if m, err = run.Wait(t.Context()); err != nil {
					t.Fatal(err)
				}
				checkRecords(t, bucket, m)
				checkTidy(t, w.Client, bucket, m)
			})
		})
	}
}

// TestNames checks that an export fails if Options.Name gives names that would overwrite another
// blob. Nothing must be written before that.
func TestNames(t *testing.T) {
	for want, name := range map[string]func(export.File) string{
		`for both file 0 and file 1`: func(export.File) string { return "same" },
		`"manifest.json"`:            func(export.File) string { return "manifest.json" },
		`"../a"`:                     func(export.File) string { return "../a" },
		`"_SUCCESS"`:                 func(export.File) string { return "_SUCCESS" },
	} {
		t.Run(want, func(t *testing.T) {
			bucket := memblob.OpenBucket(nil)
			defer bucket.Close()
			x := newExport(bucket, &export.Options{Files: 2, Name: name})
			mappertest.Run(t, x.Mappers(), nil, func(t *testing.T, w *mappertest.Env) {
				putOrders(t, w.Client)
				_, err := x.Start(t.Context(), w.Engine, mapper.Query{Kind: "Order"}, mapper.NoParams{}, nil)
				wantRefused(t, err, want)
			})
		})
	}
}

// TestBadDefinitions checks that New refuses wrong definitions, and says what is wrong. So the
// mistake shows when the service starts, and not when an export runs.
func TestBadDefinitions(t *testing.T) {
	bucket := memblob.OpenBucket(nil)
	defer bucket.Close()
	type piped struct{ To chan int }
	for want, new := range map[string]func() (*export.Export[mapper.NoParams], error){
		"the bucket is nil": func() (*export.Export[mapper.NoParams], error) { return define(nil, nil) },
		`"xml"`: func() (*export.Export[mapper.NoParams], error) {
			return define(bucket, &export.Options{Format: "xml"})
		},
		`"lzma"`: func() (*export.Export[mapper.NoParams], error) {
			return define(bucket, &export.Options{Compression: "lzma"})
		},
		"20000": func() (*export.Export[mapper.NoParams], error) {
			return define(bucket, &export.Options{Files: 20_000})
		},
		"Wrap": func() (*export.Export[mapper.NoParams], error) {
			return define(bucket, &export.Options{Wrap: func(export.File) (string, string) { return "", "" }})
		},
		"the function is nil": func() (*export.Export[mapper.NoParams], error) {
			return export.New[order, line, mapper.NoParams]("x", bucket, nil, nil)
		},
		"has no JSON": func() (*export.Export[mapper.NoParams], error) {
			return export.New("x", bucket, func(context.Context, *mapper.Entity[order], mapper.NoParams) (piped,
				error) {
				return piped{}, nil
			}, nil)
		},
	} {
		x, err := new()
		if x != nil || !errors.Is(err, mapper.ErrInvalidArgument) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, %v, want an error that names %s", x, err, want)
		}
	}
}

// TestRefused checks that wrong starts are refused, with an error that names what is wrong.
func TestRefused(t *testing.T) {
	bucket := memblob.OpenBucket(nil)
	defer bucket.Close()
	x := newExport(bucket, nil)
	mappertest.Run(t, x.Mappers(), nil, func(t *testing.T, w *mappertest.Env) {
		putOrders(t, w.Client)
		for folder, want := range map[string]string{
			"a//b": `"a//b"`, "a\xff": `"a\xff"`, "../b": `"../b"`,
			"a/run-0123456789abcdefghijklmnop/b": `"run-0123456789abcdefghijklmnop"`,
		} {
			_, err := x.Start(t.Context(), w.Engine, mapper.Query{Kind: "Order"}, mapper.NoParams{},
				&export.StartOptions{Folder: folder})
			if !errors.Is(err, mapper.ErrInvalidArgument) || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want an error that names %s", err, want)
			}
		}
	})
}

// TestByName starts an export by the name of its mapper, as an operator does.
func TestByName(t *testing.T) {
	bucket := memblob.OpenBucket(nil)
	t.Cleanup(func() { bucket.Close() })
	x := must(export.NewEntities("export", bucket, nil))
	mappertest.Run(t, x.Mappers(), nil, func(t *testing.T, w *mappertest.Env) {
		for i := range 100 {
			if _, err := w.Client.Put(t.Context(), datastore.NameKey("Account", fmt.Sprint(i), nil),
				&datastore.PropertyList{{Name: "n", Value: int64(i)}}); err != nil {
				t.Fatal(err)
			}
		}
		start := func(params string) (*mapper.Job, error) {
			return w.Engine.StartByName(t.Context(), "export", mapper.Query{Kind: "Account"}, []byte(params),
				&mapper.StartOptions{ID: "out"})
		}
		if all := w.Engine.Mappers(); len(all) != 1 || all[0].Name != "export" ||
			all[0].ParamsType != reflect.TypeFor[export.ByNameParams]() || all[0].Description == "" {
			t.Errorf("an operator may start %+v, want the export with its parameters", all)
		}
		for _, stage := range []string{"export-join", "export-delete"} {
			_, err := w.Engine.StartByName(t.Context(), stage, mapper.Query{Kind: "Account"}, []byte("{}"), nil)
			if !errors.Is(err, mapper.ErrInvalidArgument) {
				t.Errorf("%s by name: %v, want that only an export starts it", stage, err)
			}
		}
		for params, want := range map[string]string{
			`{"folders": "accounts"}`:                   `unknown field "folders"`,
			`{"folder": "/accounts"}`:                   "folder",
			`{"folder": "accounts", "params": {"n":1}}`: `unknown field "n"`,
			`[]`:            `{"folder": "accounts"}`,
			`{"files": -1}`: "Files is -1",
		} {
			if _, err := start(params); !errors.Is(err, mapper.ErrInvalidArgument) ||
				!strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v", params, err)
			}
		}
		job, err := start(`{"folder": "accounts", "files": 2}`)
		if err != nil || job.ID != "out" {
			t.Fatal(err)
		}
		if again, err := start(`{"folder": "accounts", "files": 2}`); err != nil || again.ID != job.ID {
			t.Errorf("once more: %v", err)
		}
		run, err := x.Find(t.Context(), w.Engine, "out")
		if err != nil {
			t.Fatal(err)
		}
		m, err := run.Wait(t.Context())
		if err != nil || len(m.Files) != 2 || m.Records != 100 {
			t.Errorf("%+v, %v", m, err)
		}
	})
}
