// Package conformance runs one list of test cases against three Datastores. These are the embedded
// one, Google's classic emulator in Firestore mode, and Google's Firestore emulator in Datastore
// mode.
//
// A case quotes production's documentation, and has the result that production should have. The
// embedded Datastore must have this result in all cases. If one of Google's emulators has another
// result, the case records it, and why the embedded Datastore does not follow it.
package conformance

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/emulator/google"
	"github.com/scattermap/scattermap/internal/googletest"
)

func TestMain(m *testing.M) { googletest.Main(m) }

// A conformanceCase checks one behaviour of a Datastore.
type conformanceCase struct {
	name string
	doc  string // the sentence of production's documentation that the case checks
	run  func(*env) string
	want string // the text that run returns if the Datastore behaves as documented

	classic, firestore *difference
}

// A difference is how one of Google's emulators behaves differently in a case.
type difference struct {
	got string // the text that run returns there; "*": it varies; "?": it varies, and may be the documented result
	why string
}

// suites has the cases by topic.
var suites = map[string][]conformanceCase{
	"queries": queryCases, "gql": gqlCases, "projections": projectionCases, "keys": keyCases, "cursors": cursorCases,
	"aggregations": aggregationCases,
	"metadata":     metadataCases, "mutations": mutationCases, "transforms": transformCases,
	"transactions": transactionCases, "reads": readCases, "limits": limitCases, "requests": requestCases,
}

var products = []string{"embedded", "classic", "firestore"}

// An env is a client of an empty database in one of the three Datastores.
type env struct {
	*testing.T
	product string
	project string
	conn    *grpc.ClientConn
	client  *datastore.Client
	raw     pb.DatastoreClient
}

// newEnv returns an env for a Datastore. It skips the test if this product is not installed.
func newEnv(t *testing.T, product string) *env {
	e := &env{T: t, product: product, project: googletest.Project()}
	addr := ""
	switch product {
	case "embedded":
		local := emulator.ForTest(t, &emulator.Options{DatastoreAddr: "127.0.0.1:0"})
		addr = local.DatastoreAddr()
	case "classic":
		addr = googletest.Addr(t, google.Classic)
	case "firestore":
		addr = googletest.Addr(t, google.Firestore)
	}
	e.connect(addr)
	return e
}

func (e *env) connect(addr string) {
	t := e.T
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	e.conn, e.raw = conn, pb.NewDatastoreClient(conn)
}

// empty returns an env for another, empty database. It shares the connection of e.
func (e env) empty(t *testing.T) *env {
	e.T, e.project = t, googletest.Project()
	var err error
	if e.client, err = datastore.NewClient(t.Context(), e.project, option.WithGRPCConn(e.conn),
		option.WithTelemetryDisabled()); err != nil {
		t.Fatal(err)
	}
	return &e
}

func TestConformance(t *testing.T) {
	var mu sync.Mutex
	verdicts := make(map[string]map[string]string) // by name of the case, and by product
	t.Cleanup(func() { t.Log("\n" + table(verdicts)) })
	for _, product := range products {
		t.Run(product, func(t *testing.T) {
			t.Parallel() // Google's emulators often wait
			base := newEnv(t, product)
			for _, topic := range topics() {
				for _, c := range suites[topic] {
					name := topic + ": " + c.name
					t.Run(name, func(t *testing.T) {
						verdict := judge(t, c, product, c.outcome(base.empty(t)))
						mu.Lock()
						defer mu.Unlock()
						if verdicts[name] == nil {
							verdicts[name] = make(map[string]string)
						}
						verdicts[name][product] = verdict
					})
				}
			}
		})
	}
}

// judge compares a result with the documented one, or with the recorded difference. It returns a
// verdict for the table.
func judge(t *testing.T, c conformanceCase, product, got string) string {
	recorded := map[string]*difference{"classic": c.classic, "firestore": c.firestore}[product]
	switch {
	case recorded == nil && got == c.want:
		return "as documented"
	case recorded == nil:
		t.Errorf("%s\n got  %s\n want %s", c.doc, got, c.want)
		return "FAILED"
	case recorded.got == "?":
	case recorded.got != "*" && recorded.got != got, got == c.want:
		t.Errorf("%s\n got      %s\n want     %s\n recorded %s", c.doc, got, c.want, recorded.got)
		return "FAILED"
	}
	return "differs: " + recorded.why
}

func topics() []string {
	var all []string
	for topic := range suites {
		all = append(all, topic)
	}
	slices.Sort(all)
	return all
}

// table returns the verdicts as a table. It lists the differences, and counts the cases without
// one.
func table(verdicts map[string]map[string]string) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "case\tembedded\tclassic\tfirestore")
	total := make(map[string]map[string]int)
	names := make([]string, 0, len(verdicts))
	for name := range verdicts {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		row := []string{name}
		for _, product := range products {
			verdict := cmp.Or(verdicts[name][product], "left out")
			row = append(row, verdict)
			kind, _, _ := strings.Cut(verdict, ":")
			if total[product] == nil {
				total[product] = make(map[string]int)
			}
			total[product][kind]++
		}
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	w.Flush()
	for _, product := range products {
		fmt.Fprintf(&b, "%s: %d as documented, %d differ, %d failed, %d left out\n", product,
			total[product]["as documented"], total[product]["differs"], total[product]["FAILED"],
			total[product]["left out"])
	}
	return b.String()
}

// TestEveryCaseIsDocumented checks that each case says what production documents.
func TestEveryCaseIsDocumented(t *testing.T) {
	for topic, cases := range suites {
		seen := make(map[string]bool)
		for _, c := range cases {
			if c.doc == "" || c.name == "" || seen[c.name] {
				t.Errorf("%s: %q has no documentation, or is there twice", topic, c.name)
			}
			seen[c.name] = true
			for _, d := range []*difference{c.classic, c.firestore} {
				if d != nil && (d.why == "" || d.got == c.want) {
					t.Errorf("%s: %q has a difference without a reason, or that is none", topic, c.name)
				}
			}
		}
	}
}
