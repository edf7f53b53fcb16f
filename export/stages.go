package export

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/names"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/tasks"
)

// A stage has the parameters of the second or third job of an export.
type stage struct {
	Export   string       `json:"export"` // the ID of the first job
	Run      string       `json:"run"`    // distinguishes this run from other exports with that ID
	Folder   string       `json:"folder"`
	Files    int          `json:"files"`
	Parts    int64        `json:"parts"`
	Records  int64        `json:"records"`
	Failures int64        `json:"failures"`
	Query    mapper.Query `json:"query"`

	Params json.RawMessage `json:"params,omitempty"` // the export's parameters

	Layout int `json:"layout,omitempty"` // the number of the layout: see layoutRuns
	// identifies how parts and files are written, see Options.coding
	Coding   string        `json:"coding,omitempty"`
	Coverage *mapper.Proof `json:"coverage,omitempty"` // the proof for the manifest; only in the third job
	// identifies the call of Write that planned the files, if the export was held
	Plan string `json:"plan,omitempty"`
}

func (s stage) place() place { return place{s.Folder, s.Run, s.Layout == 0} }

// A plannedFile is the record of a file: which parts belong to it, and later its size. The key has
// the file's number.
type plannedFile struct {
	From, To string `datastore:",noindex"` // the interval of the names of the file's parts
	Index    int64  `datastore:",noindex"`
	// the name in the manifest; empty if an older build has planned the file
	Name string `datastore:",noindex,omitempty"`
	Plan string `datastore:",noindex,omitempty"` // the Plan of the stage

	// The following fields are set when the file is written.
	Written bool   `datastore:",noindex"`
	Records int64  `datastore:",noindex"`
	Parts   int64  `datastore:",noindex"`
	Bytes   int64  `datastore:",noindex"`
	SHA256  string `datastore:",noindex"`
}

// OwnRecord implements [names.Record]: this is a record of scattermap.
func (*plannedFile) OwnRecord(names.Own) {}

func fileKey(run string, i int64) *datastore.Key {
	return datastore.NameKey(fileKind, entityName(run, fmt.Sprintf("%05d", i)), nil)
}

// exactParts is the largest number of parts whose sizes are read to plan the files exactly. That
// takes about three seconds.
const exactParts = 100_000

// plan ends the first stage: it assigns parts to files, and starts the second stage.
func (x *Export[P]) plan(ctx context.Context, e *mapper.Engine, status *mapper.Status, s stage) error {
	if status.Failures > 0 && !x.opts.AllowFailures {
		return nil // a retry of the failures ends with another call of plan
	}
	next, err := begunStage(ctx, e, x.joins, joinSuffix, s)
	switch {
	case err != nil:
		return err
	case next != nil && next.Plan != s.Plan:
		return fmt.Errorf("%w: its files are written already, with other numbers or parameters", mapper.ErrIDTaken)
	case next != nil:
		return nil
	}
	if err := s.place().wasDiscarded(ctx, x.bucket); err != nil {
		return err
	}
	all, err := x.stretches(ctx, e.Client(), s, status.Counters)
	if err != nil {
		return err
	}
	if err := x.checkNames(s, len(all)); err != nil {
		return mapper.Permanent(err)
	}
	s.Parts = status.Counters[partsCounter]
	s.Files, s.Records, s.Failures, s.Query = len(all), status.Counters[recordsCounter], status.Failures, status.Query
	keys, files := make([]*datastore.Key, len(all)), make([]plannedFile, len(all))
	for i, f := range all {
		keys[i], files[i] = fileKey(s.Run, int64(i)), plannedFile{From: f.From, To: f.To, Index: int64(i), Plan: s.Plan}
		if s.Layout != 0 { // an older build can't read a record with this field
			files[i].Name = x.fileName(s, files[i])
		}
	}
	if err := putFiles(ctx, e.Client(), s.Export+joinSuffix, keys, files); err != nil {
		return fmt.Errorf("put the files: %w", err)
	}
	return startStage(ctx, e, x.joins, joinSuffix, s, status)
}

// hasBegun reports whether the job of the next stage exists. The parameter next is its ID.
func hasBegun(ctx context.Context, client *datastore.Client, next string) (bool, error) {
	var job datastore.PropertyList
	err := client.Get(ctx, mapper.JobKey(next), &job)
	if errors.Is(err, datastore.ErrNoSuchEntity) {
		return false, nil
	}
	return err == nil, err
}

