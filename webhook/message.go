package webhook

import (
	"crypto/rand"
	"strings"
	"time"

	"github.com/scattermap/scattermap/internal/operator"
	"github.com/scattermap/scattermap/mapper"
)

// A Message is the JSON in the body of a request. Except for Text, its fields are the fields of
// [mapper.StateChange].
type Message struct {
	// Text is the change in one line, without markup: "job paused: spring (add-credit) by
	// ann@example.com: lunch. 1,200 entities processed, 3 failures".
	Text string `json:"text"`

	ID     string       `json:"id"`
	Mapper string       `json:"mapper"`
	Queue  string       `json:"queue"`
	From   mapper.State `json:"from,omitempty"` // empty for a start
	To     mapper.State `json:"to"`
	Time   time.Time    `json:"time"`
	Cause  string       `json:"cause,omitempty"`
	By     string       `json:"by,omitempty"`
	Reason string       `json:"reason,omitempty"`

	// Processed and Failures are -1 if they are not known.
	Processed int64 `json:"processed"`
	Failures  int64 `json:"failures"`
	Estimated bool  `json:"estimated,omitempty"`
}

func newMessage(c mapper.StateChange) Message {
	return Message{textOf(c), c.ID, c.Mapper, c.Queue, c.From, c.To, c.Time, c.Cause, c.By, c.Reason, c.Processed,
		c.Failures, c.Estimated}
}

// noMarkup replaces the signs by which chat services mark links and mentions. For example, Slack
// reads <!channel> as a mention of everybody, and Google Chat <users/all>.
var noMarkup = strings.NewReplacer("<", "‹", ">", "›")

// maxText is the maximum length of a text, in characters. IDs, callers and reasons are shorter.
const maxText = 2000

// textOf describes a change in one line.
func textOf(c mapper.StateChange) string {
	text := "job " + string(c.To) + ": " + c.ID + " (" + c.Mapper + ")"
	if c.By != "" {
		text += " by " + c.By
	}
	if c.Cause != "" && c.Cause != string(c.To) {
		text += ", " + c.Cause
	}
	if c.Reason != "" {
		text += ": " + c.Reason
	}
	if c.From != "" && c.Processed >= 0 {
		text += ". "
		if c.Estimated {
			text += "about "
		}
		text += operator.Counted(c.Processed, "entity", "entities") + " processed, " +
			operator.Counted(c.Failures, "failure", "failures")
	}
	return noMarkup.Replace(operator.Line(text, maxText))
}

// newID returns the ID of a new message.
func newID() string { return "msg_" + rand.Text() }
