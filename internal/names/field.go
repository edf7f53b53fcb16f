package names

import "strconv"

// Field returns a property's name in the form that the Go client's query functions read unchanged:
// in quotes. In a name without quotes, they interpret quotes, leading signs and spaces. For
// example, they take the property "-n" for a descending order by n.
func Field(property string) string { return strconv.Quote(property) }
