// Package picture looks at a job from above: at a bounded number of its ranges, however many it
// has, in the order of the key space. It is for whoever draws how a job stands, or how it has gone:
// package dashboard does.
//
// [Of] reads the records, up to 750 of them; everything else calculates: where each range lies on a
// strip ([Picture.Slots]), what colours it ([Picture.Classes]), how the job was at a time
// ([Picture.At]), entities a second and tasks in flight over time ([Picture.Series]), the fan-out
// by depth ([Picture.Levels]) and what pages are like ([Picture.Pages]). Nothing here changes a
// job.
package picture
