package export_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"gocloud.dev/blob/memblob"

	"github.com/scattermap/scattermap/export"
	"github.com/scattermap/scattermap/mapper"
)

type letters struct{ Letters string }

func (l letters) Validate() error {
	if strings.Contains(l.Letters, "x") {
		return errors.New("no letter may be x")
	}
	return nil
}

// MarshalText returns an error for one of the letters.
func (l letters) MarshalText() ([]byte, error) {
	if l.Letters == "y" {
		return nil, errors.New("y has no text")
	}
	return []byte(l.Letters), nil
}

func (l *letters) UnmarshalText(text []byte) error {
	l.Letters = string(text)
	return nil
}

// TestOptionLimits checks options at their limits, which must be accepted, and beyond them. The
// error must name the option.
func TestOptionLimits(t *testing.T) {
	bucket := memblob.OpenBucket(nil)
	defer bucket.Close()
	for _, c := range []struct {
		o    export.Options
		want string
	}{
		{export.Options{FileBytes: -1}, "Options.FileBytes is -1"}, {export.Options{FileBytes: 1}, ""},
		{export.Options{MaxFiles: -1}, "Options.MaxFiles is -1"}, {export.Options{MaxFiles: 10_000}, ""},
		{export.Options{MaxFiles: 10_001}, "Options.MaxFiles is 10001"}, {export.Options{MaxFiles: 1}, ""},
		{export.Options{Files: -1}, "Options.Files is -1"}, {export.Options{Files: 10_000}, ""},
		{export.Options{Files: 10_001}, "Options.Files is 10001"}, {export.Options{Files: 3, MaxFiles: 3}, ""},
		{export.Options{Files: 4, MaxFiles: 3}, "Options.Files is 4, want 0 to 3"},
	} {
		if _, err := define(bucket, &c.o); c.want == "" && err != nil {
			t.Errorf("%+v: %v", c.o, err)
		} else if c.want != "" {
			wantRefused(t, err, c.want)
		}
	}
	x := must(export.New("letters", bucket, func(context.Context, *mapper.Entity[order], letters) (line, error) {
		return line{}, nil
	}, &export.Options{MaxFiles: 3}))
	long := strings.Repeat("i", 90)
	for _, c := range []struct {
		o      export.StartOptions
		params string
		want   string // a part of the error; accepted options get as far as the engine, which is nil
	}{
		{export.StartOptions{}, "", "there is no engine"},
		{export.StartOptions{StartOptions: mapper.StartOptions{ID: long}}, "", "there is no engine"},
		{export.StartOptions{StartOptions: mapper.StartOptions{ID: long + "i"}}, "",
			"the ID has 91 bytes, want up to 90"},
		{export.StartOptions{Files: 3}, "", "there is no engine"},
		{export.StartOptions{Files: 4}, "", "StartOptions.Files is 4, want 0 to 3"},
		{export.StartOptions{Files: -1}, "", "StartOptions.Files is -1, want 0 to 3"},
		{export.StartOptions{Folder: "a b/ä.b/..c"}, "", "there is no engine"},
		{export.StartOptions{Folder: "a/."}, "", `"a/."`},
		{export.StartOptions{Folder: "a/./b"}, "", `"a/./b"`},
		{export.StartOptions{Folder: "a/.."}, "", `"a/.."`},
		{export.StartOptions{Folder: "/a"}, "", `"/a"`},
		{export.StartOptions{Folder: "a/"}, "", `"a/"`},
		{export.StartOptions{Folder: "_a"}, "", `"_a"`},
		{export.StartOptions{Folder: "a\x1f"}, "", `control characters`},
		{export.StartOptions{Folder: "\x1fa"}, "", `control characters`},
		{export.StartOptions{Folder: "a\x7f"}, "", `control characters`},
		{export.StartOptions{Folder: "a\x00"}, "", `control characters`},
		{export.StartOptions{}, "y", "y has no text"},
	} {
		_, err := x.Start(t.Context(), nil, mapper.Query{Kind: "Order"}, letters{c.params}, &c.o)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want an error with %q", c.o, err, c.want)
		}
		if refused := c.want != "there is no engine"; refused && !errors.Is(err, mapper.ErrInvalidArgument) {
			t.Errorf("%+v: %v, want ErrInvalidArgument", c.o, err)
		}
	}
	for params, want := range map[string]string{"x": "no letter may be x", "y": "y has no text"} {
		wantRefused(t, x.Write(t.Context(), &export.Run{ID: "r"}, 0, letters{params}), want)
	}
	for files, want := range map[int]string{-1: "-1 files, want 0 to 3", 4: "4 files, want 0 to 3"} {
		wantRefused(t, x.Write(t.Context(), &export.Run{ID: "r"}, files, letters{"x"}), want)
	}
	wantRefused(t, x.Write(t.Context(), &export.Run{ID: "r"}, 3, letters{"x"}), "no letter may be x")
	if _, err := x.Start(t.Context(), nil, mapper.Query{Kind: "Order"}, letters{}, nil); err == nil ||
		!strings.Contains(err.Error(), "there is no engine") {
		t.Errorf("without options: %v", err)
	}
}
