// Package picture reads an overview of a job, for programs that draw it, such as package dashboard.
// A [Picture] has the job's ranges, or a random sample of them, in the order of keys.
//
// A range is an interval of keys. A job starts as one range, the root. The task of a range cuts off
// other ranges, its children, which are one deeper. Each range that is done has processed one page
// of entities. A strip is a line that stands for the key space, and on which each range has its
// place.
//
// The function [Of] reads up to 751 records. Everything else is calculated from these:
//
//   - where each range lies on a strip ([Picture.Slots]), and what colours it ([Picture.Classes])
//   - how the job stood at a time ([Picture.At])
//   - entities a second and tasks in flight over time ([Picture.Series])
//   - the number of ranges by depth ([Picture.Levels])
//   - statistics of pages ([Picture.Pages])
//
// Nothing here changes a job.
package picture
