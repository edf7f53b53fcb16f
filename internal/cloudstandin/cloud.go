package cloudstandin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	cloudtasks "cloud.google.com/go/cloudtasks/apiv2"
	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/scattermap/scattermap/emulator"
)

// Options are the settings of a [Cloud].
type Options struct {
	Checkout string // the root folder of scattermap's source
	Project  string // the ID of the only project
	Log      func(format string, args ...any)
}

// A Cloud is a simulated project of Google Cloud, with billing. It has no resources at first.
type Cloud struct {
	options  Options
	number   string
	emulator *emulator.Emulator
	queues   *cloudtasks.Client
	conn     *grpc.ClientConn // the connection to the embedded Datastore
	folder   string           // a temporary folder for programs and builds
	host     *httptest.Server // receives the command lines that the programs pass on
	front    *front

	commands sync.Mutex // held while a command runs

	mu     sync.Mutex // guards the fields below
	user   string     // the account that is signed in
	adc    bool       // whether Terraform has credentials (application default credentials)
	apis   map[string]bool
	grants map[grant]bool

	databases map[string]string // the type of each database, by its ID
	ttl       map[string]bool   // the properties with an expiry policy, as database/kind/property
	accounts  map[string]bool
	repos     map[string]bool   // the repositories of images, as location/name
	images    map[string]string // the path of each image's binary, by the image's name
	locations map[string]string // the location of each queue, by the queue's name
	services  map[string]*service
	schedules map[string]*schedule
	channels  map[string]string // the mail address of each notification channel, by the channel's name
	policies  map[string]policy
	states    map[string]*state // Terraform's state of each root module, by the module's folder
	mails     []string
	refused   []string // the calls of services that were refused because of a missing role
}

// A grant is one role of one member on a resource. The resource is "project", or starts with
// "queue:", "service:" or "account:".
type grant struct{ resource, role, member string }

// A schedule is a job of Cloud Scheduler, which calls a URL at fixed times.
type schedule struct {
	name, uri, method, account, audience string
	paused                               bool
	code                                 int // the status code of the last answer
}

// A policy is an alert policy of Cloud Monitoring, with the channels to which it sends mails.
type policy struct {
	display, condition string
	channels           []string
}

// marker is a gRPC metadata key in the Cloud's own calls to the emulators. These calls need no
// role.
const marker = "x-cloudstandin"

// Start returns a new Cloud, and installs the simulated programs. The caller must call Close.
func Start(o Options) (_ *Cloud, err error) {
	c := &Cloud{
		options: o, number: "123456789012",
		apis:      map[string]bool{"serviceusage.googleapis.com": true, "cloudbilling.googleapis.com": true},
		grants:    make(map[grant]bool),
		databases: make(map[string]string), ttl: make(map[string]bool), accounts: make(map[string]bool),
		repos:  make(map[string]bool),
		images: make(map[string]string), locations: make(map[string]string), services: make(map[string]*service),
		schedules: make(map[string]*schedule), channels: make(map[string]string), policies: make(map[string]policy),
		states: make(map[string]*state),
	}
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	if c.options.Log == nil {
		c.options.Log = func(string, ...any) {}
	}
	if c.options.Checkout, err = filepath.Abs(o.Checkout); err != nil {
		return nil, err
	}
	if c.folder, err = os.MkdirTemp("", "cloudstandin-"); err != nil {
		return nil, err
	}
	if c.front, err = newFront(c); err != nil {
		return nil, err
	}
	if c.emulator, err = emulator.Start(&emulator.Options{
		DatastoreAddr: "127.0.0.1:0", TasksAddr: "127.0.0.1:0", KeysAddr: "127.0.0.1:0",
		Interceptor: c.intercept, Transport: c.front, ScatterOneIn: 2,
	}); err != nil {
		return nil, err
	}
	if c.queues, err = c.emulator.TasksClient(context.Background()); err != nil {
		return nil, err
	}
	if c.conn, err = grpc.NewClient(c.emulator.DatastoreAddr(),
		grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		return nil, err
	}
	c.host = httptest.NewServer(http.HandlerFunc(c.serve))
	return c, c.install()
}

