package cloudstandin

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// A service is a simulated service of Cloud Run. It has one process.
type service struct {
	name, region, account string
	open                  bool // whether everybody may call the service, without a token
	url                   string
	revision              int

	process *exec.Cmd
	port    string
	done    chan struct{}

	mu  sync.Mutex
	log []string
}

func (s *service) stop() {
	if s == nil || s.process == nil {
		return
	}
	_ = s.process.Process.Kill() // fails if the process has ended
	<-s.done
	s.process = nil
}

// A deployment has the settings with which a service is deployed.
type deployment struct {
	name, region, account, binary string
	open                          bool
	ready                         string // the path of the startup probe
	environment                   map[string]string
}

// deploy creates a service, or replaces the process of an existing one, and waits until it is
// ready.
func (c *Cloud) deploy(d deployment) (*service, error) {
	if !c.accounts[d.account] {
		return nil, fmt.Errorf("INVALID_ARGUMENT: Service account %s does not exist.", d.account)
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	s := &service{name: d.name, region: d.region, account: d.account, open: d.open, port: port, revision: 1,
		done: make(chan struct{})}
	s.url = fmt.Sprintf("https://%s-%s.%s.run.app", d.name, c.number, d.region)
	c.mu.Lock()
	before := c.services[d.name]
	if before != nil {
		s.revision = before.revision + 1
	}
	// The service is registered before it is ready, because its first calls to the emulators need
	// its account.
	c.services[d.name] = s
	c.mu.Unlock()
	before.stop()
	s.process = exec.Command(d.binary)
	s.process.Env = []string{
		"PORT=" + port, "HOST=127.0.0.1", "K_SERVICE=" + d.name, fmt.Sprintf("K_REVISION=%s-%05d-abc", d.name,
			s.revision),
		"HOME=" + c.folder, "DATASTORE_EMULATOR_HOST=" + c.emulator.DatastoreAddr(),
		"CLOUD_TASKS_EMULATOR_HOST=" + c.emulator.TasksAddr(),
	}
	for name, value := range d.environment {
		s.process.Env = append(s.process.Env, name+"="+value)
	}
	if d.open {
		s.process.Env = append(s.process.Env, "OIDC_KEYS_URL="+c.emulator.KeysURL())
	}
	output, err := s.process.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := s.process.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(s.done)
		for lines := bufio.NewScanner(output); lines.Scan(); {
			c.logged(s, lines.Text())
		}
		_ = s.process.Wait() // the log of the process has the reason
	}()
	probes := 0
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		select {
		case <-s.done:
			deadline = time.Time{}
		default:
		}
		if d.ready == "" {
			conn, err := net.Dial("tcp", "127.0.0.1:"+port)
			if err == nil {
				return s, conn.Close() // for a TCP probe, it is enough that the process accepts connections
			}
		} else if answer, err := http.Get("http://127.0.0.1:" + port + d.ready); err == nil {
			_ = answer.Body.Close() // only the status code counts
			if answer.StatusCode == http.StatusOK {
				return s, nil
			}
			if probes++; probes == 100 {
				break
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return nil, fmt.Errorf("Revision '%s-%05d-abc' is not ready and cannot serve traffic. The user-provided "+
		"container failed to start and listen on "+
		"the port defined provided by the PORT=8080 environment variable within the allocated timeout. Logs:\n%s",
		d.name, s.revision, strings.Join(s.log, "\n"))
}

// logged handles a line of a service's log. It sends mails for the alert policies that the line
// triggers.
func (c *Cloud) logged(s *service, line string) {
	c.options.Log("%s: %s", s.name, line)
	s.mu.Lock()
	s.log = append(s.log, line)
	s.mu.Unlock()
	var entry map[string]any
	if json.Unmarshal([]byte(line), &entry) != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.policies {
		var matches bool
		// This condition is on metrics, which this simulation does not collect.
		if strings.Contains(p.condition, "scattermap_failures") {
			matches = entry["event"] == "job failed" || entry["event"] == "job paused"
		} else {
			matches = matchesLine(p.condition, s.name, entry)
		}
		for _, channel := range p.channels {
			if matches {
				c.mails = append(c.mails, fmt.Sprintf("to %s: %s", c.channels[channel], p.display))
			}
		}
	}
}

var comparison = regexp.MustCompile(`^([\w.]+)\s*(=~|>=|=)\s*(.+)$`)

// matchesLine reports whether a filter of Cloud Logging matches a line of a service's log. The
// filter is a list of comparisons joined by AND.
func matchesLine(filter, service string, entry map[string]any) bool {
	severities := []string{"DEFAULT", "DEBUG", "INFO", "NOTICE", "WARNING", "ERROR", "CRITICAL", "ALERT", "EMERGENCY"}
	for clause := range strings.SplitSeq(filter, " AND ") {
		m := comparison.FindStringSubmatch(strings.TrimSpace(clause))
		if m == nil {
			return false
		}
		var value string
		switch field, isPayload := strings.CutPrefix(m[1], "jsonPayload."); {
		case isPayload:
			value, _ = entry[field].(string)
		case field == "severity":
			value, _ = entry["severity"].(string)
		case field == "resource.type":
			value = "cloud_run_revision"
		case field == "resource.labels.service_name":
			value = service
		}
		var ok bool
		switch m[2] {
		case ">=":
			ok = slices.Index(severities, value) >= slices.Index(severities, m[3])
		case "=~":
			expression, err := regexp.Compile(strings.Trim(m[3], `"`))
			ok = err == nil && expression.MatchString(value)
		default:
			ok = slices.Contains(strings.Split(strings.Trim(m[3], "()"), " OR "), `"`+value+`"`)
		}
		if !ok {
			return false
		}
	}
	return filter != ""
}

// A front is the proxy that receives all requests to simulated services. It finds the service by
// the host name, and checks tokens as Cloud Run does.
type front struct {
	cloud  *Cloud
	server *httptest.Server
	// proxy is the HTTPS proxy of the simulated programs. They send CONNECT requests to it.
	proxy *httptest.Server
	// authority is the file with the certificate of the front's own authority, which signs the
	// hosts' certificates.
	authority string
	signer    *ecdsa.PrivateKey
	root      *x509.Certificate
}

func newFront(c *Cloud) (*front, error) {
	f := &front{cloud: c, authority: filepath.Join(c.folder, "authority.pem")}
	var err error
	if f.signer, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "cloudstandin"}, IsCA: true,
		BasicConstraintsValid: true,
		NotBefore:             time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &f.signer.PublicKey, f.signer)
	if err != nil {
		return nil, err
	}
	if f.root, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	if err := os.WriteFile(f.authority, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		0o600); err != nil {
		return nil, err
	}
	f.server = httptest.NewServer(f)
	f.proxy = httptest.NewServer(http.HandlerFunc(f.connect))
	return f, nil
}

