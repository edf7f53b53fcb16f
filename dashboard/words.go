package dashboard

import (
	"cmp"
	"fmt"
	"html/template"
	"math"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/scattermap/scattermap/internal/operator"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/picture"
)

// words are the functions that templates call.
var words = template.FuncMap{
	"grouped": operator.Grouped,
	"whole":   func(f float64) string { return operator.Grouped(int64(math.Round(f))) },
	"amount":  amount,
	"percent": operator.Percent,
	"takes":   operator.Takes,
	"sized":   operator.Sized,
	"roughly": operator.Roughly,
	"span":    span,
	"ago":     func(t time.Time) string { return operator.Ago(t, time.Now()) },
	"utc":     func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") },
	"machine": func(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) },
	"dollars": dollars,
	"seconds": func(f float64) string { return span(time.Duration(f * float64(time.Second))) },
	"cut":     visible,
	"all":     func(s string) string { return visible(s, math.MaxInt) },
	"text":    func(b []byte) string { return visible(string(b), math.MaxInt) },
	"count":   func(all []refusal) int64 { return int64(len(all)) },
	"name":    func(s string) string { return strings.ReplaceAll(s, " ", "-") },
	"class":   func(s mapper.State) string { return strings.ReplaceAll(string(s), " ", "-") },
	"share":   func(f float64) string { return fmt.Sprintf("%.0f%%", 100*f) },
	"bar":     barOf,
	"done":    func(p mapper.Progress) string { return strings.TrimPrefix(barOf(p).Says, "progress ") },
	"pieces":  pieces,
	"query":   query,
	"since":   func(t, from time.Time) string { return span(t.Sub(from)) },
	"halves":  func(s string) []string { return strings.SplitN(s, ", ", 2) },
	"long":    func(s string) bool { return len(s) > 160 },
	"more":    func(all, shown, left int) int64 { return int64(max(0, all-shown) + left) },
	"dict":    dict,
	"can": func(all []verb, name string) bool {
		return slices.ContainsFunc(all, func(v verb) bool { return v.Name == name })
	},
	"standing": operator.Standing,
	"budget":   operator.BudgetOf,
	"rate":     rateOf,
	"counted":  operator.Counted,
	"within":   operator.Within,
	"colour":   func(c picture.Colour) string { return colourNames[c] },
}

// query returns the query string of a URL, from alternating names and values.
func query(pairs ...string) template.URL {
	q := make(url.Values)
	for i := 0; i+1 < len(pairs); i += 2 {
		q.Set(pairs[i], pairs[i+1])
	}
	return template.URL(q.Encode()) //nolint:gosec // it is encoded
}

// A bar is the progress bar of a job. Its lengths are percentages of its width.
type bar struct {
	Least, About, Most string
	Unknown            bool // whether the bounds of the progress are too far apart to draw them
	Says               string
}

func barOf(p mapper.Progress) bar {
	b := bar{unit(100 * p.FractionMin), unit(100 * p.Fraction), unit(100 * (p.FractionMax - p.FractionMin)),
		p.FractionMax-p.FractionMin > 0.5, operator.Percent(p)}
	if b.Unknown {
		b.Says = "progress not known yet"
		if p.Fraction > 0.005 {
			b.Says = fmt.Sprintf("about %.0f%%, not well known yet", 100*p.Fraction)
		}
	}
	return b
}

// rateOf describes a rate limit in a few words.
func rateOf(r mapper.Rate) string {
	var parts []string
	if r.EntitiesPerSecond > 0 {
		parts = append(parts, amount(r.EntitiesPerSecond)+" entities/s")
	}
	if r.WritesPerSecond > 0 {
		parts = append(parts, amount(r.WritesPerSecond)+" writes/s")
	}
	if r.CallsPerSecond > 0 {
		parts = append(parts, amount(r.CallsPerSecond)+" calls/s")
	}
	if r.Ramp {
		parts = append(parts, "ramp up")
	}
	return cmp.Or(strings.Join(parts, ", "), "none")
}

// dollars formats an amount of dollars, rounded to cents. Amounts below ten cents have four
// decimals.
func dollars(f float64) string {
	if f > 0 && f < 0.1 {
		return fmt.Sprintf("$%.4f", f)
	}
	return fmt.Sprintf("$%.2f", f)
}

// amount formats a number with about three digits.
func amount(f float64) string {
	if f > 0 && f < 10 {
		return fmt.Sprintf("%.1f", f)
	}
	return operator.Grouped(int64(math.Round(f)))
}

// span formats a duration with about three digits.
func span(d time.Duration) string {
	switch {
	case d >= 100*time.Second || d <= -100*time.Second:
		return operator.Roughly(d)
	case d >= 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d >= time.Second:
		return fmt.Sprintf("%.2f s", d.Seconds())
	case d >= time.Millisecond:
		return fmt.Sprintf("%.3g ms", float64(d)/float64(time.Millisecond))
	case d > 0:
		return fmt.Sprintf("%.3g µs", float64(d)/float64(time.Microsecond))
	}
	return "0 s"
}

// colourNames has the text that pages show for each way to colour a strip.
var colourNames = map[picture.Colour]string{
	picture.ByState: "state", picture.ByPace: "time per entity", picture.ByAttempts: "failed attempts",
	picture.ByTime: "time of commit",
}

// dict returns a map from alternating names and values. Templates use it to pass several arguments
// to another template.
func dict(pairs ...any) (map[string]any, error) {
	m := make(map[string]any)
	for i := 0; i+1 < len(pairs); i += 2 {
		name, ok := pairs[i].(string)
		if !ok {
			return nil, fmt.Errorf("dict: %v is no name", pairs[i])
		}
		m[name] = pairs[i+1]
	}
	return m, nil
}

// visible returns a text from an unknown author in a form that is safe to show. If it has more
// characters than the parameter most, it is shortened. It escapes characters that a browser would
// hide or interpret, such as \u{202e}, which reverses the direction of text.
func visible(s string, most int) string {
	var b strings.Builder
	n := 0
	for _, r := range strings.ToValidUTF8(s, "\uFFFD") {
		if n++; n > most {
			return b.String() + "…"
		}
		switch {
		case r == '\n' || r == '\t' || r == ' ' || unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			fmt.Fprintf(&b, `\u{%x}`, r)
		}
	}
	return b.String()
}