// install puts the simulated programs into the folder of [Cloud.Programs].
func (c *Cloud) install() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.Programs(), 0o700); err != nil {
		return err
	}
	for _, name := range programs {
		if err := os.Symlink(self, filepath.Join(c.Programs(), name)); err != nil {
			return err
		}
	}
	return nil
}

// Programs returns the folder with the simulated programs, such as gcloud. The command "go install"
// installs to the same folder.
func (c *Cloud) Programs() string { return filepath.Join(c.folder, "bin") }

// Environment returns the environment variables for a shell. With them, the shell runs the
// simulated programs instead of the real ones.
func (c *Cloud) Environment() []string {
	path := c.Programs() + string(os.PathListSeparator) + os.Getenv("PATH")
	return []string{
		hostVariable + "=" + c.host.URL, "PATH=" + path, "HOME=" + c.folder, "TMPDIR=" + c.folder, "LANG=C.UTF-8",
		"XDG_CONFIG_HOME=" + filepath.Join(c.folder, "config"), "XDG_CACHE_HOME=" + filepath.Join(c.folder, "cache"),
		"HTTPS_PROXY=" + c.front.proxy.URL, "SSL_CERT_FILE=" + c.front.authority,
	}
}

// Close ends all processes of the Cloud, and removes its folder.
func (c *Cloud) Close() {
	for _, s := range c.services {
		s.stop()
	}
	if c.host != nil {
		c.host.Close()
	}
	if c.front != nil {
		c.front.close()
	}
	if c.queues != nil {
		_ = c.queues.Close() // an error does not matter, because it is no longer used
	}
	if c.conn != nil {
		_ = c.conn.Close() // an error does not matter, because it is no longer used
	}
	if c.emulator != nil {
		c.emulator.Close()
	}
	if c.folder != "" {
		_ = os.RemoveAll(c.folder) // it is only a temporary folder
	}
}

// Mails returns the mails that alert policies have sent so far.
func (c *Cloud) Mails() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.mails)
}

// Refused returns the calls of services that were refused because their accounts lack a role.
func (c *Cloud) Refused() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.refused)
}

// Left describes the resources that exist in the project. With it, a test checks that the clean-up
// commands of the documentation remove all of them.
func (c *Cloud) Left() (all []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	add := func(kind string, names []string) {
		for _, n := range names {
			all = append(all, kind+" "+n)
		}
	}
	add("database", slices.Sorted(maps.Keys(c.databases)))
	add("account", slices.Sorted(maps.Keys(c.accounts)))
	add("repository", slices.Sorted(maps.Keys(c.repos)))
	add("queue", slices.Sorted(maps.Keys(c.locations)))
	add("service", slices.Sorted(maps.Keys(c.services)))
	add("schedule", slices.Sorted(maps.Keys(c.schedules)))
	add("channel", slices.Sorted(maps.Keys(c.channels)))
	add("policy", slices.Sorted(maps.Keys(c.policies)))
	for g := range c.grants {
		if g.resource == "project" {
			all = append(all, "role "+g.role+" of "+g.member)
		}
	}
	return all
}

