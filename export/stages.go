package export

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"strconv"

	"cloud.google.com/go/datastore"
	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"
	"golang.org/x/sync/errgroup"

	"github.com/scattermap/scattermap/mapper"
)

// A stage is what the second and third job of an export know of it.
type stage struct {
	Export   string       `json:"export"` // the ID of the first job
	Run      string       `json:"run"`    // and what tells it from others
	Folder   string       `json:"folder"`
	Files    int          `json:"files"`
	Parts    int64        `json:"parts"`
	Records  int64        `json:"records"`
	Failures int64        `json:"failures"`
	Query    mapper.Query `json:"query"`

	Params json.RawMessage `json:"params,omitempty"` // of the export
}

// A plannedFile is a file of an export, as its entity says. Its key has its index.
type plannedFile struct {
	From, To string `datastore:",noindex"` // the names of its parts
	Index    int64  `datastore:",noindex"`

	// Known once it is written.
	Written bool   `datastore:",noindex"`
	Records int64  `datastore:",noindex"`
	Parts   int64  `datastore:",noindex"`
	Bytes   int64  `datastore:",noindex"`
	SHA256  string `datastore:",noindex"`
}

func fileKey(run string, i int64) *datastore.Key {
	return datastore.NameKey(fileKind, entityName(run, fmt.Sprintf("%05d", i)), nil)
}

// exactParts is how many parts are read to plan files: some three seconds.
const exactParts = 100_000

// plan ends the first stage: it decides what is in which file, and starts the second one.
func (x *Export[P]) plan(ctx context.Context, d *mapper.Done, s stage) error {
	status, client := d.Status, mapper.FromContext(ctx).Client()
	if status.Failures > 0 && !x.opts.AllowFailures {
		return nil // a retry comes here again
	}
	if begun, err := hasBegun(ctx, client, s.Export+joinSuffix); begun || err != nil {
		return err
	}
	if c, err := claimed(ctx, x.bucket, s.Folder); err != nil {
		return err
	} else if c == nil || c.Run != s.Run {
		return mapper.Permanent(fmt.Errorf("the folder %q is not this export's any more: somebody has deleted %s there, or discarded the export", s.Folder, StartedName))
	}
	all, err := x.stretches(ctx, client, s, status.Counters)
	if err != nil {
		return err
	}
	keys, files := make([]*datastore.Key, len(all)), make([]plannedFile, len(all))
	for i, f := range all {
		keys[i], files[i] = fileKey(s.Run, int64(i)), plannedFile{From: f.From, To: f.To, Index: int64(i)}
	}
	if err := putFiles(ctx, client, s.Export+joinSuffix, keys, files); err != nil {
		return fmt.Errorf("put the files: %w", err)
	}
	if err := x.checkNames(s, len(all)); err != nil {
		return mapper.Permanent(err)
	}
	s.Parts = status.Counters[partsCounter]
	s.Files, s.Records, s.Failures, s.Query = len(all), status.Counters[recordsCounter], status.Failures, status.Query
	return startStage(ctx, x.joins, joinSuffix, s)
}

// hasBegun reports whether the job of the next stage has begun: an attempt before this one has started it, and what it was made of
// may be gone.
func hasBegun(ctx context.Context, client *datastore.Client, next string) (bool, error) {
	var job datastore.PropertyList
	err := client.Get(ctx, mapper.JobKey(next), &job)
	if errors.Is(err, datastore.ErrNoSuchEntity) {
		return false, nil
	}
	return err == nil, err
}

// checkNames returns an error unless files have different names, of which none is that of something else.
func (x *Export[P]) checkNames(s stage, files int) error {
	s.Files = files
	seen := make(map[string]int, files)
	for i := range files {
		name := x.opts.Name(x.file(s, int64(i)))
		if err := checkFolder(name); err != nil || name == ManifestName {
			return fmt.Errorf("Options.Name returns %q for file %d, which is no path of names, begins with '_', or is the manifest's", name, i)
		}
		if other, there := seen[name]; there {
			return fmt.Errorf("Options.Name returns %q for both file %d and file %d", name, other, i)
		}
		seen[name] = i
	}
	return nil
}

