package export

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"gocloud.dev/blob"

	"github.com/scattermap/scattermap/internal/setting"
	"github.com/scattermap/scattermap/internal/strictjson"
	"github.com/scattermap/scattermap/mapper"
)

// Options are the settings of an export.
//
// [New] refuses a type that the format can't hold. A value that the format can't hold is a failure
// of its entity. Both errors name the field. docs/export.md lists the Go types of each format.
//
// A record of [CSV] is a struct. Its columns are the struct's fields, and the fields of embedded
// structs. A column has the name in the field's csv tag, or the field's name; the tag "-" leaves a
// field out. A nil pointer and nil bytes are an empty cell, and an empty text is "". Times are
// written as in RFC 3339, and bytes in base64. A type with the method MarshalText is written as
// that text.
type Options struct {
	// Format defaults to JSONLines, and Compression to Uncompressed.
	Format      Format
	Compression Compression

	// FileBytes is the largest size of a stored file, in bytes. Defaults to 256 MiB. It must be
	// larger than every part, because parts are not split. An export of more than 100,000 parts
	// only estimates sizes, so its files are planned a tenth smaller. The size of a Parquet file is
	// only an estimate, because it is written anew from its parts.
	FileBytes int64

	// Files is the number of files, up to MaxFiles. Defaults to as few files as FileBytes allows.
	// If that number is above MaxFiles, the export fails before it writes a file. MaxFiles is in
	// [1, 10000], and defaults to 10,000.
	Files    int
	MaxFiles int

	// Name returns the name of a file, relative to the run's folder. Names must differ, and each
	// call must return the same name for a file. After a deployment with another Name, files that
	// are planned already keep their names. Defaults to names such as 00001-of-00012.jsonl.gz.
	Name func(File) string

	// Wrap returns the text before and after the records of a file in the format JSON. Records are
	// separated by commas. Each call must return the same texts for a file. Defaults to the
	// brackets of an array.
	Wrap func(File) (head, tail string)

	// AllowFailures writes the files even if entities have failed. The manifest counts these
	// failures. By default the export waits until somebody has retried them ([mapper.Job.Retry]),
	// and [Run.Wait] returns an error that says so. If a retry starts while the first job ends, it
	// may process an entity too late: the entity is in no file, and the manifest counts it as a
	// failure.
	AllowFailures bool

	// revision is the result of [coder].revision for the export's coder.
	revision string
}

// mostFiles is the largest number of files of an export.
const mostFiles = 10_000

// A File describes one file of an export, for Options.Name and Options.Wrap.
type File struct {
	Index  int    `json:"index"`  // the file's number, from 0
	Of     int    `json:"of"`     // the number of files
	Export string `json:"export"` // the ID of the export
	Folder string `json:"folder"` // the folder of the export

	// Params are the parameters of the export, as JSON.
	Params json.RawMessage `json:"params,omitempty"`

	Ext string `json:"-"` // the extension for the file's name, such as .jsonl.gz
}

// An Export defines exports with parameters of type P: what a record is, and where the files go.
// [New] and [NewEntities] make one. [Export.Start] starts a [Run].
type Export[P any] struct {
	name    string
	bucket  *blob.Bucket
	opts    Options
	coder   coder
	whole   bool // whether the records are whole entities, so that the query has to read them
	parts   *mapper.Mapper[startParams[P]]
	joins   *mapper.Mapper[stage]
	deletes *mapper.Mapper[stage]
}

// startParams are the parameters of the job of an export's first stage.
type startParams[P any] struct {
	Export string `json:"export"` // the ID of the export
	Run    string `json:"run"`    // distinguishes this run from other exports with the same ID
	Folder string `json:"folder"`
	Files  int    `json:"files,omitempty"`
	Params P      `json:"params"`
	Layout int    `json:"layout,omitempty"`
	Coding string `json:"coding,omitempty"`
	Hold   bool   `json:"hold,omitempty"` // the value of StartOptions.Hold
}