// Expiring returns the properties by which Datastore deletes expired entities, each as
// DATABASE/KIND/PROPERTY.
func (c *Cloud) Expiring() (all []string) {
	for name, on := range c.ttl {
		if on {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return all
}

// Balances returns the property Balance of each entity of a kind, by the names of the entities.
func (c *Cloud) Balances(ctx context.Context, kind string) (map[string]int64, error) {
	answer, err := datastorepb.NewDatastoreClient(c.conn).RunQuery(c.marked(ctx), &datastorepb.RunQueryRequest{
		ProjectId: c.options.Project,
		QueryType: &datastorepb.RunQueryRequest_Query{
			Query: &datastorepb.Query{Kind: []*datastorepb.KindExpression{{Name: kind}}},
		},
	})
	all := make(map[string]int64)
	for _, r := range answer.GetBatch().GetEntityResults() {
		path := r.Entity.Key.Path
		all[path[len(path)-1].GetName()] = r.Entity.Properties["Balance"].GetIntegerValue()
	}
	return all, err
}

func (c *Cloud) marked(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, marker, "1")
}

// serve answers a request of a simulated program: it runs the command line in the request, and
// sends the output and the exit code.
func (c *Cloud) serve(w http.ResponseWriter, r *http.Request) {
	var cmd command
	if err := json.NewDecoder(r.Body).Decode(&cmd); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c.commands.Lock()
	defer c.commands.Unlock()
	answer, err := c.do(r.Context(), cmd)
	if err != nil {
		answer.Err, answer.Code = answer.Err+strings.TrimRight(err.Error(), "\n")+"\n", 1
	}
	_ = json.NewEncoder(w).Encode(answer) // fails if the program has ended
}

func (c *Cloud) do(ctx context.Context, cmd command) (reply, error) {
	switch cmd.Name {
	case "gcloud":
		return c.gcloud(ctx, cmd)
	case "terraform", "tofu":
		return c.terraform(ctx, cmd)
	case "curl":
		return c.curl(ctx, cmd)
	case "git":
		return c.git(cmd)
	case "go":
		return c.golang(ctx, cmd)
	}
	return reply{}, fmt.Errorf("%s: command not found", cmd.Name)
}

// needs returns an error if one of the given APIs is not enabled in the project.
func (c *Cloud) needs(apis ...string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, api := range apis {
		if !c.apis[api] {
			return fmt.Errorf("PERMISSION_DENIED: %s has not been used in project %s before or it is disabled. "+
				"Enable it by visiting "+
				"https://console.developers.google.com/apis/api/%[1]s/overview?project=%[2]s then retry. If you "+
				"enabled this API recently, "+
				"wait a few minutes for the action to propagate to our systems and retry.", api, c.number)
		}
	}
	return nil
}

// has reports whether a member has one of several roles on a resource or on the project.
func (c *Cloud) has(member, resource string, roles ...string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(roles, func(role string) bool {
		return c.grants[grant{resource, role, member}] || c.grants[grant{"project", role, member}]
	})
}

// give adds a grant if on is set, and removes it otherwise.
func (c *Cloud) give(g grant, on bool) error {
	kind, address, ok := strings.Cut(g.member, ":")
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !ok || !strings.HasPrefix(g.role, "roles/"):
		return fmt.Errorf("INVALID_ARGUMENT: The member %s or the role %s is of an unknown type.", g.member, g.role)
	case kind == "serviceAccount" && !c.accounts[address] && on:
		return fmt.Errorf("INVALID_ARGUMENT: Service account %s does not exist.", address)
	case kind != "serviceAccount" && kind != "user" && kind != "group":
		return fmt.Errorf("INVALID_ARGUMENT: Invalid member type %s.", kind)
	case on && !roles[g.role]:
		return fmt.Errorf("INVALID_ARGUMENT: Role %s is not supported for this resource.", g.role)
	case !on && !c.grants[g]:
		return fmt.Errorf("Policy binding with the specified principal, role, and condition not found!")
	case !on:
		delete(c.grants, g)
	default:
		c.grants[g] = true
	}
	return nil
}

// roles are the names of the roles that this simulated project knows.
var roles = setOf(`
	roles/artifactregistry.writer roles/cloudbuild.builds.builder roles/cloudtasks.enqueuer roles/cloudtasks.queueAdmin
	roles/cloudtasks.viewer roles/cloudtrace.agent roles/datastore.user roles/datastore.viewer
	roles/iam.serviceAccountOpenIdTokenCreator roles/iam.serviceAccountTokenCreator roles/iam.serviceAccountUser
	roles/iap.httpsResourceAccessor roles/logging.logWriter roles/monitoring.metricWriter roles/run.builder
	roles/run.invoker roles/run.viewer roles/secretmanager.secretAccessor`)

func setOf(words string) map[string]bool {
	set := make(map[string]bool)
	for word := range strings.FieldsSeq(words) {
		set[word] = true
	}
	return set
}

// intercept checks a service's call to an emulator. If the service's account has the necessary
// role, the call goes on. Otherwise intercept returns an error, and records the call as refused.
func (c *Cloud) intercept(ctx context.Context, request any, info *grpc.UnaryServerInfo,
	next grpc.UnaryHandler) (any, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	out, _ := metadata.FromOutgoingContext(ctx)
	if len(md.Get(marker))+len(out.Get(marker)) > 0 {
		return next(ctx, request)
	}
	if err := c.allowed(request, info.FullMethod); err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.refused = append(c.refused, fmt.Sprintf("%s: %v", info.FullMethod, err))
		return nil, err
	}
	return next(ctx, request)
}

