package main

import (
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"

	"github.com/scattermap/scattermap/mapper"
)

// newJobs returns the handler for operators:
//
//	POST /jobs       starts a job, or finds it: {"mapper", "id", "query": {"kind", "namespace"}, "params"}
//	                  (params are {} for a mapper that takes none)
//	GET  /jobs/{id}  tells how it stands
//
// Both answer with the job's status.
func newJobs(e *mapper.Engine, log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /jobs", func(w http.ResponseWriter, r *http.Request) {
		var start struct {
			Mapper string          `json:"mapper"`
			ID     string          `json:"id"`
			Query  mapper.Query    `json:"query"`
			Params json.RawMessage `json:"params"`
		}
		d := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20))
		d.DisallowUnknownFields()
		if err := d.Decode(&start); err != nil {
			reply(w, http.StatusBadRequest, failure{"the body is not a job: " + err.Error()})
			return
		}
		if _, err := d.Token(); !errors.Is(err, io.EOF) {
			reply(w, http.StatusBadRequest, failure{"the body has more than one JSON value"})
			return
		}
		if start.ID == "" {
			reply(w, http.StatusBadRequest, failure{`"id" is empty: it makes repeated requests start one job`})
			return
		}
		job, err := e.StartNamed(r.Context(), start.Mapper, start.Query, start.Params, &mapper.StartOptions{ID: start.ID})
		if err != nil {
			fail(w, r, log, err)
			return
		}
		status(w, r, log, job)
	})
	mux.HandleFunc("GET /jobs/{id}", func(w http.ResponseWriter, r *http.Request) {
		status(w, r, log, e.Job(r.PathValue("id")))
	})
	return mux
}

func status(w http.ResponseWriter, r *http.Request, log *slog.Logger, job *mapper.Job) {
	s, err := job.Status(r.Context())
	if err != nil {
		fail(w, r, log, err)
		return
	}
	reply(w, http.StatusOK, s)
}

type failure struct {
	Error string `json:"error"`
}

// fail answers with an error: in full if it is about the request.
func fail(w http.ResponseWriter, r *http.Request, log *slog.Logger, err error) {
	switch {
	case errors.Is(err, mapper.ErrNoSuchJob):
		reply(w, http.StatusNotFound, failure{err.Error()})
	case errors.Is(err, mapper.ErrOtherArguments):
		reply(w, http.StatusConflict, failure{err.Error()})
	case errors.Is(err, mapper.ErrUnknownMapper), errors.Is(err, mapper.ErrArguments):
		reply(w, http.StatusBadRequest, failure{err.Error()})
	default:
		log.ErrorContext(r.Context(), "jobs", "path", r.URL.Path, "error", err)
		reply(w, http.StatusInternalServerError, failure{"the job could not be started or read: see the log"})
	}
}

func reply(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the client has gone
}
