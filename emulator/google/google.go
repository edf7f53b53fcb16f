// Package google starts Google's two emulators of Datastore, if they are installed. So a test can
// run against them as well as against package emulator.
package google

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/datastore"
	"google.golang.org/api/option"
	"google.golang.org/grpc"

	"github.com/scattermap/scattermap/billing"
	"github.com/scattermap/scattermap/emulator/internal/dial"
	"github.com/scattermap/scattermap/emulator/internal/meter"
)

// A Product is one of Google's two emulators of Datastore.
type Product string

const (
	// Classic is Google's Datastore emulator, in Firestore mode. Half of its entities have the
	// property __scatter__, by which clients sample keys. It has no aggregations, and ignores
	// property masks.
	Classic Product = "cloud-datastore-emulator"
	// Firestore is Google's Firestore emulator, in Datastore mode. It has no property __scatter__,
	// and locks what a transaction reads.
	Firestore Product = "cloud-firestore-emulator"
)

// ErrNotInstalled says that this machine lacks one of Google's emulators, or the Java that it
// needs.
var ErrNotInstalled = errors.New("not installed")

type launch struct {
	script, jar, class string
	args               func(port, dir string) []string
}

var launches = map[Product]launch{
	Classic: {
		script: "cloud_datastore_emulator",
		jar:    "CloudDatastore.jar",
		class:  "com.google.cloud.datastore.emulator.CloudDatastore",
		args: func(port, dir string) []string {
			return []string{"start", "--host=127.0.0.1", "--port=" + port,
				"--store_on_disk=false", "--firestore_in_datastore_mode", dir}
		},
	},
	Firestore: {
		script: "cloud_firestore_emulator",
		jar:    "cloud-firestore-emulator.jar",
		class:  "com.google.cloud.datastore.emulator.firestore.CloudFirestore",
		args: func(port, _ string) []string {
			return []string{"start", "--host=127.0.0.1", "--port=" + port, "--database-mode=datastore-mode"}
		},
	},
}

// An Emulator is one of Google's emulators. It runs as a process of its own, on a free loopback
// port.
type Emulator struct {
	Product Product
	Addr    string // the host and port, as in DATASTORE_EMULATOR_HOST

	meter  meter.Meter
	cancel context.CancelFunc
	ended  chan struct{}
	output lastLines
	dir    string
}

// Start starts one of Google's emulators, and waits until it answers, which takes seconds.
// The caller must call [Emulator.Close]. The error is [ErrNotInstalled] if the emulator is not on
// this machine.
func Start(ctx context.Context, p Product) (*Emulator, error) {
	l, ok := launches[p]
	if !ok {
		return nil, fmt.Errorf("google: Google has no product %q", p)
	}
	return l.startOn(ctx, p, freePort)
}

// startOn starts an emulator on a port that ports returns. If another process has taken the port,
// it tries again with another one.
func (l launch) startOn(ctx context.Context, p Product, ports func() (string, error)) (*Emulator, error) {
	jar, java, err := l.find(p)
	if err != nil {
		return nil, fmt.Errorf("google: %s: %w", p, err)
	}
	var e *Emulator
	for range portAttempts {
		var port string
		if port, err = ports(); err == nil {
			e, err = l.start(ctx, p, jar, java, port)
		}
		if !errors.Is(err, errPortTaken) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("google: %s: %w", p, err)
	}
	return e, nil
}

// portAttempts is the number of ports that startOn tries. It tries several, because another process
// may take a free port before the emulator does.
const portAttempts = 3

var errPortTaken = errors.New("its port was taken meanwhile")

