package prebuilt

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/names"
	"github.com/scattermap/scattermap/internal/pbvalue"
	"github.com/scattermap/scattermap/internal/strictjson"
	"github.com/scattermap/scattermap/internal/value"
	"github.com/scattermap/scattermap/mapper"
)

// EraseName is the name of the mapper that [Erase] returns. Starts of its jobs need no kind.
const EraseName = "erase"

// EraseOptions are the settings of [Erase]. Both are required.
type EraseOptions struct {
	// Key signs certificates. They contain its public key. Publish the public key in another place,
	// too, so that readers can trust it.
	Key ed25519.PrivateKey

	// Keep stores a certificate under a name, for example in a bucket:
	//
	//	func(ctx context.Context, name string, certificate []byte) error {
	//		return bucket.WriteAll(ctx, name, certificate, nil)
	//	}
	//
	// It may be called several times for a job, and the last call counts. If it returns an error,
	// the job is not done, and Keep is called again.
	Keep func(ctx context.Context, name string, certificate []byte) error
}

// EraseParams are the parameters of [Erase].
type EraseParams struct {
	// Property and Value name a tenant: all entities that have the value in the property, alone or
	// in an array. If both are absent, the job erases a namespace. A dot in the property's name
	// leads into embedded entities. Values have types: "7", 7 and 7.0 are three different values.
	// If no entity has the value, the job succeeds, and its certificate says that it deleted 0
	// entities: so rehearse it first (StartOptions.DryRun). The counter "erase/with property" has
	// the entities that have the property, with any value.
	Property string `json:"property,omitempty"`
	Value    *Value `json:"value,omitempty"`

	// AllowMissing lets the job succeed although no entity has the property. By default it then
	// fails without a certificate, because the property's name may be mistyped.
	AllowMissing bool `json:"allow_missing,omitempty"`

	// Words are further texts that identify the tenant or namespace, such as a customer's address.
	// They are also removed from the records of other jobs. If a word is an integer, such as
	// "4711", it also matches stored integers. Records are not searched for a Value that is a bool
	// or a float, so give words for such a tenant.
	Words []string `json:"words,omitempty"`

	// AllKinds says that the query has all kinds of its namespaces. The start sets it. Do not set
	// it yourself.
	AllKinds bool `json:"all_kinds,omitempty"`
}

