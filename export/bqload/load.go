// Package bqload loads the files of an export into BigQuery. One load job takes all files of a
// manifest, and takes effect completely or not at all. The package was tested with BigQuery's
// client against a server that checks the requests, and not against BigQuery itself.
package bqload

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/bigquery"
	"google.golang.org/api/googleapi"

	"github.com/scattermap/scattermap/export"
)

// Options are the settings of [Load].
type Options struct {
	// Bucket is the URL of the export's bucket, such as gs://my-exports. If the export's bucket has
	// a prefix, add the prefix. Required.
	Bucket string
	// Folder is the export's folder in the bucket. Required.
	Folder string
	// Table is the destination. BigQuery creates it if it does not exist. Required.
	Table *bigquery.Table
	// Replace replaces the table's records. By default the records are appended.
	Replace bool
	// Schema is the schema of files in JSON Lines and CSV. By default it is derived from the type
	// R. Files in Avro and Parquet contain their schema.
	Schema bigquery.Schema
}

// mostFiles is how many files a load job may have
// (https://cloud.google.com/bigquery/quotas#load_jobs).
const mostFiles = 10_000

// Load starts a load job for the files of a manifest, and returns the job without waiting. Call its
// Wait method, and check the status. R is the type of the export's records.
//
// A second call with the same manifest, table and options returns the same job, so nothing is
// loaded twice. If that job has failed, it has loaded nothing, and Load starts another one.
func Load[R any](ctx context.Context, client *bigquery.Client, m *export.Manifest, o Options) (*bigquery.Job, error) {
	fail := func(err error) (*bigquery.Job, error) { return nil, fmt.Errorf("bqload: export %s: %w", m.Export, err) }
	switch {
	case !strings.HasPrefix(o.Bucket, "gs://"):
		return fail(fmt.Errorf("Options.Bucket is %q, want one like gs://my-exports", o.Bucket))
	case o.Folder == "" || o.Table == nil:
		return fail(errors.New("Options.Folder and Options.Table are required"))
	case m.Discarded:
		return fail(errors.New("it was discarded, and has no files: read the manifest by export.ReadManifest"))
	case len(m.Files) > mostFiles:
		return fail(fmt.Errorf("the export has %d files, and a load job up to %d", len(m.Files), mostFiles))
	}
	source := bigquery.NewGCSReference()
	for _, f := range m.Files {
		source.URIs = append(source.URIs, strings.TrimSuffix(o.Bucket, "/")+"/"+o.Folder+"/"+f.Name)
	}
	if err := describe[R](source, m, o.Schema); err != nil {
		return fail(err)
	}
	id := jobID(m, o)
	for attempt := 1; ; attempt++ {
		loader := o.Table.LoaderFrom(source)
		if loader.JobID = id; attempt > 1 {
			loader.JobID = fmt.Sprintf("%s-%d", id, attempt)
		}
		loader.CreateDisposition = bigquery.CreateIfNeeded
		loader.WriteDisposition = bigquery.WriteAppend
		if o.Replace {
			loader.WriteDisposition = bigquery.WriteTruncate
		}
		loader.UseAvroLogicalTypes = m.Format == export.Avro
		job, err := loader.Run(ctx)
		if known := new(googleapi.Error); errors.As(err, &known) && known.Code == http.StatusConflict {
			job, err = find(ctx, client, o.Table, loader.JobID)
			if err == nil && job.LastStatus().Done() && job.LastStatus().Err() != nil && attempt < mostAttempts {
				continue // this attempt has failed, so it has loaded nothing
			}
		}
		if err != nil {
			return fail(err)
		}
		return job, nil
	}
}

// mostAttempts is the maximum number of load jobs for the same files. Load starts another one only
// if all earlier ones have failed.
const mostAttempts = 1000

// find returns the load job with an ID. BigQuery needs a job's location, which is the location of
// the table's dataset.
func find(ctx context.Context, client *bigquery.Client, table *bigquery.Table, id string) (*bigquery.Job, error) {
	dataset, err := client.DatasetInProject(table.ProjectID, table.DatasetID).Metadata(ctx)
	if err != nil {
		return nil, fmt.Errorf("read where the dataset is, to find load job %s: %w", id, err)
	}
	job, err := client.JobFromIDLocation(ctx, id, dataset.Location)
	if err != nil {
		return nil, fmt.Errorf("find load job %s in %s: %w", id, dataset.Location, err)
	}
	return job, nil
}

// jobID returns the ID of the first load job. It depends on the run, the table and the options.
func jobID(m *export.Manifest, o Options) string {
	of := fmt.Appendf(nil, "%s\x00%s\x00%s\x00%s\x00%t", m.Run, o.Table.ProjectID, o.Table.DatasetID, o.Table.TableID,
		o.Replace)
	if o.Schema != nil {
		schema, _ := o.Schema.ToJSONFields() // texts and numbers can always be encoded
		of = append(append(of, 0), schema...)
	}
	h := sha256.Sum256(of)
	return "scattermap-" + hex.EncodeToString(h[:16])
}

