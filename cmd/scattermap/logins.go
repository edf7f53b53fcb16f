package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// logins are the content of the file that stores to which services the user has logged in. The file
// has tokens, so only its owner may read it.
type logins struct {
	Current  string            `json:"current,omitempty"` // the service for commands that do not name one
	Services map[string]*login `json:"services,omitempty"`
}

// A login says how to get tokens for a service. It also stores the last token.
type login struct {
	// the service account whose tokens are sent; empty: the account of gcloud
	Impersonate string `json:"impersonate,omitempty"`
	Token       string `json:"token,omitempty"`
}

// loginsFile returns the path of the file of logins.
func loginsFile() (string, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("there is no folder to keep logins in: %w", err)
	}
	return filepath.Join(dir, "scattermap", "logins.json"), nil
}

// readLogins reads the file of logins. If the file does not exist, the result is empty.
func readLogins() (*logins, error) {
	l := &logins{}
	path, err := loginsFile()
	if err != nil {
		return l, nil // an error, such as without $HOME, means that nobody has logged in
	}
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("logins: %w", err)
	default:
		if err := json.Unmarshal(text, l); err != nil {
			return nil, fmt.Errorf("logins: %s: %w; \"scattermap logout\" removes it", path, err)
		}
	}
	if l.Services == nil {
		l.Services = make(map[string]*login)
	}
	for address, one := range l.Services {
		if one == nil {
			delete(l.Services, address)
		}
	}
	return l, nil
}

// save replaces the file of logins atomically, so that another command reads either the old or the
// new content.
func (l *logins) save() (err error) {
	path, err := loginsFile()
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("logins: %w", err)
		}
	}()
	text, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "logins-*") // CreateTemp gives the file the mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // fails if the file was renamed, which is the success
	}
	return err
}

// early is the minimum time for which a stored token must still be valid. Otherwise commands get a
// new one, because a token may expire before it arrives.
const early = 2 * time.Minute
