package cloudstandin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// hostVariable is the environment variable in which a simulated program finds the URL of its Cloud.
const hostVariable = "CLOUDSTANDIN"

// programs are the names of the simulated programs.
var programs = []string{"gcloud", "terraform", "tofu", "curl", "git", "go"}

// A command is the command line of a simulated program. The program sends it to the Cloud.
type command struct {
	Name, Folder string
	Args         []string
	Environment  map[string]string
}

// A reply is the answer to a command: the output and the exit code of the program.
type reply struct {
	Out, Err string
	Code     int
}

// Main acts as a simulated program, such as gcloud, if this binary was started under the program's
// name. Otherwise it returns. A TestMain of a package that uses the Cloud must call it first.
func Main() {
	host := os.Getenv(hostVariable)
	name := filepath.Base(os.Args[0])
	if host == "" || !isProgram(name) {
		return
	}
	folder, err := os.Getwd()
	if err == nil {
		c := command{Name: name, Folder: folder, Args: os.Args[1:], Environment: make(map[string]string)}
		for _, v := range os.Environ() {
			key, value, _ := strings.Cut(v, "=")
			c.Environment[key] = value
		}
		var r reply
		if r, err = send(host, c); err == nil {
			fmt.Print(r.Out)
			fmt.Fprint(os.Stderr, r.Err)
			os.Exit(r.Code)
		}
	}
	fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
	os.Exit(1)
}

func isProgram(name string) bool {
	return slices.Contains(programs, name)
}

func send(host string, c command) (r reply, err error) {
	body, err := json.Marshal(c)
	if err != nil {
		return r, err
	}
	answer, err := http.Post(host, "application/json", bytes.NewReader(body))
	if err != nil {
		return r, err
	}
	defer func() { _ = answer.Body.Close() }() // nothing was written, so no data is lost
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(text, &r)
}
