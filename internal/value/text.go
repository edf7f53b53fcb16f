package value

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/gql"
)

// Type returns the name of a value's type for users.
func Type(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case int64:
		return "integer"
	case time.Time:
		return "time"
	case bool:
		return "boolean"
	case string:
		return "string"
	case []byte:
		return "bytes"
	case float64:
		return "float"
	case datastore.GeoPoint:
		return "point"
	case *datastore.Key, Foreign:
		return "key"
	case []any:
		return "array"
	case *datastore.Entity, ForeignEntity:
		return "entity"
	}
	return fmt.Sprintf("%T", v)
}

// Text returns a value as a text that also shows the value's type. Different values have different
// texts. It uses GQL's notation where there is one: null, true, 5, 5.0, "5", BLOB("…") in web-safe
// base64, DATETIME("2026-10-24T00:00:00Z"), and KEY(NAMESPACE("acme"), Account, 5).
//
// Other notations are KEY(PROJECT("other"), DATABASE("second"), Account, 5) for a [Foreign] key,
// NaN, Infinity, POINT(52.5, 13.4), ARRAY(5, "a"), and ENTITY(city: "Oslo") with sorted names.
// Control characters are escaped, as in Go.
func Text(v any) string { return string(appendText(nil, v)) }

func appendText(b []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return append(b, "null"...)
	case bool:
		return strconv.AppendBool(b, v)
	case int64:
		return strconv.AppendInt(b, v, 10)
	case float64:
		return appendFloat(b, v)
	case string:
		return strconv.AppendQuote(b, v)
	case []byte:
		return append(base64.RawURLEncoding.AppendEncode(append(b, `BLOB("`...), v), `")`...)
	case time.Time: // in microseconds, as stored
		b = append(b, `DATETIME("`...)
		return append(v.UTC().Truncate(time.Microsecond).AppendFormat(b, time.RFC3339Nano), `")`...)
	case datastore.GeoPoint:
		b = appendFloat(append(b, "POINT("...), v.Lat)
		return append(appendFloat(append(b, ", "...), v.Lng), ')')
	case *datastore.Key:
		if v == nil {
			return append(b, "null"...)
		}
		return appendKey(append(b, "KEY("...), v)
	case Foreign:
		return appendForeign(b, v)
	case []any:
		b = append(b, "ARRAY("...)
		for i, each := range v {
			if i > 0 {
				b = append(b, ", "...)
			}
			b = appendText(b, each)
		}
		return append(b, ')')
	case *datastore.Entity:
		if v == nil {
			return append(b, "null"...)
		}
		if b = append(b, "ENTITY("...); v.Key != nil {
			b = appendKey(append(b, "KEY("...), v.Key)
		}
		return appendProperties(b, v.Properties, v.Key != nil)
	case ForeignEntity:
		return appendProperties(appendForeign(append(b, "ENTITY("...), v.Key), v.Entity.Properties, true)
	}
	return fmt.Appendf(b, "%T(%v)", v, v)
}

func appendFloat(b []byte, f float64) []byte {
	switch {
	case f != f:
		return append(b, "NaN"...)
	case math.IsInf(f, 1):
		return append(b, "Infinity"...)
	case math.IsInf(f, -1):
		return append(b, "-Infinity"...)
	}
	from := len(b)
	b = strconv.AppendFloat(b, f, 'g', -1, 64)
	if !bytes.ContainsAny(b[from:], ".e") {
		b = append(b, ".0"...)
	}
	return b
}

// appendKey appends the text of a key that comes after its opening parenthesis.
func appendKey(b []byte, k *datastore.Key) []byte {
	if k.Namespace != "" {
		b = append(strconv.AppendQuote(append(b, "NAMESPACE("...), k.Namespace), "), "...)
	}
	for i, e := range Path(k) {
		if i > 0 {
			b = append(b, ", "...)
		}
		b = append(append(b, gql.Name(e.Kind)...), ", "...)
		if e.Name != "" {
			b = strconv.AppendQuote(b, e.Name)
		} else {
			b = strconv.AppendInt(b, e.ID, 10)
		}
	}
	return append(b, ')')
}

func appendForeign(b []byte, k Foreign) []byte {
	b = append(strconv.AppendQuote(append(b, "KEY(PROJECT("...), k.Project), "), "...)
	if k.Database != "" {
		b = append(strconv.AppendQuote(append(b, "DATABASE("...), k.Database), "), "...)
	}
	return appendKey(b, k.Key)
}

// appendProperties appends the text of an entity's properties, and the closing parenthesis. If
// keyed is set, b ends with the entity's key, so a comma comes first.
func appendProperties(b []byte, properties []datastore.Property, keyed bool) []byte {
	ordered := slices.Clone(properties)
	slices.SortStableFunc(ordered, func(p, q datastore.Property) int { return strings.Compare(p.Name, q.Name) })
	for i, p := range ordered {
		if i > 0 || keyed {
			b = append(b, ", "...)
		}
		b = appendText(append(append(b, gql.Name(p.Name)...), ": "...), p.Value)
	}
	return append(b, ')')
}

// Short shortens a text to at most the given number of bytes, which must be at least 40. A longer
// text is cut off, and ends with a hash of the whole text. So different texts have different
// results. A shortened text also differs from every text that [Text] returns. The result is valid
// UTF-8.
func Short(text string, most int) string {
	if len(text) <= most {
		return text
	}
	hash := sha256.Sum256([]byte(text))
	end := "…#" + hex.EncodeToString(hash[:8])
	return strings.ToValidUTF8(text[:most-len(end)], "") + end
}