// layoutRuns is the value of startParams.Layout if each run has a folder of its own. Older builds
// do not know the parameter, and refuse a job that has it. Their deliveries fail until a newer
// build gets one.
const layoutRuns = 2

// Validate checks the parameters of the export's function when the export starts.
func (p startParams[P]) Validate() error {
	if v, ok := any(&p.Params).(mapper.Validator); ok {
		return v.Validate()
	}
	return nil
}

// New defines an export to a bucket. The function record makes a record of each entity, or returns
// [mapper.Skip] to leave the entity out. Its errors are treated as in a [mapper.Visit]. A record
// that can't be written is a failure of its entity. A nil o has all defaults. The error is
// [mapper.ErrInvalidArgument], such as for a type that the format can't hold.
//
// The mapper of the first stage has the given name; the other stages' mappers add "-join" and
// "-delete". Pass all of [Export.Mappers] to the engine. The caller keeps the bucket open while
// jobs run.
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
			return nil // Export.Write starts the next stage
		}
		given, err := json.Marshal(params.Params)
		if err != nil {
			return mapper.Permanent(err)
		}
		return x.plan(ctx, mapper.EngineFromContext(ctx), d.Status, stage{Export: params.Export, Run: params.Run,
			Folder: params.Folder, Files: params.Files, Params: given, Layout: params.Layout, Coding: params.Coding})
	})
	x.parts.WithDescription(fmt.Sprintf("Exports entities to files of the format %s.", x.opts.Format)).
		WithStarter(x.startByName).CheckByName(reflect.TypeFor[ByNameParams](), x.checkByName)
	x.joins = mapper.VisitPages(name+joinSuffix, x.join, putJoined).WithFinalizer(x.list).WithStarter(nil)
	x.deletes = mapper.Visit(name+deleteSuffix, x.deleteParts).WithFinalizer(x.succeed).WithStarter(nil)
	return x, nil
}

// Suffixes of the names of the mappers, and of the IDs of the jobs, of the second and third stage.
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

// coding returns a text that identifies the format, the compression and the encoding of values. It
// must be the same for all parts and files of a run.
func (o *Options) coding() string {
	return strings.TrimSuffix(string(o.Format)+o.revision+" "+string(o.Compression), " ")
}

// checkCoding returns an error if the build that has started the run encodes files in another way
// than this build. The argument is the result of coding in that build. It is empty for runs of
// builds that did not record it.
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
	// StartOptions are the settings of the job over the entities. An ID has up to 90 bytes.
	// AllowOverlap is always true, because an export only reads. PageSize defaults to 1,000, and to
	// 500 if Options.FileBytes is below 64 MiB.
	mapper.StartOptions

	// Files overrides Options.Files for this export, if it is not 0.
	Files int

	// Hold stops the export when all records are in parts, before any file is written.
	// [Export.Count] then returns the number of files, and [Export.Write] writes them. So several
	// exports, such as of several databases, can number their files as one set. [Run.Wait] waits
	// for Write, too.
	Hold bool

	// Folder is the path in the bucket below which the run makes its own folder. It has no slash at
	// its ends, and must not be inside the folder of a run. It has up to 902 bytes, because buckets
	// allow names of 1,024. Several exports may share a Folder: [ReadManifest] returns the last
	// one. Defaults to the ID.
	Folder string
}

// largePages is the value of FileBytes from which on the default PageSize is 1,000. A page has up
// to about 4 MiB of entities, and its part is never split.
const largePages = 64 << 20

// pageSize returns the number of entities in a page: wanted, or the default if wanted is 0.
func (x *Export[P]) pageSize(wanted int) int {
	if wanted == 0 && x.opts.FileBytes >= largePages {
		return 1000
	}
	return wanted
}

