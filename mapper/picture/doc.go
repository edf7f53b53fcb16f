// Package picture shows a job from above: a bounded sample of its ranges, in the order of the key
// space. It is for programs that draw how a job goes or went, as package dashboard does.
//
// [Of] reads the records, up to 750 of them. Everything else is calculated from these:
//
//   - where each range lies on a strip ([Picture.Slots]), and what colours it ([Picture.Classes])
//   - how the job stood at a time ([Picture.At])
//   - entities a second and tasks in flight over time ([Picture.Series])
//   - the fan-out by depth ([Picture.Levels])
//   - statistics of pages ([Picture.Pages])
//
// Nothing here changes a job.
package picture
