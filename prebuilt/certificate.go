package prebuilt

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/names"
	"github.com/scattermap/scattermap/mapper"
)

// A Certificate says that a namespace or a tenant was erased. It describes the time between Looked
// and Ended, and says nothing about entities that were put after that.
//
// For a namespace it proves:
//
//   - The job processed all entities of Kinds, and a count of each kind found none.
//   - The namespace had no other kind.
//   - No record of scattermap contained a key of the namespace, or its name. The field Namespace of
//     mapper.Subject says which texts count.
//
// For a tenant it proves:
//
//   - The job processed all entities of Kinds, and deleted all that had the value, indexed or not.
//   - New queries for the value found no entity of Kinds.
//   - No record of scattermap still contained keys of entities that other jobs had processed. None
//     contained the value, if it is a text, an integer, a time, a key or bytes. Records are not
//     searched for a bool or a float; use [EraseParams].Words for these.
//
// One case is not covered: others put an entity after the job has passed its key, and its value is
// not indexed. Nothing finds such an entity.
type Certificate struct {
	Job       string       `json:"job"`
	Run       string       `json:"run"` // distinguishes this job from others with the same ID
	Namespace string       `json:"namespace"`
	Tenant    *Tenant      `json:"tenant,omitempty"`    // the tenant; nil: a namespace was erased
	Kinds     []string     `json:"kinds"`               // the kinds of the job's query when it started
	Deleted   int64        `json:"deleted"`             // number of deleted entities
	Unindexed int64        `json:"unindexed,omitempty"` // number of deleted entities whose value was not indexed
	Started   time.Time    `json:"started"`
	Looked    time.Time    `json:"looked"` // when the final search of the entities and records started
	Ended     time.Time    `json:"ended"`
	Coverage  mapper.Proof `json:"coverage"`  // the proof that the job processed all entities of Kinds
	Remaining int64        `json:"remaining"` // number of entities that still exist at Ended; always 0

	// WithProperty counts the entities that had the tenant's property, with any value. If it is 0,
	// check the name of the property.
	WithProperty int64 `json:"with_property,omitempty"`

	// Records counts the records of scattermap that were searched, by kind. Jobs has up to 1,000
	// jobs whose records have changed, each as the hash of its ID with Salt: see mapper.HashID.
	// MoreJobs counts the others.
	Records  map[string]int64 `json:"records"`
	Jobs     []string         `json:"jobs,omitempty"`
	MoreJobs int64            `json:"more_jobs,omitempty"`
	Salt     string           `json:"salt"`

	// Outside lists places that were not searched, such as backups and logs.
	Outside []string `json:"outside"`
}

// A Tenant is all entities that have the Value in the Property.
type Tenant struct {
	Property   string   `json:"property"`
	Value      Value    `json:"value"`
	Namespaces []string `json:"namespaces"` // the namespaces with entities when the final search started
}

// outside lists the places that no erasure searches, for certificates.
var outside = []string{
	"backups and managed exports",
	"point-in-time recovery, which keeps what was there for up to seven days",
	"logs",
	"files of exports in buckets",
	"other databases and systems",
	"tasks in queues, which name jobs and ranges",
}

// A signed is the stored form of a certificate, which Keep gets: the certificate with its
// signature. The signature is over the bytes of Certificate.
type signed struct {
	Certificate []byte `json:"certificate"` // the certificate as JSON
	Signature   []byte `json:"signature"`   // the certificate's Ed25519 signature
	PublicKey   []byte `json:"public_key"`
}

// ReadCertificate returns a certificate that [EraseOptions].Keep has stored. It returns an error if
// the owner of the key has not signed it, or if it was changed.
func ReadCertificate(kept []byte, key ed25519.PublicKey) (*Certificate, error) {
	var s signed
	if err := json.Unmarshal(kept, &s); err != nil {
		return nil, fmt.Errorf("prebuilt: certificate: %w", err)
	}
	if len(key) != ed25519.PublicKeySize || !ed25519.Verify(key, s.Certificate, s.Signature) {
		return nil, errors.New("prebuilt: certificate: it was not signed by the owner of that key, or was changed " +
			"since")
	}
	c := new(Certificate)
	if err := json.Unmarshal(s.Certificate, c); err != nil {
		return nil, fmt.Errorf("prebuilt: certificate: %w", err)
	}
	return c, nil
}