// begunStage does the same as nextStage. If the next stage's job m runs, it also starts the job
// again, which makes sure that the job has tasks. An earlier attempt may have died before it
// enqueued them.
func begunStage(
	ctx context.Context, e *mapper.Engine, m *mapper.Mapper[stage], suffix string, s stage,
) (*stage, error) {
	next, status, err := nextStage(ctx, e, s, suffix)
	if err != nil || next == nil || status.State != mapper.StateRunning {
		return next, err
	}
	opts := status.Settings
	opts.Queue = status.Queue
	_, err = m.Start(names.Owning(ctx), e, status.Query, *next, &opts)
	for _, final := range []error{mapper.ErrIDTaken, mapper.ErrInvalidArgument, mapper.ErrWrongQueue} {
		if errors.Is(err, final) { // another build has started it; a sweep also finds a job without tasks
			return next, nil
		}
	}
	return next, err
}

// nextStage returns the parameters and the status of the next stage's job, or nil if there is no
// such job. If the job exists, an earlier attempt has started it, and may have deleted what this
// attempt would read. The parameter suffix is the end of that job's ID. If the job belongs to
// another run, nextStage returns an error: this attempt is late, or another export has used the ID.
func nextStage(
	ctx context.Context, e *mapper.Engine, s stage, suffix string,
) (next *stage, status *mapper.Status, err error) {
	status, err = e.Job(s.Export + suffix).Status(ctx)
	if errors.Is(err, mapper.ErrNoSuchJob) {
		return nil, nil, nil
	}
	next = new(stage)
	if err == nil {
		err = json.Unmarshal(status.Params, next)
	}
	if err == nil && next.Run != s.Run {
		err = mapper.Permanent(fmt.Errorf("job %s belongs to another run, %q: clean it up, and resume this one",
			status.ID, next.Run))
	}
	return next, status, err
}

// checkNames returns an error if two files have the same name, or if a file has a name that the
// export itself uses.
func (x *Export[P]) checkNames(s stage, files int) error {
	s.Files = files
	seen := make(map[string]int, files)
	for i := range files {
		name := x.opts.Name(x.file(s, int64(i)))
		if err := checkPath("the name", name); err != nil || name == ManifestName {
			return fmt.Errorf("Options.Name returns %q for file %d, which is no path of names, begins with '_', or "+
				"is the manifest's", name, i)
		}
		if path := s.place().path(name); len(path) > longestPath {
			return fmt.Errorf("the names of files get too long: with the folder %q and its run, file %d has a name of "+
				"%d bytes, and buckets take up to %d", s.Folder, i, len(path), longestPath)
		}
		if other, there := seen[name]; there {
			return fmt.Errorf("Options.Name returns %q for both file %d and file %d", name, other, i)
		}
		seen[name] = i
	}
	return nil
}

// longestPath is the maximum length of a blob's name in bytes, in Google Cloud Storage, S3 and
// Azure.
const longestPath = 1024

// partName is an upper bound for the length of a part's name: see [mapper.Page.UniqueName].
const partName = 80

// checkLength returns an error if the folder of an export leaves no room for the names of its
// parts.
func (p place) checkLength() error {
	if n := len(p.part(strings.Repeat("0", partName))); n > longestPath {
		return fmt.Errorf("the folder %q is too long: it has %d bytes, and the longest name below it %d, of up to %d "+
			"that buckets take", p.folder, len(p.folder), n, longestPath)
	}
	return nil
}

// putFiles stores the records of planned files. The argument next is the ID of the next stage's
// job. If this job exists, an earlier attempt has stored the records, and putFiles changes nothing.
func putFiles(
	ctx context.Context, client *datastore.Client, next string, keys []*datastore.Key, files []plannedFile,
) error {
	// a transaction allows 500 entities, and this one also reads the next stage's job
	for i := 0; i < len(keys); i += 450 {
		j, begun := min(i+450, len(keys)), false
		_, err := client.RunInTransaction(ctx, func(tx *datastore.Transaction) error {
			var job datastore.PropertyList
			if err := tx.Get(mapper.JobKey(next), &job); !errors.Is(err, datastore.ErrNoSuchEntity) {
				begun = err == nil
				return err
			}
			_, err := tx.PutMulti(keys[i:j], files[i:j])
			return err
		})
		if err != nil || begun {
			return err
		}
	}
	return nil
}

