package dashboard

import (
	"bytes"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/scattermap/scattermap/internal/operator"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/picture"
)

// frames is the number of pictures that a replay shows.
const frames = 30

// A replayed is the data of the page with a job's replay: the states of its ranges at several
// times.
type replayed struct {
	Times  []time.Time `json:"times"`
	Frames []string    `json:"frames"` // a string for each frame, with a letter for each range
	Ranges []ranged    `json:"ranges"`

	Job        string        `json:"-"`
	Frame      int           `json:"-"` // the number of the frame that is shown, from 1
	Last       int           `json:"-"`
	At         time.Duration `json:"-"` // the time of that frame, counted from the job's start
	Took       time.Duration `json:"-"`
	Strip      strip         `json:"-"`
	Prev, Next string        `json:"-"` // addresses of the pages with the neighbouring frames
	Estimated  bool          `json:"-"`
	Spans      string        `json:"-"` // the durations of the frames, for the page's JavaScript
}

// letters has the letter that stands for each state in a frame.
var letters = map[picture.State]byte{picture.Uncut: 'u', picture.Pending: 'p', picture.Running: 'r', picture.Done: 'd',
	picture.Slow: 's', picture.Failed: 'f'}

// unfold returns one string for each of the times. A string has a letter for each range, which
// stands for the range's state at that time.
func unfold(p *picture.Picture, times []time.Time) (all []string) {
	for _, t := range times {
		var b strings.Builder
		for _, state := range p.At(t) {
			b.WriteByte(letters[state])
		}
		all = append(all, b.String())
	}
	return all
}

// replay returns the page with a job's replay.
func (s *server) replay(r *http.Request, q url.Values) (*answer, error) {
	id, err := id(q, "id")
	if err != nil {
		return nil, err
	}
	frame := frames
	if text := q.Get("frame"); text != "" {
		if frame, err = strconv.Atoi(text); err != nil || frame < 1 || frame > frames {
			return nil, operator.BadRequest(fmt.Sprintf("the parameter frame is %.100q, it has to be a number in "+
				"[1, %d]", text, frames))
		}
	}
	l, err := s.look(r.Context(), id)
	if err != nil {
		return nil, err
	}
	p := l.picture
	v := &replayed{
		Times: p.Frames(frames), Ranges: []ranged{}, Job: id, Frame: frame, Last: frames, Took: p.Until.Sub(p.Begun),
		Estimated: p.Estimated,
	}
	v.Frames = unfold(p, v.Times)
	v.At = v.Times[frame-1].Sub(p.Begun)
	for _, r := range p.Ranges {
		v.Ranges = append(v.Ranges, s.rangedOf(r))
	}
	v.Strip = draw(id, p, v.Ranges, picture.ByState, mapper.Progress{})
	v.Strip.Legend = append([]key{{Class: "uncut", Name: "not cut off yet"}}, v.Strip.Legend...)
	for i := range v.Strip.Legend {
		v.Strip.Legend[i].Share = "" // the shares are known only for the end of the job
	}
	v.Strip.play(v.Frames, frame)
	v.Strip.Says = fmt.Sprintf("The key space of the job %s after its start.", span(v.At))
	to := func(frame int) string {
		return "replay?" + url.Values{"id": {id}, "frame": {strconv.Itoa(frame)}}.Encode()
	}
	v.Prev, v.Next = to(max(1, frame-1)), to(min(frames, frame+1))
	var spans []string
	for _, t := range v.Times {
		spans = append(spans, span(t.Sub(p.Begun)))
	}
	v.Spans = strings.Join(spans, "|")
	return &answer{template: "replay", title: "Replay of " + id, body: v}, nil
}

// play sets the class of each slot to its state in a frame, whose number starts from 1. It also
// sets the frames in which the state changes. The parameter all has the strings of all frames, as
// unfold returns them.
func (s *strip) play(all []string, frame int) {
	for i := range s.Slots {
		v := &s.Slots[i]
		at := v.Range
		v.Class = className(all[frame-1][at])
		v.Born, v.Began, v.Done = since(all, at, 'u'), since(all, at, 'u', 'p'), since(all, at, 'u', 'p', 'r')
		v.Final = className(all[len(all)-1][at])
	}
}

// since returns the index of the first frame in which a range has none of the given states. If
// there is no such frame, it returns the number of frames. The parameter all has the strings of all
// frames, and at is the index of the range.
func since(all []string, at int, states ...byte) int {
	for i, frame := range all {
		if !slices.Contains(states, frame[at]) {
			return i
		}
	}
	return len(all)
}

