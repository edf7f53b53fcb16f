package export

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"gocloud.dev/blob"

	"github.com/scattermap/scattermap/internal/setting"
	"github.com/scattermap/scattermap/internal/strictjson"
	"github.com/scattermap/scattermap/mapper"
)

// Options say how an export writes.
//
// A record of [CSV] is a struct. Columns are its fields and the fields of embedded structs, under
// their csv tags or their names; the tag "-" leaves a field out. A nil pointer and nil bytes are an
// empty cell, and an empty text is "". Times have the form of RFC 3339, and bytes are in base64.
// Types with MarshalText are written by it.
//
// Start refuses a type that the format can't hold. A value that the format can't hold is a failure
// of its entity. Both errors name the field. docs/export.md lists the Go types of each format.
type Options struct {
	// Format defaults to JSONLines, and Compression to Uncompressed.
	Format      Format
	Compression Compression

	// FileBytes is the largest size of a file as it is stored. Defaults to 256 MiB. It must be
	// larger than every part, because parts are not split. In an export of more than 100,000 parts
	// the sizes of files are only known within some percent, so a tenth is kept free. Files of
	// Parquet are written anew, and may differ by more.
	FileBytes int64

	// Files, if not 0, is the number of files. MaxFiles is the largest number: an export that needs
	// more to respect FileBytes fails before it writes one. It is at most, and by default, 10,000.
	Files    int
	MaxFiles int

	// Name returns the name of a file, below the folder of the run. Names must differ, and a file's
	// name must be the same in each call. If a new build has another Name, it names only files that
	// are planned after its deployment. Defaults to names like 00001-of-00012.jsonl.gz.
	Name func(File) string

	// Wrap returns the text before and after the records of a JSON file; commas are between the
	// records. It must be the same in each call. Defaults to the brackets of an array.
	Wrap func(File) (head, tail string)

	// AllowFailures writes the files although the function has failed on entities. The manifest
	// counts the failures. By default the export waits until somebody has retried them
	// (mapper.Job.Retry), and [Run.Wait] says so. If a retry comes while the first job ends, it may
	// process an entity that is in no file and counts as a failure in the manifest.
	AllowFailures bool

	// revision is that of how values are written: see coder.
	revision string
}

// mostFiles is the most files that an export has.
const mostFiles = 10_000

// A File describes one file of an export, for Options.Name and Options.Wrap.
type File struct {
	Index  int    `json:"index"` // from 0 on
	Of     int    `json:"of"`
	Export string `json:"export"` // the ID of the export
	Folder string `json:"folder"` // of the export

	// Params are the parameters of the export, as JSON.
	Params json.RawMessage `json:"params,omitempty"`

	Ext string `json:"-"` // what its name should end with: .jsonl.gz, for instance
}

// An Export defines exports, with parameters of type P.
type Export[P any] struct {
	name    string
	bucket  *blob.Bucket
	opts    Options
	coder   coder
	parts   *mapper.Mapper[startParams[P]]
	joins   *mapper.Mapper[stage]
	deletes *mapper.Mapper[stage]
}

// startParams are the parameters of an export's first stage.
type startParams[P any] struct {
	Export string `json:"export"` // its ID
	Run    string `json:"run"`    // what tells it from others of that ID
	Folder string `json:"folder"`
	Files  int    `json:"files,omitempty"`
	Params P      `json:"params"`
	Layout int    `json:"layout,omitempty"`
	Coding string `json:"coding,omitempty"`
	Hold   bool   `json:"hold,omitempty"` // see StartOptions
}

// layoutRuns is the layout in which each run writes to a folder of its own. An older build has
// none, and does not take the parameters of a job that has one: its deliveries fail until one comes
// to a newer build.
const layoutRuns = 2

// Validate has a start check the parameters of the export's function.
func (p startParams[P]) Validate() error {
	if v, ok := any(&p.Params).(mapper.Validator); ok {
		return v.Validate()
	}
	return nil
}

