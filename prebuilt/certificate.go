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

	"github.com/scattermap/scattermap/mapper"
)

// A Certificate says that a namespace, or a tenant, was erased, and what that means: what was
// looked at between Looked and Ended. It is not known what was put since.
//
// Of a namespace it proves that the job came to all entities of these kinds, that a count of each
// found none left, that the namespace had no other kind, and that no record of scattermap held a
// key in it or its name. Of a tenant it proves that the job came to all entities of these kinds and
// deleted those that had the value, whether it was indexed or not; that fresh queries for the value
// found none, in all kinds that there were; and that no record held keys of a job, or the value, if
// that is a text, an integer, a time, a key or bytes: records are not searched for a bool or a
// float, and the words of [EraseParams] stand for them. An entity that somebody put after the job
// with a value that is not indexed is found by no query.
type Certificate struct {
	Job       string       `json:"job"`
	Run       string       `json:"run"` // what tells the job from later ones of its ID
	Namespace string       `json:"namespace"`
	Tenant    *Tenant      `json:"tenant,omitempty"` // nil: it is a namespace
	Kinds     []string     `json:"kinds"`            // all that there were when the job was started
	Deleted   int64        `json:"deleted"`          // entities
	Unindexed int64        `json:"unindexed,omitempty"`
	Started   time.Time    `json:"started"`
	Looked    time.Time    `json:"looked"` // when the look began that found nothing left
	Ended     time.Time    `json:"ended"`
	Coverage  mapper.Proof `json:"coverage"`  // of the job: that it came to all entities of these kinds
	Remaining int64        `json:"remaining"` // entities at Ended: 0

	// Records are how many records of scattermap were looked through, by kind, and Jobs the jobs
	// that have forgotten something: hashes of their IDs, see mapper.HashID, and MoreJobs how many
	// more there were.
	Records  map[string]int64 `json:"records"`
	Jobs     []string         `json:"jobs,omitempty"`
	MoreJobs int64            `json:"more_jobs,omitempty"`
	Salt     string           `json:"salt"`

	// Outside is what was not looked at.
	Outside []string `json:"outside"`
}

// A Tenant is entities that have a value in a property.
type Tenant struct {
	Property   string   `json:"property"`
	Value      Value    `json:"value"`
	Namespaces []string `json:"namespaces"` // in which there was something when the look began
}

// outside is what no erasure looks at.
var outside = []string{
	"backups and managed exports",
	"point-in-time recovery, which keeps what was there for up to seven days",
	"logs",
	"files of exports in buckets",
	"other databases and systems",
	"tasks in queues, which name jobs and ranges",
}

// A signed certificate is what is kept: the signature is of the certificate's bytes.
type signed struct {
	Certificate []byte `json:"certificate"` // JSON
	Signature   []byte `json:"signature"`   // Ed25519
	PublicKey   []byte `json:"public_key"`
}

// ReadCertificate reads what was kept of an erasure, and checks that it was signed by the owner of
// a key.
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

// certify has the records of other jobs forget what was erased, and then looks at everything, and
// keeps the certificate. The job's own records are gone by then. If something is in the way, or was
// put meanwhile, there is none.
func (o EraseOptions) certify(ctx context.Context, d *mapper.Completion, p EraseParams) error {
	e, s := mapper.EngineFromContext(ctx), d.Status
	c := Certificate{
		Job: s.ID, Run: d.RunID(), Namespace: s.Query.Namespace, Kinds: s.Query.Kinds, Deleted: s.Written,
		Unindexed: s.Counters[unindexedCounter],
		Started:   s.Created, Looked: time.Now().UTC(), Coverage: *d.Proof(), Outside: outside,
	}
	if s.Query.Kind != "" { // it is the only one
		c.Kinds = []string{s.Query.Kind}
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

// lookAtNamespace returns an error if a namespace has entities.
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

// lookForTenant returns an error if entities have the tenant's value, or may have it unseen.
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
			left := datastore.NewQuery(kind).Namespace(namespace).FilterField(p.Property, "=", p.Value.V)
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