// className returns the CSS class for a state's letter.
func className(letter byte) string {
	for state, l := range letters {
		if l == letter {
			return string(state)
		}
	}
	return ""
}

// colours are the colours of states in an animation, by letter. They suit light and dark pages,
// because an animation has no style sheet.
var colours = map[byte]string{'u': "#e2e8f0", 'p': "#94a3b8", 'r': "#2563eb", 'd': "#15803d", 's': "#d97706",
	'f': "#dc2626"}

// playTime is the duration of one of the animation's three rounds. At the end of a round, the last
// frame stays for the duration of holdFrames frames.
const (
	playTime   = 6 * time.Second
	holdFrames = 8
)

// animation returns a job's replay as an animated SVG image.
func (s *server) animation(r *http.Request, q url.Values) (*answer, error) {
	id, err := id(q, "id")
	if err != nil {
		return nil, err
	}
	l, err := s.look(r.Context(), id)
	if err != nil {
		return nil, err
	}
	st, p := l.status, l.picture
	seen := make([]ranged, len(p.Ranges))
	for i, r := range p.Ranges {
		seen[i] = ranged{Range: r} // without keys and errors, which the image does not show
	}
	strip := draw(id, p, seen, picture.ByState, mapper.Progress{})
	return &answer{body: animate(st, p, strip, unfold(p, p.Frames(frames)))}, nil
}

// animate returns an SVG image that shows the frames of a replay one after the other, and then
// keeps showing the last one. The parameter all has the strings of the frames, as unfold returns
// them.
func animate(st *mapper.Status, p *picture.Picture, d strip, all []string) svg {
	const top, foot = 30, 24
	var b bytes.Buffer
	height := top + d.Height + foot
	fmt.Fprintf(&b,
		`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" `+
			`font-family="system-ui, sans-serif" font-size="14">`,
		stripWidth+20, height, stripWidth+20, height)
	caption := fmt.Sprintf("%s: %s by %s in %s", st.ID, operator.Counted(st.Processed, "entity", "entities"),
		operator.Counted(st.Tasks, "task", "tasks"), span(p.Until.Sub(p.Begun)))
	fmt.Fprintf(&b,
		`<title>%s</title><rect width="100%%" height="100%%" rx="6" fill="#ffffff"/><text x="10" y="20" `+
			`fill="#0f172a">%s</text><g transform="translate(10 %d)" shape-rendering="crispEdges">`,
		html.EscapeString(caption), html.EscapeString(caption), top)
	for _, v := range d.Slots {
		at := v.Range
		fmt.Fprintf(&b, `<rect x="%s" y="%s" width="%s" height="%s" fill="%s">`, v.X, v.Y, v.W, v.H,
			colours[all[len(all)-1][at]])
		values, times := turns(all, at)
		if len(values) > 1 {
			fmt.Fprintf(&b,
				`<animate attributeName="fill" dur="%ds" repeatCount="3" calcMode="discrete" values="%s" `+
					`keyTimes="%s"/>`,
				int(playTime.Seconds()), strings.Join(values, ";"), strings.Join(times, ";"))
		}
		b.WriteString(`</rect>`)
	}
	played := float64(frames) / (frames + holdFrames)
	fmt.Fprintf(&b,
		`<rect y="%d" width="%d" height="3" fill="#64748b"><animate attributeName="width" dur="%ds" repeatCount="3" `+
			`values="0;%d;%d" keyTimes="0;%s;1"/></rect></g>`,
		d.Height+4, stripWidth, int(playTime.Seconds()), stripWidth, stripWidth, unit(played))
	x := 10
	for _, k := range []struct {
		letter byte
		name   string
	}{{'p', "pending"}, {'r', "running"}, {'d', "done"}, {'s', "slow"}, {'f', "failed"}} {
		fmt.Fprintf(&b,
			`<rect x="%d" y="%d" width="10" height="10" fill="%s"/><text x="%d" y="%d" fill="#334155" `+
				`font-size="12">%s</text>`, x, height-13, colours[k.letter], x+14, height-4, k.name)
		x += 80
	}
	b.WriteString(`</svg>`)
	return b.Bytes()
}

// turns returns the colours that a range has during an animation, in their order, and the times of
// the changes. Each string in all is a frame, with a letter for each range. at is the range's
// index.
func turns(all []string, at int) (values, times []string) {
	last := byte(0)
	for i, frame := range all {
		if frame[at] != last {
			last = frame[at]
			values, times = append(values, colours[last]), append(times, unit3(float64(i)/(frames+holdFrames)))
		}
	}
	return values, times
}

// unit3 formats a share of an animation's duration with four decimals.
func unit3(f float64) string { return strconv.FormatFloat(f, 'f', 4, 64) }