// New defines an export to a bucket. The function makes a record of each entity, or returns
// [mapper.Skip] to leave it out. Its errors are treated as in a [mapper.Visit]. A record that can't
// be written is a failure of its entity.
//
// The engine must have all of [Export.Mappers].
func New[T, R, P any](
	name string, bucket *blob.Bucket, record func(ctx context.Context, e *mapper.Entity[T], params P) (R, error),
	o *Options,
) (*Export[P], error) {
	x := &Export[P]{name: name, bucket: bucket}
	if o != nil {
		x.opts = *o
	}
	x.opts.setDefaults()
	var err error
	if x.coder, err = coderOf[R](&x.opts); err == nil {
		x.opts.revision = x.coder.revision()
	}
	switch {
	case bucket == nil:
		err = errors.New("the bucket is nil")
	case record == nil:
		err = errors.New("the function is nil")
	case err == nil:
		err = x.opts.validate()
	}
	if err != nil {
		return nil, fmt.Errorf("export: define %q: %w: %w", name, mapper.ErrInvalidArgument, err)
	}
	x.parts = mapper.VisitPages(name, func(ctx context.Context, e *mapper.Entity[T], p startParams[P]) (any, error) {
		r, err := record(ctx, e, p.Params)
		if err != nil {
			return nil, err
		}
		encoded, err := x.coder.encode(r)
		if err != nil {
			return nil, mapper.Permanent(fmt.Errorf("the record can't be written: %w", err))
		}
		return encoded, nil
	}, func(ctx context.Context, p *mapper.Page[any], params startParams[P]) error {
		return x.writePart(ctx, p, params)
	}).WithFinalizer(func(ctx context.Context, d *mapper.Completion, params startParams[P]) error {
		if params.Hold {
			return nil // until somebody calls Write
		}
		given, err := json.Marshal(params.Params)
		if err != nil {
			return mapper.Permanent(err)
		}
		return x.plan(ctx, mapper.EngineFromContext(ctx), d.Status, stage{Export: params.Export, Run: params.Run,
			Folder: params.Folder, Files: params.Files, Params: given, Layout: params.Layout, Coding: params.Coding})
	})
	x.parts.WithStarter(x.startByName).CheckByName(x.checkByName)
	x.joins = mapper.VisitPages(name+joinSuffix, x.join, putJoined).WithFinalizer(x.list)
	x.deletes = mapper.Visit(name+deleteSuffix, x.deleteParts).WithFinalizer(x.succeed)
	return x, nil
}

// What the names of the mappers of the second and third stage end with, and the IDs of their jobs.
const (
	joinSuffix   = "-join"
	deleteSuffix = "-delete"
)

func (o *Options) setDefaults() {
	if o.Format == "" {
		o.Format = JSONLines
	}
	if o.FileBytes == 0 {
		o.FileBytes = 256 << 20
	}
	if o.MaxFiles == 0 {
		o.MaxFiles = mostFiles
	}
	if o.Name == nil {
		o.Name = func(f File) string { return fmt.Sprintf("%05d-of-%05d%s", f.Index+1, f.Of, f.Ext) }
	}
}

// coding names how records are written. All parts and files of a run have the same.
func (o *Options) coding() string {
	return strings.TrimSuffix(string(o.Format)+o.revision+" "+string(o.Compression), " ")
}

// checkCoding returns an error if a run was begun by a build that writes otherwise. An export of an
// older build has no coding.
func (o *Options) checkCoding(begun string) error {
	if begun == "" || begun == o.coding() {
		return nil
	}
	return fmt.Errorf("the export was begun with the format and compression %q, and this build has %q: deploy a "+
		"build with those of before and resume it, or start another export", begun, o.coding())
}

func (o *Options) validate() error {
	switch {
	case o.FileBytes < 0:
		return fmt.Errorf("Options.FileBytes is %d, want more than 0", o.FileBytes)
	case o.MaxFiles < 0 || o.MaxFiles > mostFiles:
		return fmt.Errorf("Options.MaxFiles is %d, want 1 to %d", o.MaxFiles, mostFiles)
	case o.Files < 0 || o.Files > o.MaxFiles:
		return fmt.Errorf("Options.Files is %d, want 0 to %d", o.Files, o.MaxFiles)
	}
	return nil
}

// Mappers returns the mappers of the export's three stages, for [mapper.EngineOptions].
func (x *Export[P]) Mappers() []mapper.AnyMapper {
	return []mapper.AnyMapper{x.parts, x.joins, x.deletes}
}

// StartOptions are the settings of one export.
type StartOptions struct {
	// StartOptions are the settings of the job over the entities. Its ID has up to 90 bytes.
	// AllowOverlap is always true, because an export only reads.
	mapper.StartOptions

	// Files is Options.Files for this export.
	Files int

	// Hold stops the export when all records are in parts, before any file is written.
	// [Export.Count] then returns the number of files, and [Export.Write] writes them. So several
	// exports, for instance of several databases, can number their files together. [Run.Wait] waits
	// for Write, too.
	Hold bool

	// Folder is the path in the bucket where the run makes its own folder, with the files and their
	// manifest. It has no slash at its ends, and is not inside the folder of a run. Defaults to the
	// ID. Several exports may have the same folder: ReadManifest reads the manifest of the last
	// one.
	Folder string
}

