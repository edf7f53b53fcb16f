package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"github.com/scattermap/scattermap/internal/operator"
	"github.com/scattermap/scattermap/mapper"
)

// startBody is the JSON body of a request that starts a job.
type startBody operator.Start

// start sends the request that starts a job. If the body has no ID, it makes one. Then it follows
// the job if watch is set, or else prints its status.
func (b startBody) start(c *cobra.Command, s *service, watch bool, format *output) error {
	made := ""
	if b.ID == "" {
		made = operator.NewID(b.Mapper, b.DryRun)
		b.ID = made
	}
	return beginJob(c, s, "", made, b, watch, format)
}

// beginJob posts a body to a path of the jobs API that starts a job. Then it follows the job if
// watch is set, or else prints its status. The argument made is the job's ID if the command has
// made it, or else "". The user does not know such an ID, and would start a second job after an
// error.
func beginJob(c *cobra.Command, s *service, path, made string, body any, watch bool, format *output) error {
	job := new(mapper.Status)
	if err := s.call(c.Context(), http.MethodPost, path, nil, body, job); err != nil {
		if made != "" && errors.As(err, new(unsure)) {
			return fmt.Errorf("%w; the job may have started: to start no second one, repeat the command with --id %s",
				err, made)
		}
		return err
	}
	if !watch {
		return show(c, format, job)
	}
	err := follow(c, s, job.ID, format)
	if err != nil && !strings.Contains(err.Error(), job.ID) {
		return fmt.Errorf("%w; the job %s has started", err, job.ID)
	}
	return err
}

func newClone() *cobra.Command {
	var s service
	var id, queue string
	var watch, yes, overlap, empty bool
	c := &cobra.Command{
		Use: "clone JOB", Short: "Start a job again under another ID", Args: oneJob,
		Long: `Starts another job with a job's mapper, query, parameters and settings. It processes all
entities; "scattermap retry" processes only failures.`,
	}
	s.define(c.Flags())
	s.defineReason(c.Flags())
	c.Flags().StringVar(&id, "id", "", "the `ID` of the new job; by default a new one")
	c.Flags().StringVar(&queue, "queue", "", "the `name` of the queue; by default the job's")
	c.Flags().BoolVar(&overlap, "allow-overlap", false, "start even if another job of the mapper runs")
	c.Flags().BoolVar(&empty, "allow-empty", false, "start even if the kind has no entity")
	c.Flags().BoolVarP(&watch, "watch", "w", false, "follow the job to its end, like the command watch")
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	format := outputFlag(c.Flags())
	c.RunE = func(c *cobra.Command, args []string) error {
		if id == args[0] { // the start would find the old job, and process nothing
			return usageError(errors.New("--id is the ID of the job itself: choose another one"))
		}
		var old struct {
			mapper.Status
			// as the service has sent them: they may have what only a newer command line knows
			Query    json.RawMessage            `json:"query"`
			Settings map[string]json.RawMessage `json:"settings"`
		}
		if err := s.call(c.Context(), http.MethodGet, args[0], nil, nil, &old); err != nil {
			return err
		}
		again, ok := operator.Clone(&old.Status)
		if !ok {
			return fmt.Errorf("%s is an undo, and can't be cloned: \"scattermap undo %s\" takes it back", args[0],
				args[0])
		}
		if !yes && !again.DryRun {
			if err := confirm(c, fmt.Sprintf("Run %s again? Job %s is %s, and has processed %s.",
				operator.Line(again.Mapper, 100), old.ID, old.State,
				operator.Counted(old.Processed, "entity", "entities"))); err != nil {
				return err
			}
		}
		made := ""
		if id == "" {
			made = operator.NewID(again.Mapper, again.DryRun)
		}
		body := make(map[string]any)
		for setting, value := range old.Settings {
			body[setting] = value
		}
		for setting, on := range map[string]bool{"dry_run": again.DryRun, "allow_overlap": overlap,
			"allow_empty": empty} {
			if on {
				body[setting] = true
			}
		}
		if on := cmp.Or(queue, again.Queue); on != "" {
			body["queue"] = on
		}
		body["mapper"], body["id"] = again.Mapper, cmp.Or(id, made)
		body["query"], body["params"] = operator.Given(again.Mapper, old.Query, old.Params)
		err := beginJob(c, &s, "", made, body, watch, format)
		if err != nil && queue == "" && strings.Contains(err.Error(), "has no queue") {
			return fmt.Errorf("%w; --queue names another queue for the new job", err)
		}
		return err
	}
	return c
}