// putFiles records files that are planned, unless the next stage has begun: then another attempt has recorded them, and this one
// comes late.
func putFiles(ctx context.Context, client *datastore.Client, next string, keys []*datastore.Key, files []plannedFile) error {
	for i := 0; i < len(keys); i += 450 { // and the next stage's job, of 500 that a transaction may have
		j, begun := min(i+450, len(keys)), false
		_, err := client.RunInTransaction(ctx, func(tx *datastore.Transaction) error {
			var job datastore.PropertyList
			err := tx.Get(mapper.JobKey(next), &job)
			if begun = err == nil; begun || !errors.Is(err, datastore.ErrNoSuchEntity) {
				return err
			}
			_, err = tx.PutMulti(keys[i:j], files[i:j])
			return err
		})
		if err != nil || begun {
			return err
		}
	}
	return nil
}

// stretches returns what is in which file.
func (x *Export[P]) stretches(ctx context.Context, client *datastore.Client, s stage, counters map[string]int64) ([]stretch, error) {
	perFile, perPart, err := x.coder.extra(x.file(s, 0))
	if err != nil {
		return nil, err
	}
	most := x.opts.FileBytes - perFile
	if counters[partsCounter] > exactParts {
		n := numberOf(counters[bytesCounter]+perPart*counters[partsCounter], 0, most/10*9, s.Files)
		return equal(n), x.checkFiles(n)
	}
	var parts []size
	total, largest := int64(0), int64(0)
	err = eachPart(ctx, client, s.Run, stretch{}, func(name string, p part) error {
		parts = append(parts, size{name, p.Records, p.Bytes + perPart})
		total, largest = total+p.Bytes+perPart, max(largest, p.Bytes+perPart)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if n := counters[partsCounter]; n != int64(len(parts)) {
		return nil, fmt.Errorf("there are %d parts, and %d were counted", len(parts), n)
	}
	n := numberOf(total, largest, most, s.Files)
	if err := x.checkFiles(n); err != nil {
		return nil, err
	}
	all := even(parts, n)
	for i, f := range all {
		if f.Bytes > most {
			return nil, mapper.Permanent(fmt.Errorf("file %d of %d would have %d bytes, and Options.FileBytes is %d: there have to be more files, or smaller parts (StartOptions.PageSize)", i+1, n, f.Bytes+perFile, x.opts.FileBytes))
		}
	}
	return all, nil
}

// checkFiles returns an error if there would be too many files.
func (x *Export[P]) checkFiles(n int) error {
	if n > x.opts.MaxFiles {
		return mapper.Permanent(fmt.Errorf("there would have to be %d files of up to %d bytes, and Options.MaxFiles is %d", n, x.opts.FileBytes, x.opts.MaxFiles))
	}
	return nil
}

// startStage starts the job of a stage, over the files.
func startStage(ctx context.Context, m *mapper.Mapper[stage], suffix string, s stage) error {
	e := mapper.FromContext(ctx)
	q := mapper.Query{Kind: fileKind, Start: fileKey(s.Run, 0), End: datastore.NameKey(fileKind, entityName(s.Run, lastName), nil)}
	_, err := m.Start(ctx, e, q, s, &mapper.StartOptions{ID: s.Export + suffix, PageSize: 1, Timeout: e.Queue().Deadline() / 2})
	return err
}

// file returns what a function of the user is told of a file.
func (x *Export[P]) file(s stage, i int64) File {
	return File{Index: int(i), Of: s.Files, Export: s.Export, Folder: s.Folder, Params: s.Params, Ext: x.coder.extension()}
}

func (x *Export[P]) filePath(s stage, i int64) string {
	return s.Folder + "/" + x.opts.Name(x.file(s, i))
}

// join writes a file of its parts. It may be done several times: a file is the same each time.
func (x *Export[P]) join(ctx context.Context, e *mapper.Entity[plannedFile], s stage) (plannedFile, error) {
	f := e.Value
	f.Records, f.Parts, f.Bytes = 0, 0, 0
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // before Close it drops what was written
	w, err := x.bucket.NewWriter(ctx, x.filePath(s, f.Index), &blob.WriterOptions{DisableContentTypeDetection: true})
	if err != nil {
		return f, fmt.Errorf("write a file: %w", err)
	}
	counting := &counter{w: w, sum: sha256.New()}
	err = x.joinParts(ctx, mapper.FromContext(ctx).Client(), counting, &f, s)
	if err != nil {
		cancel()
		_ = w.Close() // which fails, as its context has ended
		return f, err
	}
	if err := w.Close(); err != nil {
		return f, fmt.Errorf("write a file: %w", err)
	}
	f.Written, f.Bytes, f.SHA256 = true, counting.n, hex.EncodeToString(counting.sum.Sum(nil))
	return f, nil
}

// joinParts writes the parts of a file, one behind the other.
func (x *Export[P]) joinParts(ctx context.Context, client *datastore.Client, w io.Writer, f *plannedFile, s stage) error {
	parts, errs := make(chan string, 16), make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer close(parts)
		errs <- eachPart(ctx, client, s.Run, stretch{From: f.From, To: f.To}, func(name string, p part) error {
			select {
			case parts <- name:
				f.Records += p.Records
				f.Parts++
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	next := func() (io.ReadCloser, error) {
		name, ok := <-parts
		if !ok {
			return nil, cmp.Or(<-errs, io.EOF)
		}
		return x.bucket.NewReader(ctx, partPath(s.Folder, name), nil)
	}
	err := x.coder.join(w, x.file(s, f.Index), next)
	cancel()
	for range parts { // so that nobody changes f any more
	}
	return err
}

// A counter counts and sums what is written.
type counter struct {
	w   io.Writer
	n   int64
	sum hash.Hash
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	c.sum.Write(p[:n])
	return n, err
}

// putJoined records files that were written.
func putJoined(_ context.Context, p *mapper.Page[plannedFile], s stage) error {
	for _, f := range p.Records {
		p.Put(fileKey(s.Run, f.Index), &f)
	}
	return nil
}

// list ends the second stage: it writes the manifest, and starts the third one.
func (x *Export[P]) list(ctx context.Context, d *mapper.Done, s stage) error {
	if d.Status.Failures > 0 {
		return nil // a retry comes here again
	}
	client := mapper.FromContext(ctx).Client()
	begun, err := hasBegun(ctx, client, s.Export+deleteSuffix)
	if begun || err != nil {
		return err
	}
	keys, files := make([]*datastore.Key, s.Files), make([]plannedFile, s.Files)
	for i := range keys {
		keys[i] = fileKey(s.Run, int64(i))
	}
	for i := 0; i < len(keys); i += 1000 {
		if err := client.GetMulti(ctx, keys[i:min(i+1000, len(keys))], files[i:min(i+1000, len(keys))]); err != nil {
			return fmt.Errorf("read the files: %w", err)
		}
	}
	m := &Manifest{Export: s.Export, Run: s.Run, Format: x.opts.Format, Compression: x.opts.Compression, Query: s.Query, Failures: s.Failures}
	for i, f := range files {
		if !f.Written {
			return mapper.Permanent(fmt.Errorf("file %d was not written: this is a mistake in scattermap, please report it", i))
		}
		m.Records += f.Records
		m.Bytes += f.Bytes
		m.Files = append(m.Files, ManifestFile{Name: x.opts.Name(x.file(s, int64(i))), Records: f.Records, Bytes: f.Bytes, SHA256: f.SHA256})
	}
	if m.Records != s.Records {
		return mapper.Permanent(fmt.Errorf("the files have %d records, and %d were counted: is a part missing?", m.Records, s.Records))
	}
	if m.Coverage, err = coverage(ctx, s); err != nil {
		return err
	}
	if err := m.write(ctx, x.bucket, s.Folder); err != nil {
		return err
	}
	return startStage(ctx, x.deletes, deleteSuffix, s)
}

// coverage returns the proof that the job has covered its query; nil, if that would take too long.
func coverage(ctx context.Context, s stage) (*mapper.Proof, error) {
	if s.Parts > exactParts {
		return nil, nil
	}
	proof, err := mapper.FromContext(ctx).Job(s.Export).Verify(ctx)
	if err != nil {
		return nil, err
	}
	if len(proof.Problems) > 0 {
		return nil, mapper.Permanent(fmt.Errorf("the records of job %s do not prove that it covered its query: %s", s.Export, proof.Problems[0]))
	}
	return proof, nil
}

// deleteParts deletes a share of the parts, with what nobody has recorded, for each file.
func (x *Export[P]) deleteParts(ctx context.Context, e *mapper.Entity[plannedFile], s stage) error {
	client := mapper.FromContext(ctx).Client()
	var keys []*datastore.Key
	flush := func() error {
		err := client.DeleteMulti(ctx, keys)
		keys = nil
		return err
	}
	err := eachPart(ctx, client, s.Run, stretch{From: e.Value.From, To: e.Value.To}, func(name string, _ part) error {
		if keys = append(keys, datastore.NameKey(partKind, entityName(s.Run, name), nil)); len(keys) == 500 {
			return flush()
		}
		return nil
	})
	if err == nil && len(keys) > 0 {
		err = flush()
	}
	if err != nil {
		return fmt.Errorf("delete the records of parts: %w", err)
	}
	for i := range int64(256) { // the folders of parts
		if i*int64(min(s.Files, 256))/256 == e.Value.Index {
			if err := deleteAll(ctx, x.bucket, partsFolder(s.Folder)+strconv.FormatInt(256+i, 16)[1:]+"/", nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// deletesAtOnce is how many blobs a task deletes at the same time.
const deletesAtOnce = 16

// deleteAll deletes all blobs with a prefix, but for those to keep.
func deleteAll(ctx context.Context, bucket *blob.Bucket, prefix string, keep map[string]bool) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(deletesAtOnce)
	for it := bucket.List(&blob.ListOptions{Prefix: prefix}); ; {
		found, err := it.Next(ctx)
		if errors.Is(err, io.EOF) {
			return group.Wait()
		}
		if err != nil {
			return errors.Join(group.Wait(), fmt.Errorf("list the parts: %w", err))
		}
		if keep[found.Key] {
			continue
		}
		group.Go(func() error {
			if err := bucket.Delete(ctx, found.Key); err != nil && gcerrors.Code(err) != gcerrors.NotFound {
				return fmt.Errorf("delete a part: %w", err)
			}
			return nil
		})
	}
}

// succeed ends the third stage, and the export.
func (x *Export[P]) succeed(ctx context.Context, d *mapper.Done, s stage) error {
	if d.Status.Failures > 0 {
		return nil
	}
	m, err := ReadManifest(ctx, x.bucket, s.Folder)
	if err != nil {
		return err
	}
	if m.Run != s.Run {
		return mapper.Permanent(fmt.Errorf("the manifest in the folder %q is that of another export, %q", s.Folder, m.Run))
	}
	// The folder was empty when the export began. What else is there is parts that came late, and what processes that were killed
	// have written halfway.
	keep := map[string]bool{s.Folder + "/" + ManifestName: true, s.Folder + "/" + SuccessName: true, s.Folder + "/" + StartedName: true}
	for _, f := range m.Files {
		keep[s.Folder+"/"+f.Name] = true
	}
	if err := deleteAll(ctx, x.bucket, s.Folder+"/", keep); err != nil {
		return err
	}
	keys := make([]*datastore.Key, s.Files)
	for i := range keys {
		keys[i] = fileKey(s.Run, int64(i))
	}
	for some := range slices.Chunk(keys, 500) {
		if err := mapper.FromContext(ctx).Client().DeleteMulti(ctx, some); err != nil {
			return fmt.Errorf("delete the records of files: %w", err)
		}
	}
	// The manifest says whose the folder is from here on.
	if err := dropClaim(ctx, x.bucket, s.Folder, s.Run); err != nil {
		return err
	}
	if err := x.bucket.WriteAll(ctx, s.Folder+"/"+SuccessName, nil, nil); err != nil {
		return fmt.Errorf("write the mark of success: %w", err)
	}
	return nil
}