// stretches returns the stretch of parts for each file. The counters are the ones of the first job.
func (x *Export[P]) stretches(
	ctx context.Context, client *datastore.Client, s stage, counters map[string]int64,
) (all []stretch, err error) {
	_, perPart := x.coder.extra(x.file(s.of(1), 0))
	var parts []size
	if counters[partsCounter] <= exactParts {
		err := eachPart(ctx, client, s.Run, stretch{}, func(name string, p part) error {
			parts = append(parts, size{name, p.Records, p.Bytes + perPart})
			return nil
		})
		if err != nil {
			return nil, err
		}
		if n := counters[partsCounter]; n != int64(len(parts)) {
			return nil, fmt.Errorf("there are %d parts, and %d were counted", len(parts), n)
		}
	}
	// The bytes of a file besides its parts may depend on the number of files.
	for n, perFile := max(1, s.Files), int64(-1); ; n = len(all) {
		more := x.perFile(s.of(n))
		if more <= perFile {
			return all, nil
		}
		perFile = more
		if counters[partsCounter] > exactParts {
			most := (x.opts.FileBytes - perFile) / 10 * 9
			files := numberOf(counters[bytesCounter]+perPart*counters[partsCounter], 0, most, s.Files)
			if err = x.checkFiles(files); err == nil {
				all = equal(files)
			}
		} else {
			all, err = x.divide(s, parts, perFile)
		}
		if err != nil {
			return nil, err
		}
	}
}

// of returns the stage with a number of files.
func (s stage) of(files int) stage {
	s.Files = files
	return s
}

// perFile returns the most bytes that a file of the stage has besides its parts.
func (x *Export[P]) perFile(s stage) (most int64) {
	for i := range s.Files {
		n, _ := x.coder.extra(x.file(s, int64(i)))
		most = max(most, n)
		if x.opts.Wrap == nil {
			break // all files are alike
		}
	}
	return most
}

// divide returns the stretch of parts for each file. The parameter perFile is the most bytes that a
// file has besides its parts. divide returns an error if a file would be larger than
// Options.FileBytes, or if there would be too many files.
func (x *Export[P]) divide(s stage, parts []size, perFile int64) ([]stretch, error) {
	total, largest, most := int64(0), int64(0), x.opts.FileBytes-perFile
	for _, p := range parts {
		total, largest = total+p.bytes, max(largest, p.bytes)
	}
	n := numberOf(total, largest, most, s.Files)
	if err := x.checkFiles(n); err != nil {
		return nil, err
	}
	all := even(parts, n)
	for i, f := range all {
		if f.Bytes <= most {
			continue
		}
		if own, _ := x.coder.extra(x.file(s.of(n), int64(i))); f.Bytes+own > x.opts.FileBytes {
			return nil, mapper.Permanent(fmt.Errorf("file %d of %d would have %d bytes, and Options.FileBytes is %d: "+
				"there have to be more files, or smaller pages", i+1, n, f.Bytes+own, x.opts.FileBytes))
		}
	}
	return all, nil
}

// checkFiles returns an error if an export would have too many files.
func (x *Export[P]) checkFiles(n int) error {
	if n > x.opts.MaxFiles {
		return mapper.Permanent(fmt.Errorf("there would have to be %d files of up to %d bytes, and Options.MaxFiles "+
			"is %d", n, x.opts.FileBytes, x.opts.MaxFiles))
	}
	return nil
}

// startStage starts the job of a stage, whose ID ends with suffix. The job processes the records of
// the run's files, with the queue and the retention of the stage before.
func startStage(
	ctx context.Context, e *mapper.Engine, m *mapper.Mapper[stage], suffix string, s stage, before *mapper.Status,
) error {
	q := mapper.Query{Kind: fileKind, Start: fileKey(s.Run, 0),
		End: datastore.NameKey(fileKind, entityName(s.Run, lastName), nil)}
	_, err := m.Start(names.Owning(ctx), e, q, s, &mapper.StartOptions{ID: s.Export + suffix, AllowOverlap: true,
		PageSize: 1, Queue: before.Queue, Retain: before.Settings.Retain,
		EntityTimeout: queueOf(e, before).DispatchDeadline() / 2}) // as long as the queue allows
	return err
}

// queueOf returns the queue of a job. If the engine does not have that queue, it returns the
// engine's first one.
func queueOf(e *mapper.Engine, job *mapper.Status) *tasks.Queue {
	for _, queue := range e.Queues() {
		if queue.Name() == job.Queue {
			return queue
		}
	}
	return e.Queue()
}

// file returns the description of the file with number i, for the user's functions.
func (x *Export[P]) file(s stage, i int64) File {
	return File{Index: int(i), Of: s.Files, Export: s.Export, Folder: s.Folder, Params: s.Params,
		Ext: x.coder.extension()}
}

// fileName returns the name of a file in the manifest. If the record has a name, that one counts,
// even if this build would choose another one.
func (x *Export[P]) fileName(s stage, f plannedFile) string {
	return cmp.Or(f.Name, s.place().name(x.opts.Name(x.file(s, f.Index))))
}