// Start starts an export of the entities of a query, and returns without waiting for it. If there
// is an export of that ID already, it returns that export. Errors are as for [mapper.Mapper.Start].
// With a Query.ReadTime the export is a snapshot of that time. A nil o has all defaults.
func (x *Export[P]) Start(
	ctx context.Context, e *mapper.Engine, q mapper.Query, params P, o *StartOptions,
) (*Run, error) {
	if o == nil {
		o = new(StartOptions)
	}
	fail := func(err error) (*Run, error) {
		return nil, fmt.Errorf("export: start %q: %w", x.name, err)
	}
	if x.whole && q.KeysOnly {
		return fail(fmt.Errorf("%w: the query reads only keys (keys_only), and the records are whole entities",
			mapper.ErrInvalidArgument))
	}
	opts := o.StartOptions
	opts.AllowOverlap = true // an export only reads
	opts.PageSize = x.pageSize(opts.PageSize)
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
	place := place{folder: folder, run: newRun()} // the names of runs have one length, so the final place is not longer
	if err == nil {
		err = place.checkLength()
	}
	if err == nil {
		err = x.checkNames(stage{Export: opts.ID, Run: place.run, Folder: folder, Params: given, Layout: layoutRuns},
			cmp.Or(files, min(2, x.opts.MaxFiles)))
	}
	if err != nil {
		return fail(fmt.Errorf("%w: %w", mapper.ErrInvalidArgument, err))
	}
	run := &Run{ID: opts.ID, Folder: folder, engine: e, bucket: x.bucket, allow: x.opts.AllowFailures}
	for range 2 { // another start of this ID may be first, with a run of its own: find that run in the second round
		if err = run.find(ctx, x.name); err != nil {
			break
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
		if !errors.Is(err, mapper.ErrIDTaken) {
			break
		}
	}
	return fail(err)
}

// ByNameParams are the parameters of an export that is started by the name of its first mapper, for
// example over package jobsapi: {"folder": "accounts"}. The fields mean the same as in
// [StartOptions].
type ByNameParams struct {
	Folder string          `json:"folder,omitempty"`
	Files  int             `json:"files,omitempty"`
	Params json.RawMessage `json:"params,omitempty"` // the parameters of the export's function; empty: none
}

// startByName starts an export for mapper.Engine.StartByName. It returns the export's first job.
func (x *Export[P]) startByName(
	ctx context.Context, e *mapper.Engine, q mapper.Query, given json.RawMessage, o *mapper.StartOptions,
) (*mapper.Job, error) {
	fail := func(what string, err error) (*mapper.Job, error) {
		return nil, fmt.Errorf("export: start %q: %w: %s: %w", x.name, mapper.ErrInvalidArgument, what, err)
	}
	var recorded startParams[json.RawMessage]
	// the parameters of an earlier start: a caller who repeats it may send these
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

// readNamed decodes the parameters of a start by name. It also returns the parameters of the
// export's function, which they contain.
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

// checkByName returns an error if the parameters of a start by name are invalid.
func (x *Export[P]) checkByName(given json.RawMessage) error {
	_, _, err := x.readNamed(given)
	return err
}

// strictly decodes JSON into v. It returns an error if v can't hold all of the JSON exactly, such
// as an unknown field.
func strictly(text json.RawMessage, v any) error {
	return strictjson.Decode(text, v)
}

// Plan estimates time and cost of an export of a query, as mapper.Mapper.Plan does. It includes the
// records of parts: a write, three reads and a delete for each page. It does not include what a
// bucket charges.
func (x *Export[P]) Plan(
	ctx context.Context, e *mapper.Engine, q mapper.Query, o *mapper.PlanOptions,
) (*mapper.Estimate, error) {
	var opts mapper.PlanOptions
	if o != nil {
		opts = *o
	}
	opts.PageSize = x.pageSize(opts.PageSize)
	est, err := x.parts.Plan(ctx, e, q, &opts)
	if err != nil {
		return nil, fmt.Errorf("export: plan %q: %w", x.name, err)
	}
	est.Usage.Writes += est.Pages
	// each of the three stages reads the records of all parts: to plan, join and delete
	est.Usage.Reads += 3 * est.Pages
	est.Usage.Deletes += est.Pages
	est.Dollars = e.Prices().Dollars(est.Usage)
	return est, nil
}
