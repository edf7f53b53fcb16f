package names

import "strconv"

// Field returns a property's name in quotes, for the Go client's query functions. They read a name
// in quotes unchanged. In other names they interpret quotes, leading signs and spaces: the name
// "-n" would mean a descending order by n.
func Field(property string) string { return strconv.Quote(property) }