// Erase returns the mapper "erase". It deletes all entities of a namespace, or of a tenant. Then it
// removes them from the records of other jobs, and stores a signed [Certificate] under the name
// "JOB.certificate.json". Start it by [mapper.Engine.StartByName].
//
// To erase a namespace, the query must have this namespace and nothing else. The job covers the
// kinds that the namespace has when the job starts, at most 500. The empty namespace is refused.
//
// To erase a tenant, set [EraseParams].Property and Value. The query may name kinds and namespaces;
// the default is all. The job reads all their entities, because no query finds values that are not
// indexed.
//
// The records of other jobs have keys, values and errors of the entities that these jobs processed.
// The erasure removes them:
//
//   - Ended jobs are cleaned up with their failures. They can't be undone, retried or verified any
//     more. For a tenant, this concerns all jobs of the database. For a namespace, it concerns the
//     jobs that touched it.
//   - A job that has not ended, or is being undone, prevents the erasure. The start is refused, or
//     the erasure fails, and the error names the job. Wait for its end or abort it, and resume the
//     erasure.
//
// [mapper.Completion.Forget] has the details. When the erasure has succeeded, its own records are
// gone too, and it can't be undone. Only its ID stays, so choose an ID that reveals nothing. The
// start refuses an ID that contains the tenant's value or one of EraseParams.Words.
//
// If others put entities of the namespace or tenant while the job runs, it fails without a
// certificate. Start another one then. The job may overlap with all other jobs, as with
// StartOptions.AllowOverlap.
func Erase(o EraseOptions) mapper.AnyMapper {
	m := mapper.Update(EraseName, func(_ context.Context, e *mapper.Entity[entity], p EraseParams) error {
		if p.Property != "" {
			there, has, indexed := p.has(e.Stored())
			if there {
				e.Count(withPropertyCounter, 1)
			}
			switch {
			case !has:
				return mapper.Skip
			case !indexed:
				e.Count(unindexedCounter, 1)
			}
		}
		e.Delete(e.Key)
		return nil
	}).WithDescription("Erases a namespace or a tenant, also from the records of all jobs, and signs a certificate.").
		WithFinalizer(func(_ context.Context, d *mapper.Completion, _ EraseParams) error {
			return mapper.Permanent(fmt.Errorf("%d entities could not be deleted, so there is no certificate: retry "+
				"the job", d.Status.Failures))
		}).Forget(func(ctx context.Context, d *mapper.Completion, p EraseParams) error { return o.certify(ctx, d, p) })
	m.CheckByName(nil, func(params json.RawMessage) error {
		var p EraseParams
		if err := readErase(params, &p); err != nil {
			return err
		}
		return p.Validate()
	})
	return m.WithStarter(func(ctx context.Context, e *mapper.Engine, q mapper.Query, params json.RawMessage,
		opts *mapper.StartOptions) (*mapper.Job, error) {
		var p EraseParams
		bad := readErase(params, &p)
		given := mapper.StartOptions{}
		if opts != nil {
			given = *opts
		}
		if bad == nil {
			bad = p.Validate()
		}
		if bad == nil {
			bad = o.check(q, p, given)
		}
		if bad != nil {
			return nil, fmt.Errorf("erase: %w: %w", mapper.ErrInvalidArgument, bad)
		}
		p.AllKinds = p.Property != "" && q.Kind == "" && len(q.Kinds) == 0
		kinds, there, err := kindsOfJob(ctx, e, given.ID)
		if err != nil {
			return nil, fmt.Errorf("erase: %w", err)
		}
		if err := complete(ctx, e, &q, p, kinds); err != nil {
			return nil, fmt.Errorf("erase: %w", err)
		}
		if !given.DryRun && !there {
			if err := unfinished(ctx, e, q, p, given.ID); err != nil {
				return nil, fmt.Errorf("erase: %w", err)
			}
		}
		given.AllowOverlap = true
		return m.Start(ctx, e, q, p, &given)
	})
}

// EraseQuery returns the query of a job of the mapper "erase", with all the kinds and namespaces
// that a start by name would add now. Use it to plan an erasure. The error is
// [mapper.ErrInvalidArgument] if the parameters are wrong, or if there is nothing to erase.
func EraseQuery(ctx context.Context, e *mapper.Engine, q mapper.Query, params json.RawMessage) (mapper.Query, error) {
	var p EraseParams
	bad := readErase(params, &p)
	if bad == nil {
		bad = p.Validate()
	}
	if bad == nil {
		bad = checkErased(q, p)
	}
	if bad != nil {
		return q, fmt.Errorf("erase: %w: %w", mapper.ErrInvalidArgument, bad)
	}
	if err := complete(ctx, e, &q, p, nil); err != nil {
		return q, fmt.Errorf("erase: %w", err)
	}
	return q, nil
}

// readErase decodes the parameters of a start by name. They may be empty.
func readErase(params json.RawMessage, p *EraseParams) error {
	if len(bytes.TrimSpace(params)) == 0 {
		return nil
	}
	return strictjson.Decode(params, p)
}

// Names of the counters of an erasure.
const (
	unindexedCounter    = "erase/unindexed"
	withPropertyCounter = "erase/with property"
)

// has reports three things about an entity: whether it has the property, whether the property has
// the tenant's value, and whether the value is indexed.
func (p EraseParams) has(e *pb.Entity) (there, has, indexed bool) {
	is := func(v any) bool { return value.Compare(v, p.Value.V) == 0 }
	value.Each(e, p.Property, func(*pb.Value) { there = true })
	return there, slices.ContainsFunc(value.Of(e, p.Property), is),
		slices.ContainsFunc(value.Indexed(e, p.Property), func(v *pb.Value) bool { return is(value.Go(e, v)) })
}