// Start starts an export of the entities of a query, or returns the export of that ID. With a
// Query.ReadTime the export is a snapshot of that time.
func (x *Export[P]) Start(
	ctx context.Context, e *mapper.Engine, q mapper.Query, params P, o *StartOptions,
) (*Run, error) {
	if o == nil {
		o = new(StartOptions)
	}
	fail := func(err error) (*Run, error) {
		return nil, fmt.Errorf("export: start %q: %w", x.name, err)
	}
	opts := o.StartOptions
	opts.AllowOverlap = true // it only reads
	if opts.ID == "" {
		opts.ID = newID()
	}
	if len(opts.ID) > 90 {
		return fail(fmt.Errorf("%w: the ID has %d bytes, want up to 90", mapper.ErrInvalidArgument, len(opts.ID)))
	}
	folder := o.Folder
	if folder == "" {
		folder = opts.ID
	}
	if err := checkFolder(folder); err != nil {
		return fail(fmt.Errorf("%w: %w", mapper.ErrInvalidArgument, err))
	}
	files := cmp.Or(o.Files, x.opts.Files)
	if files < 0 || files > x.opts.MaxFiles {
		return fail(setting.Errorf("%w: StartOptions.Files is %d, want 0 to %d", mapper.ErrInvalidArgument, files,
			x.opts.MaxFiles))
	}
	given, err := json.Marshal(params)
	if err == nil {
		err = x.checkNames(stage{Export: opts.ID, Folder: folder, Params: given},
			cmp.Or(files, min(2, x.opts.MaxFiles)))
	}
	if err != nil {
		return fail(fmt.Errorf("%w: %w", mapper.ErrInvalidArgument, err))
	}
	run := &Run{ID: opts.ID, Folder: folder, engine: e, bucket: x.bucket, allow: x.opts.AllowFailures}
	for first := true; ; first = false {
		known, err := run.find(ctx, x.name)
		if err != nil {
			return fail(err)
		}
		p := startParams[P]{Export: run.ID, Run: run.place.run, Folder: folder, Files: files, Params: params,
			Hold: o.Hold}
		if !run.place.direct {
			p.Layout, p.Coding = layoutRuns, x.opts.coding()
		}
		_, err = x.parts.Start(ctx, e, q, p, &opts)
		if err == nil {
			return run, nil
		}
		// Another start of the ID may have been first at this moment, and has a run of its own.
		if known || !first || !errors.Is(err, mapper.ErrIDTaken) {
			return fail(err)
		}
	}
}

// ByNameParams are the parameters of an export that is started by its name, for example over
// package jobsapi: {"folder": "accounts"}.
type ByNameParams struct {
	Folder string          `json:"folder,omitempty"` // see StartOptions
	Files  int             `json:"files,omitempty"`
	Params json.RawMessage `json:"params,omitempty"` // of the export's function; none by default
}

// startByName starts an export for mapper.Engine.StartByName. The job that it returns is the first
// one.
func (x *Export[P]) startByName(
	ctx context.Context, e *mapper.Engine, q mapper.Query, given json.RawMessage, o *mapper.StartOptions,
) (*mapper.Job, error) {
	fail := func(what string, err error) (*mapper.Job, error) {
		return nil, fmt.Errorf("export: start %q: %w: %s: %w", x.name, mapper.ErrInvalidArgument, what, err)
	}
	var recorded startParams[json.RawMessage]
	// of a job that was started, which somebody wants once more
	if strictly(given, &recorded) == nil && recorded.Run != "" {
		return fail("params",
			fmt.Errorf(`those of a job that has begun can't be used again: give the folder, such as {"folder": %q}`,
				recorded.Folder+"-2"))
	}
	named, params, err := x.readNamed(given)
	if err != nil {
		return fail("params", err)
	}
	opts := StartOptions{Folder: named.Folder, Files: named.Files}
	if o != nil {
		opts.StartOptions = *o
	}
	run, err := x.Start(ctx, e, q, params, &opts)
	if err != nil {
		return nil, err
	}
	return run.Jobs()[0], nil
}

// readNamed reads the parameters of a start by name, and those of the export's function in them.
func (x *Export[P]) readNamed(given json.RawMessage) (named ByNameParams, params P, err error) {
	named.Params = json.RawMessage("{}")
	if err := strictly(given, &named); err != nil {
		return named, params, fmt.Errorf(`they have to be like {"folder": "accounts"}: %w`, err)
	}
	if err := mapper.CheckParams(named.Params, &params); err != nil {
		return named, params, fmt.Errorf(`their "params": %w`, err)
	}
	return named, params, nil
}

// checkByName says what is wrong with the parameters of a start by name.
func (x *Export[P]) checkByName(given json.RawMessage) error {
	_, _, err := x.readNamed(given)
	return err
}

// strictly decodes JSON that a type takes as it is.
func strictly(text json.RawMessage, v any) error {
	return strictjson.Decode(text, v)
}

// Plan estimates what an export of a query takes, as mapper.Mapper.Plan does, and what its parts take
// besides: a write, three reads and a delete for each page. What a bucket charges is not in it.
func (x *Export[P]) Plan(
	ctx context.Context, e *mapper.Engine, q mapper.Query, o *mapper.PlanOptions,
) (*mapper.Estimate, error) {
	var opts mapper.PlanOptions
	if o != nil {
		opts = *o
	}
	est, err := x.parts.Plan(ctx, e, q, &opts)
	if err != nil {
		return nil, fmt.Errorf("export: plan %q: %w", x.name, err)
	}
	est.Usage.Writes += est.Pages
	est.Usage.Reads += 3 * est.Pages // each part is listed by the plan, the join and the deletion
	est.Usage.Deletes += est.Pages
	est.Dollars = e.Prices().Dollars(est.Usage)
	return est, nil
}