// certify is the finalizer of an erasure. It removes the erased data from the records of other
// jobs, searches all entities and records again, and stores the certificate. If another job
// prevents that, or if others have put entities of the namespace or tenant, it returns an error and
// stores nothing.
func (o EraseOptions) certify(ctx context.Context, d *mapper.Completion, p EraseParams) error {
	e, s := mapper.EngineFromContext(ctx), d.Status
	c := Certificate{
		Job: s.ID, Run: d.RunID(), Namespace: s.Query.Namespace, Kinds: s.Query.Kinds, Deleted: s.Written,
		Unindexed: s.Counters[unindexedCounter], WithProperty: s.Counters[withPropertyCounter],
		Started: s.Created, Looked: time.Now().UTC(), Coverage: *d.Proof(), Outside: outside,
	}
	if s.Query.Kind != "" { // the query has one kind
		c.Kinds = []string{s.Query.Kind}
	}
	if p.Property != "" && !p.AllowMissing && c.Deleted == 0 && c.WithProperty == 0 && s.Processed > 0 {
		return mapper.Permanent(fmt.Errorf(`no entity of the job's kinds has the property %q, so there is no `+
			`certificate: correct the name, and start another job; or, if the name is right, set "allow_missing"`,
			p.Property))
	}
	forgotten, err := d.Forget(ctx, p.subject(s.Query.Namespace))
	if err != nil {
		return err
	}
	c.Records, c.Jobs, c.MoreJobs, c.Salt = forgotten.Records, forgotten.Jobs, forgotten.More, forgotten.Salt
	if p.Property == "" {
		err = o.lookAtNamespace(ctx, e, &c)
	} else {
		err = o.lookForTenant(ctx, e, s.Query, p, &c)
	}
	if err != nil {
		return err
	}
	c.Ended = time.Now().UTC()
	text, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	kept, err := json.Marshal(signed{text, ed25519.Sign(o.Key, text), o.Key.Public().(ed25519.PublicKey)})
	if err != nil {
		return err
	}
	return o.Keep(ctx, s.ID+".certificate.json", kept)
}

// lookAtNamespace returns an error if the erased namespace has entities. It stores their number in
// the certificate c.
func (o EraseOptions) lookAtNamespace(ctx context.Context, e *mapper.Engine, c *Certificate) error {
	there, err := kindsOf(ctx, e, []string{c.Namespace})
	if err != nil {
		return err
	}
	all := append(slices.Clone(c.Kinds), there...)
	slices.Sort(all)
	for _, kind := range slices.Compact(all) {
		n, err := e.Client().Count(ctx, datastore.NewQuery(kind).Namespace(c.Namespace))
		if err != nil {
			return fmt.Errorf("count what is left of the kind %q: %w", kind, err)
		}
		c.Remaining += int64(n)
	}
	if c.Remaining > 0 {
		return mapper.Permanent(fmt.Errorf("%d entities were put into the namespace meanwhile, so it is not erased: "+
			"start another job", c.Remaining))
	}
	return nil
}

// lookForTenant returns an error if an entity has the erased tenant's value, or may have it without
// an index.
func (o EraseOptions) lookForTenant(ctx context.Context, e *mapper.Engine, q mapper.Query, p EraseParams,
	c *Certificate) error {
	namespaces, err := namespacesOf(ctx, e, q)
	if err != nil {
		return err
	}
	c.Namespace, c.Tenant = "", &Tenant{p.Property, *p.Value, namespaces}
	kinds, err := kindsOf(ctx, e, namespaces)
	if err != nil {
		return err
	}
	var others []string
	for _, kind := range kinds {
		if !slices.Contains(c.Kinds, kind) {
			others = append(others, kind)
		}
	}
	if len(others) > 0 && p.AllKinds {
		return mapper.Permanent(fmt.Errorf("there are kinds that the job does not know, so the tenant may not be "+
			"erased: %s: start another job", strings.Join(others[:min(10, len(others))], ", ")))
	}
	for _, namespace := range namespaces {
		for _, kind := range c.Kinds {
			left := datastore.NewQuery(kind).Namespace(namespace).FilterField(names.Field(p.Property), "=", p.Value.V)
			found, err := e.Client().GetAll(ctx, left.KeysOnly().Limit(1), nil)
			if err != nil {
				return fmt.Errorf("look for what is left in the kind %q: %w", kind, err)
			}
			c.Remaining += int64(len(found))
		}
	}
	if c.Remaining > 0 {
		return mapper.Permanent(fmt.Errorf("entities of the tenant were put meanwhile, into %d kinds, so it is not "+
			"erased: start another job", c.Remaining))
	}
	return nil
}