func (f *front) close() {
	if f.proxy != nil {
		f.proxy.Close()
	}
	if f.server != nil {
		f.server.Close()
	}
}

// certificate returns a certificate for the host to which a TLS client connects. The front's own
// authority has signed it.
func (f *front) certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), DNSNames: []string{hello.ServerName},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, f.root, &f.signer.PublicKey, f.signer)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: f.signer}, err
}

// connect handles a CONNECT request of a simulated program. It decrypts the program's TLS
// connection, and passes the bytes to the front's server.
func (f *front) connect(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodConnect {
		http.Error(w, "this proxy is for TLS", http.StatusMethodNotAllowed)
		return
	}
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }() // fails if the client has closed it
	if _, err := io.WriteString(conn, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	secure := tls.Server(conn, &tls.Config{GetCertificate: f.certificate, MinVersion: tls.VersionTLS12})
	to, err := net.Dial("tcp", f.server.Listener.Addr().String())
	if err != nil {
		return
	}
	defer func() { _ = to.Close() }() // fails if the front has closed it
	var both sync.WaitGroup
	both.Go(func() {
		_, _ = io.Copy(to, secure) // ends when one of the connections closes
		_ = to.(*net.TCPConn).CloseWrite()
	})
	_, _ = io.Copy(secure, to) // ends when one of the connections closes
	_ = conn.Close()
	both.Wait()
}

// RoundTrip sends a request from this process to the front, no matter to which host it is
// addressed. Cloud Tasks uses it to deliver tasks through the front.
func (f *front) RoundTrip(r *http.Request) (*http.Response, error) {
	to := r.Clone(r.Context())
	to.Host = r.URL.Host
	to.URL.Scheme, to.URL.Host = "http", f.server.Listener.Addr().String()
	return http.DefaultTransport.RoundTrip(to)
}

// gcloudAudience is the audience of the identity tokens that gcloud prints for a person.
const gcloudAudience = "32555940559.apps.googleusercontent.com"

// ServeHTTP answers a request as Cloud Run does: it checks the token, and passes the request on to
// the service.
func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.cloud.mu.Lock()
	var s *service
	for _, each := range f.cloud.services {
		if each.url == "https://"+r.Host {
			s = each
		}
	}
	f.cloud.mu.Unlock()
	if s == nil {
		http.Error(w, "<html><title>404 Page not found</title></html>", http.StatusNotFound)
		return
	}
	if !s.open {
		header := r.Header.Get("Authorization")
		who, audience, err := claimsOf(header)
		switch {
		case err != nil:
			http.Error(w, "<html><title>403 Forbidden</title></html>", http.StatusForbidden)
			return
		case audience != s.url && audience != gcloudAudience:
			http.Error(w, "<html><title>401 Unauthorized</title></html>", http.StatusUnauthorized)
			return
		case !f.cloud.has(memberOf(who), "service:"+s.region+"/"+s.name, "roles/run.invoker"):
			http.Error(w, "<html><title>403 Forbidden</title></html>", http.StatusForbidden)
			return
		}
		r.Header.Set("Authorization", header[:strings.LastIndexByte(header, '.')+1]+"SIGNATURE_REMOVED_BY_GOOGLE")
	}
	proxy := httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(&url.URL{Scheme: "http", Host: "127.0.0.1:" + s.port})
			p.Out.Host = r.Host
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request,
			_ error) {
			w.WriteHeader(http.StatusServiceUnavailable)
		},
	}
	proxy.ServeHTTP(w, r)
}

