package dashboard

import (
	"bytes"
	"crypto/rand"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/scattermap/scattermap/internal/operator"
	"github.com/scattermap/scattermap/internal/stranger"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/picture"
)

//go:embed templates static
var files embed.FS

// pages has the templates of the pages, by name.
var pages = parse()

func parse() map[string]*template.Template {
	base := template.Must(template.New("base.html").Funcs(words).ParseFS(files, "templates/base.html",
		"templates/parts.html"))
	found, err := fs.Glob(files, "templates/*.html")
	if err != nil {
		panic(err) // impossible: the pattern is a constant
	}
	all := make(map[string]*template.Template)
	for _, file := range found {
		all[strings.TrimSuffix(path.Base(file), ".html")] = template.Must(template.Must(base.Clone()).ParseFS(files,
			file))
	}
	return all
}

// A server answers the requests to a dashboard.
type server struct {
	Options
	engine *mapper.Engine
	cache  cache
}

// NewHandler returns a handler that serves the jobs of an engine. It can be mounted at any path,
// with or without http.StripPrefix: only the last part of a request's path matters.
func NewHandler(e *mapper.Engine, o *Options) http.Handler {
	s := &server{engine: e}
	if o != nil {
		s.Options = *o
	}
	if s.Logger == nil {
		s.Logger = slog.Default()
	}
	guard := http.NewCrossOriginProtection()
	guard.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.refuse(r)(w, http.StatusForbidden, "this request was sent from another site")
	}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		secure(w.Header())
		allowed := operator.Allowed(s.Allow, s.Logger, s.refuse(r), http.HandlerFunc(s.serve))
		guard.Handler(allowed).ServeHTTP(w, r)
	})
}

// secure sets the headers that restrict what a browser does with a page.
func secure(h http.Header) {
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "+
		"connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	h.Set("Vary", "Accept")
}

// refuse returns a function that answers a request with an error.
func (s *server) refuse(r *http.Request) func(w http.ResponseWriter, code int, text string) {
	return func(w http.ResponseWriter, code int, text string) { s.fail(w, r, code, text) }
}

// An answer is the content of a page. The method write sends it as HTML or as JSON.
type answer struct {
	code     int // the HTTP status; 0: 200
	template string
	title    string
	live     bool // whether the page refreshes itself
	body     any
	to       string // the address to which the browser is redirected; ignored in JSON
}

// Limits of a request's body: the time in which it must arrive, and its size in bytes.
const (
	bodyTime = 10 * time.Second
	maxBody  = 1 << 20
)

// serve answers a request that Options.Allow has allowed.
func (s *server) serve(w http.ResponseWriter, r *http.Request) {
	get := r.Method == http.MethodGet || r.Method == http.MethodHead
	if !get && s.ReadOnly {
		s.fail(w, r, http.StatusForbidden, "this dashboard is read-only")
		return
	}
	if s.engine == nil {
		s.fail(w, r, http.StatusInternalServerError, "the dashboard has no engine: dashboard.NewHandler was given nil")
		return
	}
	name := path.Base(r.URL.Path)
	if strings.HasSuffix(r.URL.Path, "/") {
		name = ""
	}
	if r.URL.Path == "" { // http.StripPrefix has removed the whole path
		name = ""
		// the relative links in pages need a slash at the end of the address
		if to, _, _ := strings.Cut(r.RequestURI, "?"); !strings.HasSuffix(to, "/") {
			s.write(w, r, &answer{to: path.Base(to) + "/"})
			return
		}
	}
	if get && (name == "style.css" || name == "script.js" || name == "icon.svg") {
		w.Header().Set("Cache-Control", "private, max-age=300")
		http.ServeFileFS(w, r, files, "static/"+name)
		return
	}
	shows, does := s.page(name)
	do := shows
	if !get {
		do = does
	}
	if do == nil || !get && r.Method != http.MethodPost {
		code, text := http.StatusNotFound, fmt.Sprintf("there is no page %q here", stranger.Shown(name))
		if shows != nil {
			w.Header().Set("Allow", "GET, HEAD")
			if does != nil {
				w.Header().Set("Allow", "GET, HEAD, POST")
			}
			code, text = http.StatusMethodNotAllowed, "this page does not take a "+stranger.Shown(r.Method)
		}
		s.fail(w, r, code, text)
		return
	}
	q, err := s.parameters(w, r)
	var a *answer
	if err == nil {
		a, err = do(r, q)
	}
	if err != nil {
		code, text := s.told(r, err)
		s.fail(w, r, code, text)
		return
	}
	s.write(w, r, a)
}

// told returns the HTTP status for an error, and the text that a page shows. The text of an
// internal error may contain secrets, so told logs it with a random ID, and returns a text with
// only the ID.
func (s *server) told(r *http.Request, err error) (code int, text string) {
	if code = codeOf(err); code != http.StatusInternalServerError {
		return code, s.said(err)
	}
	id := strings.ToLower(rand.Text()[:8])
	s.Logger.LogAttrs(r.Context(), operator.FailureLevel(r), "dashboard", slog.String("id", id),
		slog.String("path", stranger.Shown(r.URL.Path)), slog.Any("error", err))
	return code, "the service could not do this; its log has the cause under the ID " + id
}

