package body

import (
	"encoding/json"
	"testing"

	_ "github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// FuzzParseTask checks that only well-formed bodies are accepted, and that their fields can be the
// fields of a record.
func FuzzParseTask(f *testing.F) {
	job := &record.Job{ID: "spring-credit"}
	job.Incarnate(7)
	root := job.RootRange()
	root.Generation = 3
	f.Add(TaskOf(root, job).Body)
	for _, body := range []string{"", "null", "[]", `{"job": 5}`, `{"job": "a", "range": "x"}`, "\x00\xff",
		`{"generation": -1}`} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		task, err := ParseRange(body)
		if err != nil {
			return
		}
		if !record.ValidJobID(task.Job) || !record.ValidIncarnation(task.Incarnation) ||
			!record.ValidRangeID(task.Range) || task.Generation < 0 {
			t.Errorf("%q passes for %+v", body, task)
		}
		encoded, err := json.Marshal(task)
		if again, errAgain := ParseRange(encoded); err != nil || errAgain != nil || again != task {
			t.Errorf("%+v is read back as %+v, %v, %v", task, again, err, errAgain)
		}
	})
}