// memberOf returns an account in the notation of role bindings, such as user:ann@example.com.
func memberOf(email string) string {
	if strings.HasSuffix(email, ".gserviceaccount.com") {
		return "serviceAccount:" + email
	}
	return "user:" + email
}

// claimsOf returns the account and the audience in the token of a request header. It does not
// verify the token, because no test forges one.
func claimsOf(header string) (email, audience string, err error) {
	parts := strings.Split(strings.TrimPrefix(header, "Bearer "), ".")
	if len(parts) != 3 {
		return "", "", errors.New("no identity token")
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return "", "", err
	}
	var claims struct {
		Email string `json:"email"`
		Aud   string `json:"aud"`
	}
	if err := json.Unmarshal(text, &claims); err != nil {
		return "", "", err
	}
	return claims.Email, claims.Aud, nil
}

// call sends the request of a schedule, as Cloud Scheduler does at the scheduled time.
func (c *Cloud) call(ctx context.Context, s *schedule) error {
	token, err := c.emulator.Token(s.account, s.audience)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, strings.ToUpper(s.method), s.uri, nil)
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	answer, err := c.front.RoundTrip(r)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }() // only its status code counts
	switch {
	case answer.StatusCode < 300:
		s.code = 0
	case answer.StatusCode == http.StatusForbidden:
		s.code = 7
	case answer.StatusCode == http.StatusUnauthorized:
		s.code = 16
	default:
		s.code = 2
	}
	return nil
}

// build builds the program in a folder, and stores it as an image.
func (c *Cloud) build(ctx context.Context, folder, pkg, image string) error {
	binary := filepath.Join(c.folder, fmt.Sprintf("image-%d", len(c.images)))
	if err := c.program(ctx, folder, pkg, binary); err != nil {
		return err
	}
	c.images[image] = binary
	return nil
}

// built has the programs of the checkout that this process has built. They are used again, because
// the checkout does not change meanwhile.
var built struct {
	sync.Mutex
	folder   string
	binaries map[string]string // the path of each program, by the path of its package
}

// Program builds a Go program of the checkout, unless this process has built it before. It returns
// the path of the program. A TestMain of a package that calls it must call [Clean] at its end.
func Program(ctx context.Context, checkout, pkg string) (binary string, err error) {
	checkout, err = filepath.Abs(checkout)
	if err != nil {
		return "", err
	}
	built.Lock()
	defer built.Unlock()
	key := filepath.Join(checkout, pkg)
	if binary := built.binaries[key]; binary != "" {
		return binary, nil
	}
	if built.folder == "" {
		if built.folder, err = os.MkdirTemp("", "cloudstandin-programs-"); err != nil {
			return "", err
		}
		built.binaries = make(map[string]string)
	}
	binary = filepath.Join(built.folder, fmt.Sprint(len(built.binaries), "-", filepath.Base(pkg)))
	if err := build(ctx, checkout, pkg, binary); err != nil {
		return "", err
	}
	built.binaries[key] = binary
	return binary, nil
}

// Clean removes the programs that this process has built.
func Clean() {
	built.Lock()
	defer built.Unlock()
	if built.folder != "" {
		_ = os.RemoveAll(built.folder) // it is only a temporary folder
	}
	built.folder, built.binaries = "", nil
}

// build builds a Go program into a file, without the tables for debuggers. They would take half of
// the time.
func build(ctx context.Context, folder, pkg, binary string) error {
	return realGo(ctx, folder, "build", "-ldflags=-s", "-o", binary, pkg)
}

// program builds a Go program into a file. For a program of the checkout, the file is a link.
func (c *Cloud) program(ctx context.Context, folder, pkg, file string) error {
	folder, own := c.source(folder)
	if own {
		return build(ctx, folder, pkg, file)
	}
	binary, err := Program(ctx, folder, pkg)
	if err != nil {
		return err
	}
	if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.Symlink(binary, file)
}

// source returns the folder with the source that a command deploys. If the folder was cloned by the
// simulated git, this is the checkout. Otherwise it is the folder itself, and own is true.
func (c *Cloud) source(folder string) (source string, own bool) {
	if module, err := filepath.EvalSymlinks(filepath.Join(folder, "go.mod")); err == nil &&
		filepath.Dir(module) == c.options.Checkout {
		return c.options.Checkout, false
	}
	return folder, true
}

// realGo runs the real go command instead of the simulated one.
func realGo(ctx context.Context, folder string, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = folder
	cmd.Env = append(slices.Clone(os.Environ()), "GOFLAGS=-mod=mod", "GOPROXY=off", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}