// subject returns the data that the erasure removes from the records of other jobs.
func (p EraseParams) subject(namespace string) mapper.Subject {
	s := mapper.Subject{Namespace: namespace, Words: slices.Clone(p.Words)}
	if p.Property != "" {
		s.Namespace, s.Everywhere = "", true
		switch v := p.Value.V.(type) {
		case string:
			s.Words = append(s.Words, v)
		case int64:
			s.Numbers = []int64{v}
		case time.Time:
			s.Times = []time.Time{v}
		case *datastore.Key:
			s.Words = append(s.Words, v.Encode(), v.String(), value.Text(v))
		case []byte:
			s.Words = append(s.Words, base64.StdEncoding.EncodeToString(v), base64.RawURLEncoding.EncodeToString(v))
		}
	}
	return s
}

// Validate implements mapper.Validator.
func (p EraseParams) Validate() error {
	switch {
	case p.Property == "" && p.AllowMissing:
		return errors.New(`the param "allow_missing" is for a "property"`)
	case p.Property == "" && p.Value != nil,
		p.Property != "" && (p.Value == nil || isEmpty(p.Value.V)):
		return errors.New(`the params "property" and "value" name a tenant together, whose value is not empty`)
	case slices.Contains(p.Words, ""):
		return errors.New(`one of the param "words" is empty`)
	case p.Property == "":
		return nil
	}
	if err := checkProperty("property", p.Property); err != nil {
		return fmt.Errorf("the param %w", err)
	}
	// The end of the job looks for the value by a query, and so it must be one that can be indexed.
	if _, err := pbvalue.Of(p.Value.V, false); err != nil {
		return fmt.Errorf(`the param "value": %w`, err)
	}
	return nil
}

// isEmpty reports whether a value is null, an empty text or no bytes.
func isEmpty(v any) bool {
	b, ok := v.([]byte)
	return v == nil || v == "" || ok && len(b) == 0
}

// check returns an error if the arguments of a start are invalid.
func (o EraseOptions) check(q mapper.Query, p EraseParams, opts mapper.StartOptions) error {
	if len(o.Key) != ed25519.PrivateKeySize || o.Keep == nil {
		return errors.New("EraseOptions.Key and Keep are required")
	}
	if err := checkErased(q, p); err != nil {
		return err
	}
	if p.subject("").Mentions(opts.ID) {
		return fmt.Errorf("the job's ID %q contains a word of the subject, and IDs are kept: take another one", opts.ID)
	}
	return nil
}

// checkErased returns an error if the query and the parameters do not name a namespace or a tenant.
func checkErased(q mapper.Query, p EraseParams) error {
	bounded := len(q.Filters) > 0 || q.Ancestor != nil || q.Start != nil || q.End != nil || q.ShardBy != "" ||
		!q.ReadTime.IsZero()
	switch {
	case p.Property == "" && (q.Namespace == "" || q.Kind != "" || len(q.Kinds)+len(q.Namespaces) > 0 ||
		q.AllNamespaces || bounded):
		return errors.New(
			`the query has to have a namespace, and nothing else, or the params "property" and "value" a tenant`)
	case bounded:
		return errors.New("the query of a tenant can have kinds and namespaces, and nothing else")
	}
	return nil
}

// kindsOf returns the kinds in the given namespaces, without reserved kinds and kinds of
// scattermap's records.
func kindsOf(ctx context.Context, e *mapper.Engine, namespaces []string) (kinds []string, err error) {
	for _, namespace := range namespaces {
		found, err := e.Client().GetAll(ctx, datastore.NewQuery("__kind__").Namespace(namespace).KeysOnly(), nil)
		if err != nil {
			return nil, fmt.Errorf("list the kinds of the namespace %q: %w", namespace, err)
		}
		for _, key := range found {
			name := key.Name
			if !names.Reserved(name) && !names.Ours(namespace, name) {
				kinds = append(kinds, name)
			}
		}
	}
	slices.Sort(kinds)
	return slices.Compact(kinds), nil
}