// list ends the second stage: it checks the files before any part is deleted, and starts the third
// stage.
func (x *Export[P]) list(ctx context.Context, d *mapper.Completion, s stage) error {
	if d.Status.Failures > 0 {
		return nil // a retry of the failures ends with another call of list
	}
	e := mapper.EngineFromContext(ctx)
	if next, err := begunStage(ctx, e, x.deletes, deleteSuffix, s); next != nil || err != nil {
		return err
	}
	if err := s.place().wasDiscarded(ctx, x.bucket); err != nil {
		return err
	}
	m, err := x.manifest(ctx, s)
	if err != nil {
		return err
	}
	proof, err := coverage(ctx, s)
	if err != nil {
		return err
	}
	if s.Layout == 0 { // an older build may run the end of the third stage, and needs the manifest before that
		m.Coverage = proof
		if err := x.publish(ctx, s, m); err != nil {
			return err
		}
	} else {
		s.Coverage = proof
	}
	return startStage(ctx, e, x.deletes, deleteSuffix, s, d.Status)
}

// manifest makes the manifest from the records of the files.
func (x *Export[P]) manifest(ctx context.Context, s stage) (*Manifest, error) {
	if err := x.opts.checkCoding(s.Coding); err != nil {
		return nil, err
	}
	keys, files := fileKeys(s), make([]plannedFile, s.Files)
	for i := 0; i < len(keys); i += 1000 {
		j := min(i+1000, len(keys))
		if err := mapper.EngineFromContext(ctx).Client().GetMulti(ctx, keys[i:j], files[i:j]); err != nil {
			return nil, fmt.Errorf("read the files: %w", err)
		}
	}
	m := &Manifest{Export: s.Export, Run: s.Run, Format: x.opts.Format, Compression: x.opts.Compression, Query: s.Query,
		Coverage: s.Coverage, Ended: time.Now().UTC()}
	for i, f := range files {
		if !f.Written {
			return nil, mapper.Permanent(fmt.Errorf("file %d was not written: this is a mistake in scattermap, "+
				"please report it", i))
		}
		m.Records += f.Records
		m.Bytes += f.Bytes
		m.Files = append(m.Files, ManifestFile{Name: x.fileName(s, f), Records: f.Records, Bytes: f.Bytes,
			SHA256: f.SHA256})
	}
	if err := checkTiles(s, files); err != nil {
		return nil, mapper.Permanent(err)
	}
	// The plan has counted this entity as a failure. It was retried before its file was joined, so
	// the file has it.
	retried := m.Records - s.Records
	if m.Failures = s.Failures - retried; retried < 0 || m.Failures < 0 {
		return nil, mapper.Permanent(fmt.Errorf("the files have %d records, and %d were counted: is a part missing?",
			m.Records, s.Records))
	}
	return m, nil
}

// checkTiles returns an error unless each part is in exactly one file, and the names of files
// differ. Both may be violated: large plans are recorded in several transactions, and two processes
// may record different plans at the same time.
func checkTiles(s stage, files []plannedFile) error {
	end, names := "", make(map[string]bool, len(files))
	for i, f := range files {
		if f.From != end || int64(i) != f.Index || f.Plan != s.Plan || f.Name != "" && names[f.Name] {
			return fmt.Errorf("file %d of run %s is of another plan than the one before: two processes have "+
				"planned at the same moment; discard the run, and start another export", i, s.Run)
		}
		end, names[f.Name] = f.To, true
	}
	if end != "" && end != lastName {
		return fmt.Errorf("the files of run %s end at %q: is one missing?", s.Run, end)
	}
	return nil
}

// publish writes the manifest of an export that an older build has started, unless the export was
// discarded.
func (x *Export[P]) publish(ctx context.Context, s stage, m *Manifest) error {
	decided, err := s.place().decide(ctx, x.bucket, m)
	if err == nil && decided.Discarded {
		err = s.place().errDiscarded()
	}
	if err != nil {
		return err
	}
	return s.place().copyManifest(ctx, x.bucket, decided)
}

func fileKeys(s stage) []*datastore.Key {
	keys := make([]*datastore.Key, s.Files)
	for i := range keys {
		keys[i] = fileKey(s.Run, int64(i))
	}
	return keys
}

// coverage returns the proof that the first job covered its query. It returns nil if making it
// would take too long, or if the job's records are cleaned up.
func coverage(ctx context.Context, s stage) (*mapper.Proof, error) {
	if s.Parts > exactParts {
		return nil, nil
	}
	proof, err := mapper.EngineFromContext(ctx).Job(s.Export).Verify(ctx, nil)
	switch {
	case errors.Is(err, mapper.ErrWrongState), errors.Is(err, mapper.ErrNoSuchJob):
		return nil, nil
	case err != nil:
		return nil, err
	}
	if err := proof.Err(); err != nil {
		return nil, mapper.Permanent(fmt.Errorf("verify job %s: %w", s.Export, err))
	}
	return proof, nil
}