// codeOf returns the HTTP status of an error.
func codeOf(err error) int {
	if errors.Is(err, picture.ErrNoSuchRange) {
		return http.StatusNotFound
	}
	return operator.Code(err)
}

// page returns the functions that answer requests for the page with a name. The function shows
// answers GET, and the function does answers POST. A function is nil if the page does not have the
// method.
func (s *server) page(name string) (shows, does func(*http.Request, url.Values) (*answer, error)) {
	switch name {
	case "":
		return s.jobs, nil
	case "job":
		return s.job, nil
	case "range":
		return s.aRange, nil
	case "failures":
		return s.failures, nil
	case "examples":
		return s.examples, nil
	case "left":
		return s.left, nil
	case "replay":
		return s.replay, nil
	case "replay.svg":
		return s.animation, nil
	case "start":
		return s.form, s.start
	case "act":
		return s.ask, s.act
	}
	return nil, nil
}

// parameters returns the parameters in a request's URL and in its body.
func (s *server) parameters(w http.ResponseWriter, r *http.Request) (url.Values, error) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, operator.BadRequest("the parameters are wrong: " + err.Error())
	}
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return q, nil
	}
	// the error is ignored: a test's request has no connection
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTime))
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	if err := r.ParseMultipartForm(maxBody); err != nil && !errors.Is(err, http.ErrNotMultipart) {
		return nil, operator.BadRequest("the form can't be read: " + err.Error())
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	return r.Form, nil
}

// asJSON reports whether a request wants JSON: it has ?format=json, or accepts JSON before HTML.
func asJSON(r *http.Request) bool {
	if format := r.URL.Query().Get("format"); format != "" {
		return format == "json"
	}
	best, json := -1.0, false
	for part := range strings.SplitSeq(r.Header.Get("Accept"), ",") {
		media, rest, _ := strings.Cut(part, ";")
		media = strings.TrimSpace(media)
		if media != "application/json" && media != "text/html" {
			continue
		}
		weight := 1.0
		if text, ok := strings.CutPrefix(strings.TrimSpace(rest), "q="); ok {
			weight, _ = strconv.ParseFloat(text, 64)
		}
		if weight > best {
			best, json = weight, media == "application/json"
		}
	}
	return json
}

// A page has the data for the template that all pages share.
type page struct {
	Title    string
	At       string // the name of the page's template
	Live     bool
	ReadOnly bool
	Did      string // a message about the action that the viewer has just carried out
	Body     any
}

// did returns the message to show after an action. The action's name comes from the URL, where
// anybody can write any text. If the name is unknown, did returns "".
func did(name string) string {
	if name == "start" {
		return "The job is started."
	}
	if i := slices.IndexFunc(verbs, func(v verb) bool { return v.Name == name }); i >= 0 {
		return verbs[i].Did
	}
	return ""
}

// write sends an answer. It renders the page into a buffer first, so that an error can't occur in
// the middle of the page.
func (s *server) write(w http.ResponseWriter, r *http.Request, a *answer) {
	var b bytes.Buffer
	h := w.Header()
	var err error
	switch raw, isRaw := a.body.(svg); {
	case isRaw:
		h.Set("Content-Type", "image/svg+xml")
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'")
		b.Write(raw)
	case asJSON(r):
		h.Set("Content-Type", "application/json")
		err = json.NewEncoder(&b).Encode(a.body)
	case a.to != "":
		h.Set("Location", a.to)
		w.WriteHeader(http.StatusSeeOther)
		return
	default:
		h.Set("Content-Type", "text/html; charset=utf-8")
		err = pages[a.template].ExecuteTemplate(&b, "base.html", page{a.title, a.template, a.live, s.ReadOnly,
			did(r.URL.Query().Get("did")), a.body})
	}
	if err != nil {
		s.Logger.LogAttrs(r.Context(), slog.LevelError, "dashboard", slog.String("path", stranger.Shown(r.URL.Path)),
			slog.Any("error", err))
		http.Error(w, "this can't be shown: the log says why", http.StatusInternalServerError)
		return
	}
	h.Set("Content-Length", strconv.Itoa(b.Len()))
	if a.code != 0 {
		w.WriteHeader(a.code)
	}
	_, _ = w.Write(b.Bytes()) // an error means that the client is gone
}

// A failure is the JSON of an answer to a request that failed.
type failure struct {
	Error string `json:"error"`
	Code  int    `json:"-"`
}

// fail answers a request with an error, as a page or as JSON.
func (s *server) fail(w http.ResponseWriter, r *http.Request, code int, text string) {
	s.write(w, r, &answer{code: code, template: "error", title: http.StatusText(code),
		body: failure{Error: text, Code: code}})
}

// An svg is an answer's body that is an SVG image.
type svg []byte