func (l launch) start(ctx context.Context, p Product, jar, java, port string) (*Emulator, error) {
	dir, err := os.MkdirTemp("", "scattermap-"+string(p))
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(filepath.Join(dir, "WEB-INF"), 0o755); err != nil {
		return nil, err
	}
	running, cancel := context.WithCancel(context.Background())
	e := &Emulator{Product: p, Addr: "127.0.0.1:" + port, cancel: cancel, ended: make(chan struct{}), dir: dir}
	// Some texts of the emulators exist only in English. The JVM's second compiler is off, because
	// an emulator runs only for minutes. Without it, the same tests take half of the CPU time.
	args := append([]string{"-Duser.language=en", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", jar, l.class},
		l.args(port, dir)...)
	started := make(chan error)
	go e.run(exec.CommandContext(running, java, args...), started)
	if err := <-started; err != nil {
		e.Close()
		return nil, err
	}
	if err := e.wait(ctx); err != nil {
		e.Close()
		if strings.Contains(e.output.String(), "Address already in use") {
			err = errPortTaken
		}
		return nil, fmt.Errorf("%w; it printed:\n%s", err, e.output.String())
	}
	return e, nil
}

// run starts the process, and waits until it ends. It locks its system thread: Linux kills the
// process when the thread that started it ends.
func (e *Emulator) run(cmd *exec.Cmd, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(e.ended)
	cmd.Dir = e.dir
	cmd.Stdout, cmd.Stderr = &e.output, &e.output
	cmd.WaitDelay = 5 * time.Second
	endWithParent(cmd)
	err := cmd.Start()
	started <- err
	if err == nil {
		_ = cmd.Wait() // an error is normal, because Close kills the process
	}
}

// nowRunning is what both emulators print when they listen. Google's own command line also waits
// for it.
const nowRunning = "is now running"

// wait waits until the emulator has printed nowRunning, and then until it answers. Before this
// text, an answer at the port would come from another process.
func (e *Emulator) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+e.Addr+"/", nil)
		if err != nil {
			return err
		}
		if resp, err := client.Do(req); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK && strings.Contains(e.output.String(), nowRunning) {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("it does not answer: %w", ctx.Err())
		case <-e.ended:
			return errors.New("it ended")
		case <-tick.C:
		}
	}
}

// Close kills the process and waits for its end.
func (e *Emulator) Close() {
	e.cancel()
	<-e.ended
	os.RemoveAll(e.dir)
}

// Datastore returns a client of a project's default database. mapper.NewEngine accepts it.
// [Emulator.Usage] counts its operations. The caller must close it before the emulator.
func (e *Emulator) Datastore(
	ctx context.Context, project string, opts ...option.ClientOption,
) (*datastore.Client, error) {
	all := append(dial.Insecure("passthrough:///"+e.Addr), dial.Versions(),
		option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(e.meter.UnaryClientInterceptor())))
	return datastore.NewClient(ctx, project, append(all, opts...)...)
}

// Usage returns what Google would have billed for the calls of all clients of e. An aggregation
// without a COUNT counts as one read.
func (e *Emulator) Usage() billing.Usage { return e.meter.Usage() }

// find returns the emulator's Java archive, and the Java program to run it. It searches PATH, and
// the folder of the Google Cloud CLI.
func (l launch) find(p Product) (jar, java string, err error) {
	var dirs []string
	if script, err := exec.LookPath(l.script); err == nil {
		dirs = append(dirs, realDir(script))
	}
	if gcloud, err := exec.LookPath("gcloud"); err == nil {
		dirs = append(dirs, filepath.Join(realDir(gcloud), "..", "platform", string(p)))
	}
	home, _ := os.UserHomeDir()
	for _, root := range []string{os.Getenv("CLOUDSDK_ROOT_DIR"), filepath.Join(home, "google-cloud-sdk"),
		"/usr/lib/google-cloud-sdk", "/usr/share/google-cloud-sdk", "/opt/google-cloud-sdk"} {
		if filepath.IsAbs(root) {
			dirs = append(dirs, filepath.Join(root, "platform", string(p)))
		}
	}
	for _, dir := range dirs {
		candidate := filepath.Join(dir, l.jar)
		if _, err := os.Stat(candidate); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if java, err = findJava(); err != nil {
			return "", "", err
		}
		return candidate, java, nil
	}
	return "", "", fmt.Errorf("%w: neither %s on the PATH nor %s in a Google Cloud CLI", ErrNotInstalled, l.script, p)
}

func findJava() (string, error) {
	if home := os.Getenv("JAVA_HOME"); home != "" {
		if java, err := exec.LookPath(filepath.Join(home, "bin", "java")); err == nil {
			return java, nil
		}
	}
	java, err := exec.LookPath("java")
	if err != nil {
		return "", fmt.Errorf("%w: it needs Java, which is not on the PATH", ErrNotInstalled)
	}
	return java, nil
}

func realDir(file string) string {
	if target, err := filepath.EvalSymlinks(file); err == nil {
		file = target
	}
	return filepath.Dir(file)
}

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}

// A lastLines is a writer that keeps only the last bytes written to it.
type lastLines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lastLines) Write(p []byte) (int, error) {
	const limit = 4 << 10
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf.Write(p)
	if extra := l.buf.Len() - limit; extra > 0 {
		l.buf.Next(extra)
	}
	return len(p), nil
}

func (l *lastLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}
