package prebuilt

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper"
)

// eraseName is the name of the mapper that [Erase] returns.
const eraseName = "erase"

// EraseOptions are what [Erase] needs. Both are required.
type EraseOptions struct {
	// Key signs certificates. Its public key is in them, and should be known otherwise, too.
	Key ed25519.PrivateKey

	// Keep keeps a certificate under a name, in a bucket, say:
	//
	//	func(ctx context.Context, name string, certificate []byte) error { return bucket.WriteAll(ctx, name, certificate, nil) }
	//
	// It may be called several times for one.
	Keep func(ctx context.Context, name string, certificate []byte) error
}

// A Certificate says that a namespace was erased. It is not known what was put since.
type Certificate struct {
	Job       string       `json:"job"`
	Run       string       `json:"run"` // what tells the job from later ones of its ID
	Namespace string       `json:"namespace"`
	Kinds     []string     `json:"kinds"`   // all that the namespace had when the job was started
	Deleted   int64        `json:"deleted"` // entities
	Started   time.Time    `json:"started"`
	Ended     time.Time    `json:"ended"`
	Coverage  mapper.Proof `json:"coverage"`  // of the job: that it came to all entities of these kinds
	Remaining int64        `json:"remaining"` // entities of these kinds at Ended: 0
}

// A signed certificate is what is kept: the signature is of the certificate's bytes.
type signed struct {
	Certificate []byte `json:"certificate"` // JSON
	Signature   []byte `json:"signature"`   // Ed25519
	PublicKey   []byte `json:"public_key"`
}

// ReadCertificate reads what was kept of an erasure, and checks that it was signed by the owner of a key.
func ReadCertificate(kept []byte, key ed25519.PublicKey) (*Certificate, error) {
	var s signed
	if err := json.Unmarshal(kept, &s); err != nil {
		return nil, fmt.Errorf("prebuilt: certificate: %w", err)
	}
	if len(key) != ed25519.PublicKeySize || !ed25519.Verify(key, s.Certificate, s.Signature) {
		return nil, errors.New("prebuilt: certificate: it was not signed by the owner of that key, or was changed since")
	}
	c := new(Certificate)
	if err := json.Unmarshal(s.Certificate, c); err != nil {
		return nil, fmt.Errorf("prebuilt: certificate: %w", err)
	}
	return c, nil
}

// Erase returns the mapper "erase": it deletes all entities of a namespace, of whatever kinds, and then keeps a signed certificate of that,
// under the name of the job, with the proof that the job came to all of them: see [Certificate]. It is started by its name, with a
// query that has a namespace and nothing else: the kinds are those of the namespace at its start, at most 100. If entities were put
// meanwhile there is no certificate, and the job fails: start another one. The empty namespace is refused.
func Erase(o EraseOptions) mapper.Definition {
	m := mapper.Update(eraseName, func(_ context.Context, e *mapper.Entity[entity], _ mapper.None) error {
		e.Delete(e.Key)
		return nil
	}).OnDone(func(ctx context.Context, d *mapper.Done, _ mapper.None) error { return o.certify(ctx, d) })
	return m.ByName(func(ctx context.Context, e *mapper.Engine, q mapper.Query, params json.RawMessage, opts *mapper.StartOptions) (*mapper.Job, error) {
		fail := func(err error) (*mapper.Job, error) {
			return nil, fmt.Errorf("erase: %w: %w", mapper.ErrArguments, err)
		}
		switch {
		case len(o.Key) != ed25519.PrivateKeySize || o.Keep == nil:
			return fail(errors.New("EraseOptions.Key and Keep are required"))
		case q.Namespace == "" || q.Kind != "" || len(q.Kinds)+len(q.Namespaces)+len(q.Filters) > 0 || q.AllNamespaces || q.Ancestor != nil || q.Start != nil || q.End != nil:
			return fail(errors.New("the query has to have a namespace, and nothing else"))
		case len(params) > 0 && strings.TrimSpace(string(params)) != "{}":
			return fail(errors.New("it takes no params"))
		}
		found, err := e.Client().GetAll(ctx, datastore.NewQuery("__kind__").Namespace(q.Namespace).KeysOnly(), nil)
		if err != nil {
			return nil, fmt.Errorf("erase: list the kinds of the namespace %q: %w", q.Namespace, err)
		}
		for _, key := range found {
			if !strings.HasPrefix(key.Name, "__") {
				q.Kinds = append(q.Kinds, key.Name)
			}
		}
		if len(q.Kinds) == 0 {
			return fail(fmt.Errorf("the namespace %q has no entities", q.Namespace))
		}
		q.KeysOnly = true
		return m.Start(ctx, e, q, mapper.None{}, opts)
	})
}

// certify keeps the certificate of a job that is done.
func (o EraseOptions) certify(ctx context.Context, d *mapper.Done) error {
	e, s := mapper.FromContext(ctx), d.Status
	c := Certificate{Job: s.ID, Run: d.Run(), Namespace: s.Query.Namespace, Kinds: s.Query.Kinds, Deleted: s.Written, Started: s.Created, Ended: time.Now().UTC()}
	if s.Query.Kind != "" { // it is the only one
		c.Kinds = []string{s.Query.Kind}
	}
	for _, kind := range c.Kinds {
		n, err := e.Client().Count(ctx, datastore.NewQuery(kind).Namespace(c.Namespace))
		if err != nil {
			return fmt.Errorf("count what is left of the kind %q: %w", kind, err)
		}
		c.Remaining += int64(n)
	}
	if c.Remaining > 0 {
		return mapper.Permanent(fmt.Errorf("%d entities were put into the namespace %q meanwhile, so it is not erased: start another job", c.Remaining, c.Namespace))
	}
	proof, err := e.Job(s.ID).Verify(ctx)
	if err != nil {
		return err
	}
	if len(proof.Problems) > 0 || s.Failures > 0 {
		return mapper.Permanent(fmt.Errorf("the job does not prove that it came to all entities: %d failures, %q", s.Failures, proof.Problems))
	}
	c.Coverage = *proof
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
