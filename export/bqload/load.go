// Package bqload loads what package export has written into BigQuery: all files of a manifest by one load job, which takes effect as a
// whole. It has been run against BigQuery's client and a server that checks its requests, and not against BigQuery itself.
package bqload

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"time"

	"cloud.google.com/go/bigquery"
	"google.golang.org/api/googleapi"

	"github.com/scattermap/scattermap/export"
)

// Options say what to load where.
type Options struct {
	// Bucket is where the export's folder is, such as gs://my-exports; with a prefix, if the export's bucket has one. Required.
	Bucket string
	// Folder is the folder of the export. Required.
	Folder string
	// Table is where the records go. Required. It is made if it does not exist.
	Table *bigquery.Table
	// Replace has them replace what the table has. By default they are appended.
	Replace bool
	// Schema is that of JSON Lines and CSV. By default it is that of the type of records. Files of Avro and Parquet have their own.
	Schema bigquery.Schema
}

// mostFiles is how many files a load job may have
// (https://cloud.google.com/bigquery/quotas#load_jobs).
const mostFiles = 10_000

// Load starts the load job of a manifest, or returns the one that was started for it, with the same table and in the same way: its ID
// says which it is, so that a second call loads nothing twice. Job.Wait waits for its end. The records are of the type R.
func Load[R any](ctx context.Context, client *bigquery.Client, m *export.Manifest, o Options) (*bigquery.Job, error) {
	fail := func(err error) (*bigquery.Job, error) { return nil, fmt.Errorf("bqload: export %s: %w", m.Export, err) }
	switch {
	case !strings.HasPrefix(o.Bucket, "gs://"):
		return fail(fmt.Errorf("Options.Bucket is %q, want one like gs://my-exports", o.Bucket))
	case o.Folder == "" || o.Table == nil:
		return fail(errors.New("Options.Folder and Options.Table are required"))
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
	loader := o.Table.LoaderFrom(source)
	loader.JobID = jobID(m, o)
	loader.CreateDisposition = bigquery.CreateIfNeeded
	loader.WriteDisposition = bigquery.WriteAppend
	if o.Replace {
		loader.WriteDisposition = bigquery.WriteTruncate
	}
	loader.UseAvroLogicalTypes = m.Format == export.Avro
	job, err := loader.Run(ctx)
	if known := new(googleapi.Error); errors.As(err, &known) && known.Code == http.StatusConflict {
		job, err = client.JobFromProject(ctx, client.Project(), loader.JobID, o.Table.DatasetID)
		if err != nil {
			job, err = client.JobFromID(ctx, loader.JobID)
		}
	}
	if err != nil {
		return fail(err)
	}
	return job, nil
}

// jobID returns the ID of the load job: of the run, the table and the way.
func jobID(m *export.Manifest, o Options) string {
	h := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%s\x00%s\x00%t", m.Run, o.Table.ProjectID, o.Table.DatasetID, o.Table.TableID, o.Replace))
	return "scattermap-" + hex.EncodeToString(h[:16])
}

// describe says how files are written.
func describe[R any](source *bigquery.GCSReference, m *export.Manifest, schema bigquery.Schema) error {
	tag := ""
	switch m.Format {
	case export.JSONLines:
		source.SourceFormat, tag = bigquery.JSON, "json"
	case export.CSV:
		source.SourceFormat, tag = bigquery.CSV, "csv"
		source.SkipLeadingRows, source.AllowQuotedNewlines = 1, true
	case export.Avro:
		source.SourceFormat = bigquery.Avro
	case export.Parquet:
		source.SourceFormat = bigquery.Parquet
	default:
		return fmt.Errorf("BigQuery does not load the format %q: export %q, %q, %q or %q", m.Format, export.JSONLines, export.CSV, export.Avro, export.Parquet)
	}
	if tag == "" {
		return nil
	}
	switch m.Compression {
	case export.Gzip:
		source.Compression = bigquery.Gzip
	case export.Zstd:
		return fmt.Errorf("BigQuery does not load %q that is compressed by %q: export with %q", m.Format, m.Compression, export.Gzip)
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
	timeType  = reflect.TypeFor[time.Time]()
	bytesType = reflect.TypeFor[[]byte]()
)

// schemaOf returns the schema of a struct, whose fields have the names of their tags.
func schemaOf(t reflect.Type, tag string) (bigquery.Schema, error) {
	if t.Kind() != reflect.Struct {
		return nil, fmt.Errorf("%v has no schema: set Options.Schema", t)
	}
	var schema bigquery.Schema
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get(tag), ",")
		if !f.IsExported() || name == "-" {
			continue
		}
		if name == "" {
			name = f.Name
		}
		field, err := fieldOf(f.Type, tag)
		if err != nil {
			return nil, fmt.Errorf("field %s of %v: %w", f.Name, t, err)
		}
		field.Name = name
		schema = append(schema, field)
	}
	return schema, nil
}

func fieldOf(t reflect.Type, tag string) (*bigquery.FieldSchema, error) {
	switch {
	case t.Kind() == reflect.Pointer:
		return fieldOf(t.Elem(), tag)
	case t == timeType:
		return &bigquery.FieldSchema{Type: bigquery.TimestampFieldType}, nil
	case t == bytesType:
		return &bigquery.FieldSchema{Type: bigquery.BytesFieldType}, nil
	}
	switch t.Kind() {
	case reflect.Bool:
		return &bigquery.FieldSchema{Type: bigquery.BooleanFieldType}, nil
	case reflect.String:
		return &bigquery.FieldSchema{Type: bigquery.StringFieldType}, nil
	case reflect.Float32, reflect.Float64:
		return &bigquery.FieldSchema{Type: bigquery.FloatFieldType}, nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint8, reflect.Uint16, reflect.Uint32:
		return &bigquery.FieldSchema{Type: bigquery.IntegerFieldType}, nil
	case reflect.Slice:
		field, err := fieldOf(t.Elem(), tag)
		if err == nil && field.Repeated {
			err = errors.New("BigQuery has no lists of lists")
		}
		if err != nil {
			return nil, err
		}
		field.Repeated = true
		return field, nil
	case reflect.Struct:
		schema, err := schemaOf(t, tag)
		return &bigquery.FieldSchema{Type: bigquery.RecordFieldType, Schema: schema}, err
	}
	return nil, fmt.Errorf("BigQuery has no type for %v: set Options.Schema", t)
}
