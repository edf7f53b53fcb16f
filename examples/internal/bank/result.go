package bank

import (
	"fmt"
	"io"
	"strconv"

	"github.com/scattermap/scattermap/mapper"
)

// A Result has the numbers of a job, and the sums over the accounts before and after it.
type Result struct {
	State     mapper.State `json:"state"`
	Entities  int64        `json:"entities"` // number of accounts that were read after the job
	Processed int64        `json:"processed"`
	Failures  int64        `json:"failures"`
	SumBefore int64        `json:"sum_before"`
	SumAfter  int64        `json:"sum_after"`
	Tasks     int64        `json:"tasks"`
	Pages     int64        `json:"pages"`
	Depth     int64        `json:"depth"`
	Seconds   float64      `json:"seconds"`
	Reads     int64        `json:"reads"`  // number of billed reads, by the job and its progress bar
	Writes    int64        `json:"writes"` // number of billed writes
}

// Check returns an error if the job has not succeeded, or if the accounts did not change as they
// should. There must be n accounts, and the balance of each must have grown by amount. The
// parameters before and after have the sums from before and after the job.
func (r Result) Check(n int, amount int64, before, after Tally) error {
	switch {
	case r.State != mapper.StateSucceeded:
		return fmt.Errorf("the job ended as %q", r.State)
	case before.Accounts != int64(n) || after.Accounts != int64(n):
		return fmt.Errorf("there are %d accounts, and %d after the job, of %d", before.Accounts, after.Accounts, n)
	case after.Wrong > 0:
		return fmt.Errorf("%d accounts were not credited exactly once, one of them is %v", after.Wrong, after.Example)
	case r.Processed != int64(n):
		return fmt.Errorf("the job says that it processed %d of %d accounts", r.Processed, n)
	case r.SumAfter-r.SumBefore != amount*int64(n):
		return fmt.Errorf("the sum grew by %d, not by %d", r.SumAfter-r.SumBefore, amount*int64(n))
	}
	return nil
}

// Print prints the result as text. The argument taskOps is the number of billed operations of Cloud
// Tasks.
func (r Result) Print(w io.Writer, taskOps int64) error {
	_, err := fmt.Fprintf(w, `
The job %s. Checked by reading all accounts back:
  accounts     %12s   processed %s, failures %s
  sum before   %12s
  sum after    %12s
Done in %.2f s by %s tasks: %s pages, greatest depth %d.
Google would bill %s entity reads, %s writes and %s task operations.
`, r.State, Grouped(r.Entities), Grouped(r.Processed), Grouped(r.Failures), Grouped(r.SumBefore), Grouped(r.SumAfter),
		r.Seconds, Grouped(r.Tasks), Grouped(r.Pages), r.Depth,
		Grouped(r.Reads), Grouped(r.Writes), Grouped(taskOps))
	return err
}

// Grouped formats a number with its thousands separated.
func Grouped(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