// describe sets the format of the files in source, and its schema.
func describe[R any](source *bigquery.GCSReference, m *export.Manifest, schema bigquery.Schema) error {
	tag := ""
	switch m.Format {
	case export.JSONLines:
		source.SourceFormat, tag = bigquery.JSON, "json"
	case export.CSV:
		source.SourceFormat, tag = bigquery.CSV, "csv"
		source.SkipLeadingRows, source.AllowQuotedNewlines = 1, true
		source.PreserveASCIIControlCharacters = true // BigQuery would refuse a text with a NUL
	case export.Avro:
		source.SourceFormat = bigquery.Avro
	case export.Parquet:
		source.SourceFormat = bigquery.Parquet
	default:
		return fmt.Errorf("BigQuery does not load the format %q: export %q, %q, %q or %q", m.Format, export.JSONLines,
			export.CSV, export.Avro, export.Parquet)
	}
	if tag == "" {
		return nil
	}
	switch m.Compression {
	case export.Uncompressed:
	case export.Gzip:
		source.Compression = bigquery.Gzip
	case export.Zstd:
		return fmt.Errorf("BigQuery does not load %q that is compressed by %q: export with %q", m.Format, m.Compression,
			export.Gzip)
	}
	if schema == nil {
		var err error
		if schema, err = schemaOf(reflect.TypeFor[R](), tag); err != nil {
			return err
		}
	}
	source.Schema = schema
	return nil
}

var (
	timeType      = reflect.TypeFor[time.Time]()
	rawType       = reflect.TypeFor[json.RawMessage]()
	textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()
	jsonMarshaler = reflect.TypeFor[json.Marshaler]()
)

// schemaOf returns the BigQuery schema of a struct. The fields have the names in their tags with
// the given key.
func schemaOf(t reflect.Type, tag string, above ...reflect.Type) (bigquery.Schema, error) {
	if t.Kind() != reflect.Struct || t.Implements(jsonMarshaler) && tag == "json" {
		return nil, fmt.Errorf("the schema of %v is not known: set Options.Schema", t)
	}
	if slices.Contains(above, t) {
		return nil, fmt.Errorf("%v is inside itself, and BigQuery has no such types", t)
	}
	above = append(slices.Clip(above), t)
	var schema bigquery.Schema
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get(tag), ",")
		if !f.IsExported() && !f.Anonymous || name == "-" {
			continue
		}
		field, err := fieldOf(f.Type, tag, above)
		if err != nil {
			return nil, fmt.Errorf("field %s of %v: %w", f.Name, t, err)
		}
		if f.Anonymous && name == "" && field.Type == bigquery.RecordFieldType {
			// in both formats, fields of an embedded struct are fields of the outer one
			schema = append(schema, field.Schema...)
			continue
		}
		field.Name = cmp.Or(name, f.Name)
		schema = append(schema, field)
	}
	seen := make(map[string]string)
	for _, f := range schema {
		if other, there := seen[strings.ToLower(f.Name)]; there {
			return nil, fmt.Errorf("%v has two fields of the names %q and %q, which BigQuery takes for one: "+
				"give one of them another name", t, other, f.Name)
		}
		seen[strings.ToLower(f.Name)] = f.Name
	}
	return schema, nil
}

// plainTypes are the BigQuery types for simple Go kinds.
var plainTypes = map[reflect.Kind]bigquery.FieldType{
	reflect.Bool: bigquery.BooleanFieldType, reflect.String: bigquery.StringFieldType,
	reflect.Float32: bigquery.FloatFieldType, reflect.Float64: bigquery.FloatFieldType,
	reflect.Int: bigquery.IntegerFieldType, reflect.Int8: bigquery.IntegerFieldType,
	reflect.Int16: bigquery.IntegerFieldType, reflect.Int32: bigquery.IntegerFieldType,
	reflect.Int64: bigquery.IntegerFieldType, reflect.Uint8: bigquery.IntegerFieldType,
	reflect.Uint16: bigquery.IntegerFieldType, reflect.Uint32: bigquery.IntegerFieldType,
}

func fieldOf(t reflect.Type, tag string, above []reflect.Type) (*bigquery.FieldSchema, error) {
	switch {
	case t == timeType:
		return &bigquery.FieldSchema{Type: bigquery.TimestampFieldType}, nil
	case t == rawType:
		return &bigquery.FieldSchema{Type: bigquery.JSONFieldType}, nil
	case tag == "json" && (t.Implements(jsonMarshaler) || reflect.PointerTo(t).Implements(jsonMarshaler)):
		return nil, fmt.Errorf("what %v is in JSON is not known: set Options.Schema", t)
	case t.Implements(textMarshaler) || reflect.PointerTo(t).Implements(textMarshaler):
		return &bigquery.FieldSchema{Type: bigquery.StringFieldType}, nil
	case t.Kind() == reflect.Pointer:
		return fieldOf(t.Elem(), tag, above)
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8:
		return &bigquery.FieldSchema{Type: bigquery.BytesFieldType}, nil // JSON and CSV have bytes as base64
	}
	if plain := plainTypes[t.Kind()]; plain != "" {
		return &bigquery.FieldSchema{Type: plain}, nil
	}
	switch t.Kind() {
	case reflect.Slice, reflect.Array:
		field, err := fieldOf(t.Elem(), tag, above)
		if err == nil && field.Repeated {
			err = errors.New("BigQuery has no lists of lists")
		}
		if err != nil {
			return nil, err
		}
		field.Repeated = true
		return field, nil
	case reflect.Struct:
		schema, err := schemaOf(t, tag, above...)
		if err == nil && len(schema) == 0 {
			err = fmt.Errorf("%v has no fields: set Options.Schema", t)
		}
		return &bigquery.FieldSchema{Type: bigquery.RecordFieldType, Schema: schema}, err
	}
	return nil, fmt.Errorf("BigQuery has no type for %v: set Options.Schema", t)
}
