package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	cloudtasks "cloud.google.com/go/cloudtasks/apiv2"

	"github.com/scattermap/scattermap/tasks"
)

// newQueues returns the service's queues. With CREATE_QUEUES it creates missing ones.
func newQueues(
	ctx context.Context, client *cloudtasks.Client, c config, log *slog.Logger,
) (all []*tasks.Queue, err error) {
	for _, name := range c.queues {
		queue, err := tasks.NewQueue(client, name, c.url+"/mapper/", &tasks.Options{
			ServiceAccount: c.serviceAccount, Audience: c.audience(), InsecureSkipVerify: !c.verified,
			KeysURL: c.keysURL,
		})
		if err != nil {
			return nil, err
		}
		all = append(all, queue)
		if !c.createQueues {
			continue
		}
		created, err := queue.Create(ctx, c.service)
		if err != nil {
			return nil, err
		}
		if created {
			log.Info("queue created", "queue", name)
		}
	}
	return all, nil
}

// checkTime limits the time for reading the queues' settings.
const checkTime = 10 * time.Second

// checkQueues logs a warning for each setting of the queues that contradicts the service's
// settings. The service runs despite such settings.
func checkQueues(ctx context.Context, queues []*tasks.Queue, s tasks.ServiceLimits, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	atOnce := 0
	for _, queue := range queues {
		n, _ := queue.MaxConcurrent(ctx) // an error is also returned by CheckSettings
		atOnce += n
		if err := queue.CheckSettings(ctx, s); err != nil {
			for line := range strings.Lines(err.Error()) {
				log.Warn("settings of a queue need a change", "queue", queue.Name(), "problem", strings.TrimSpace(line))
			}
		}
	}
	if most := s.ForTasks(); len(queues) > 1 && most > 0 && atOnce > most {
		log.Warn("settings of the queues need a change", "problem",
			fmt.Sprintf("together they deliver up to %d tasks at once, and the service should get at most %d: "+
				"lower their max-concurrent-dispatches", atOnce, most))
	}
}
