package names

import "strconv"

// Field returns a property's name as the query functions of the Go client take it. In a plain name
// they read quotes, leading signs and spaces, and so would take the property "-n" for an order by n.
func Field(property string) string { return strconv.Quote(property) }
