package main

import (
	"fmt"
	"io"
	"strconv"

	"github.com/scattermap/scattermap/mapper"
)

// result is what the job did, and what the accounts say of it.
type result struct {
	State     mapper.State `json:"state"`
	Entities  int64        `json:"entities"` // accounts that were read back
	Processed int64        `json:"processed"`
	Failures  int64        `json:"failures"`
	SumBefore int64        `json:"sum_before"`
	SumAfter  int64        `json:"sum_after"`
	Tasks     int64        `json:"tasks"`
	Pages     int64        `json:"pages"`
	Depth     int64        `json:"depth"`
	Seconds   float64      `json:"seconds"`
	Reads     int64        `json:"reads"`  // billed, of the job and its progress bar
	Writes    int64        `json:"writes"` // billed
}

// check compares what the accounts say with what they should.
func (r result) check(c config, before, after tally) error {
	switch {
	case r.State != mapper.Succeeded:
		return fmt.Errorf("the job ended as %q", r.State)
	case before.accounts != int64(c.entities) || after.accounts != int64(c.entities):
		return fmt.Errorf("there are %d accounts, and %d after the job, of %d", before.accounts, after.accounts, c.entities)
	case after.wrong > 0:
		return fmt.Errorf("%d accounts were not credited exactly once, one of them is %v", after.wrong, after.example)
	case r.Processed != int64(c.entities):
		return fmt.Errorf("the job says that it processed %d of %d accounts", r.Processed, c.entities)
	case r.SumAfter-r.SumBefore != c.amount*int64(c.entities):
		return fmt.Errorf("the sum grew by %d, not by %d", r.SumAfter-r.SumBefore, c.amount*int64(c.entities))
	}
	return nil
}

func (r result) print(w io.Writer, taskOps int64) error {
	_, err := fmt.Fprintf(w, `
The job %s. Checked by reading all accounts back:
  accounts     %12s   processed %s, failures %s
  sum before   %12s
  sum after    %12s
Done in %.2f s by %s tasks: %s pages, greatest depth %d.
Google would bill %s entity reads, %s writes and %s task operations.
`, r.State, grouped(r.Entities), grouped(r.Processed), grouped(r.Failures), grouped(r.SumBefore), grouped(r.SumAfter),
		r.Seconds, grouped(r.Tasks), grouped(r.Pages), r.Depth,
		grouped(r.Reads), grouped(r.Writes), grouped(taskOps))
	return err
}

// grouped writes a number with its thousands apart.
func grouped(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