func (c *Cloud) allowed(request any, method string) error {
	c.mu.Lock()
	var account string
	for _, s := range c.services {
		account = "serviceAccount:" + s.account // the caller must be this service, because there is only one
	}
	c.mu.Unlock()
	if strings.Contains(method, "google.datastore.") {
		if err := c.needs("datastore.googleapis.com"); err != nil {
			return status.Error(codes.PermissionDenied, err.Error())
		}
		r := request.(interface {
			GetProjectId() string
			GetDatabaseId() string
		})
		if err := c.database(r.GetProjectId(), cmp.Or(r.GetDatabaseId(), "(default)")); err != nil {
			return status.Error(codes.NotFound, err.Error())
		}
		if !c.has(account, "project", "roles/datastore.user") {
			return status.Error(codes.PermissionDenied, "Missing or insufficient permissions.")
		}
		return nil
	}
	if err := c.needs("cloudtasks.googleapis.com"); err != nil {
		return status.Error(codes.PermissionDenied, err.Error())
	}
	var queue, permission string
	var may []string
	switch r := request.(type) {
	case *cloudtaskspb.CreateTaskRequest:
		queue, permission, may = r.Parent, "tasks.create", []string{"roles/cloudtasks.enqueuer"}
		if token := r.GetTask().GetHttpRequest().GetOidcToken(); token != nil &&
			!c.has(account, "account:"+token.ServiceAccountEmail, "roles/iam.serviceAccountUser") {
			return status.Errorf(codes.PermissionDenied, "The principal (user or service account) lacks IAM "+
				"permission "+
				"\"iam.serviceAccounts.actAs\" for the resource \"%s\" (or the resource may not exist).",
				token.ServiceAccountEmail)
		}
	case *cloudtaskspb.GetTaskRequest:
		queue, _, _ = strings.Cut(r.Name, "/tasks/")
		permission, may = "tasks.get", []string{"roles/cloudtasks.viewer"}
	case *cloudtaskspb.ListTasksRequest:
		queue, permission, may = r.Parent, "tasks.list", []string{"roles/cloudtasks.viewer"}
	case *cloudtaskspb.GetQueueRequest:
		queue, permission, may = r.Name, "queues.get", []string{"roles/cloudtasks.viewer",
			"roles/cloudtasks.queueAdmin"}
	default:
		permission, may = method, []string{"roles/cloudtasks.queueAdmin"}
	}
	if !c.has(account, "queue:"+queue, may...) {
		return status.Errorf(codes.PermissionDenied, "The principal (user or service account) lacks IAM permission "+
			"\"cloudtasks.%s\" "+
			"for the resource \"%s\" (or the resource may not exist).", permission, queue)
	}
	return nil
}

// database returns an error unless a project has a database with the given ID, in Datastore mode.
func (c *Cloud) database(project, id string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch mode, ok := c.databases[id]; {
	case project != c.options.Project || !ok:
		return fmt.Errorf("The database %s does not exist for project %s Please visit "+
			"https://console.cloud.google.com/datastore/setup?project=%[2]s "+
			"to add a Cloud Datastore or Cloud Firestore database.", id, project)
	case mode != "DATASTORE_MODE":
		return errors.New("The Cloud Datastore API is not available for Firestore in Native Mode.")
	}
	return nil
}

// commit writes entities to the Datastore for the signed-in user, who needs no role.
func (c *Cloud) commit(ctx context.Context, r *datastorepb.CommitRequest) (proto.Message, error) {
	if err := errors.Join(c.needs("datastore.googleapis.com"), c.database(r.ProjectId, cmp.Or(r.DatabaseId,
		"(default)"))); err != nil {
		return nil, err
	}
	return datastorepb.NewDatastoreClient(c.conn).Commit(c.marked(ctx), r)
}

// freePort returns a TCP port of this machine that no process uses at present.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer func() { _ = l.Close() }() // no program uses this listener
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}

// Runs reports whether the documentation's commands can run on this system. The programs have to
// trust the Cloud's certificate authority. Systems other than Linux ignore the environment variable
// that names it.
func Runs() bool { return runtime.GOOS == "linux" }