// namespacesOf returns the namespaces that a query covers.
func namespacesOf(ctx context.Context, e *mapper.Engine, q mapper.Query) (all []string, err error) {
	if !q.AllNamespaces {
		if len(q.Namespaces) > 0 {
			return q.Namespaces, nil
		}
		return []string{q.Namespace}, nil
	}
	found, err := e.Client().GetAll(ctx, datastore.NewQuery("__namespace__").KeysOnly(), nil)
	if err != nil {
		return nil, fmt.Errorf("list the namespaces: %w", err)
	}
	for _, key := range found {
		all = append(all, key.Name) // the key of the empty namespace has an ID, and no name
	}
	return all, nil
}

// kindsOfJob returns the kinds of the query of the job with an ID, and whether there is such a job.
// A repeated start of an erasure needs them, because the first one has deleted entities since.
func kindsOfJob(ctx context.Context, e *mapper.Engine, id string) (kinds []string, there bool, err error) {
	if id == "" {
		return nil, false, nil
	}
	s, err := e.Job(id).Status(ctx)
	switch {
	case errors.Is(err, mapper.ErrNoSuchJob):
		return nil, false, nil
	case err != nil:
		return nil, false, err
	case s.Query.Kind != "":
		return []string{s.Query.Kind}, true, nil
	case len(s.Query.Kinds) == 0:
		return nil, true, fmt.Errorf("%w: a job with the ID %q existed, whose query was erased: use another ID",
			mapper.ErrWrongState, id)
	}
	return s.Query.Kinds, true, nil
}

// complete adds to the query the namespaces and kinds that the caller did not name. If kinds is
// empty, it adds all kinds of the namespaces.
func complete(ctx context.Context, e *mapper.Engine, q *mapper.Query, p EraseParams, kinds []string) error {
	if p.Property != "" && q.Namespace == "" && len(q.Namespaces) == 0 {
		q.AllNamespaces = true
	}
	q.KeysOnly = p.Property == ""
	if q.Kind != "" || len(q.Kinds) > 0 {
		return nil
	}
	if q.Kinds = kinds; len(kinds) > 0 {
		return nil
	}
	namespaces, err := namespacesOf(ctx, e, *q)
	if err != nil {
		return err
	}
	if q.Kinds, err = kindsOf(ctx, e, namespaces); err != nil {
		return err
	}
	if len(q.Kinds) == 0 {
		return fmt.Errorf("%w: the namespace %q has no entities", mapper.ErrInvalidArgument,
			strings.Join(namespaces, " "))
	}
	return nil
}

// unfinished returns an error if another job has not ended, and its query shows that its records
// may contain the data to be erased. It ignores the job with the ID self. Jobs whose query does not
// show this are found later, when their records are searched.
func unfinished(ctx context.Context, e *mapper.Engine, q mapper.Query, p EraseParams, self string) error {
	var found []string
	for _, state := range []mapper.State{mapper.StateRunning, mapper.StatePaused} {
		for cursor := ""; ; {
			jobs, next, err := e.JobsPage(ctx, &mapper.JobsOptions{State: state, AllQueues: true}, cursor)
			if err != nil {
				return err
			}
			for _, j := range jobs {
				s, err := e.Job(j.ID).Status(ctx)
				if errors.Is(err, mapper.ErrNoSuchJob) || err == nil && s.State.Ended() {
					continue
				}
				if err != nil {
					return err
				}
				o := s.Query
				if j.ID != self && (p.Property != "" || o.AllNamespaces || o.Namespace == q.Namespace ||
					slices.Contains(o.Namespaces, q.Namespace)) {
					found = append(found, fmt.Sprintf("%s (%s)", j.ID, s.State))
				}
			}
			if cursor = next; next == "" {
				break
			}
		}
	}
	if len(found) == 0 {
		return nil
	}
	return fmt.Errorf("%w: these jobs keep records of what is to be erased, and have not ended: %s: wait for their "+
		"end, or abort them", mapper.ErrWrongState, strings.Join(found, ", "))
}
